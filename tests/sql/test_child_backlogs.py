"""Backlogs of child ends: a pass reads in proportion to what it takes, however large the backlog."""

import asyncpg
import pytest

from flowfabric.engine import children
from flowfabric.model import PublicState, Swept
from tests.conftest import SOAK, Connect
from tests.engine.test_children import born, completed, waits_for
from tests.given import Given
from tests.sql.reading import reading

MANY = 200_000 if SOAK else 10_000
TAKE = 100
EACH = 20  # rows and index entries per end that is taken, and per locked parent that is passed
PASSED = 1_000  # locked parents that one pass can get past
TABLES = ["executions", "tickets", "waits", "signals", "child_ends"]

# Child ends, an hour old, spread over $1 families; `PARENTS` adds the tickets of the parents.
ENDS = f"""
insert into flowfabric.child_ends (partition, execution, parent_partition, parent, at)
select 0, gen_random_uuid(), 0, md5((n % $1::int)::text)::uuid,
       flowfabric.clock() - interval '1 hour' + n * interval '1 us'
from generate_series(1, {MANY}) n"""
PARENTS = """
insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, phase, eligibility, reason)
select 0, md5(n::text)::uuid, 0, 'busy', 0, now(), 'active', 'eligible_now', 'none' from generate_series(0, $1 - 1) n"""


async def swept(conn: asyncpg.Connection) -> tuple[Swept, int]:
    """The answer of one pass, and how many rows it read."""
    async with conn.transaction():
        answer, read = await reading(conn, children.deliver_child_ends(conn, limit=TAKE), TABLES)
    return answer, read.rows


async def locked(given: Given, connect: Connect, families: int) -> asyncpg.Connection:
    """Many child ends, all of families whose parents another session has locked."""
    await given.conn.execute(ENDS, families)
    await given.conn.execute(PARENTS, families)
    other = await connect()
    await other.execute("begin; select from flowfabric.tickets where lane = 'busy' for update")
    return other


@pytest.fixture(params=["planned on the backlog", "planned on empty tables"])
async def sweeper(request: pytest.FixtureRequest, connect: Connect) -> asyncpg.Connection:
    """A session that runs the sweep."""
    conn = await connect()
    if request.param == "planned on empty tables":
        await conn.execute("vacuum analyze flowfabric.child_ends")
        for _ in range(7):  # Postgres switches to a generic plan after five executions
            await swept(conn)
    return conn


# What the backlog consists of: the number of families, and whether their parents still exist.
BACKLOGS = {"parents that have ended": (50, False), "parents that do not wait": (5_000, True)}


@pytest.mark.parametrize(("families", "have_parents"), BACKLOGS.values(), ids=BACKLOGS.keys())
async def test_ends_that_no_parent_waits_for_are_deleted_in_bounded_passes(
    given: Given, sweeper: asyncpg.Connection, families: int, have_parents: bool
) -> None:
    await given.conn.execute(ENDS, families)
    if have_parents:
        await given.conn.execute(PARENTS, families)

    for _ in range(4):
        answer, rows = await swept(sweeper)
        assert (answer.moved, list(answer.lanes), rows < TAKE * EACH) == (TAKE, [], True), rows

    assert await given.count("child_ends") == MANY - 4 * TAKE


@pytest.mark.parametrize("families", [1, PASSED // 2])
async def test_locked_parents_with_many_ends_do_not_delay_other_parents(
    given: Given, connect: Connect, sweeper: asyncpg.Connection, families: int
) -> None:
    parent = await given.claimed()
    await waits_for(given, parent, *await born(given, parent))
    other = await locked(given, connect, families)
    await completed(given)

    answer, rows = await swept(sweeper)

    assert (answer.moved, list(answer.lanes), rows < (TAKE + families) * EACH) == (1, ["default"], True), rows
    assert await given.state(parent.execution_id) == PublicState.WAITING
    assert (await swept(sweeper))[0].moved == 0
    await other.execute("rollback")
    assert await given.count("child_ends") == MANY
    assert (await swept(sweeper))[0].moved == TAKE


async def test_more_locked_parents_than_a_pass_can_get_past_do_not_delay_others_for_long(
    given: Given, connect: Connect, sweeper: asyncpg.Connection
) -> None:
    parent = await given.claimed()
    await waits_for(given, parent, *await born(given, parent))
    await locked(given, connect, 3 * PASSED)
    await completed(given)

    for _ in range(100):
        answer, rows = await swept(sweeper)
        assert rows < (TAKE + PASSED) * EACH
        if answer.moved:
            break

    assert (answer.moved, list(answer.lanes)) == (1, ["default"])
    assert await given.state(parent.execution_id) == PublicState.WAITING


async def test_a_pass_does_not_wait_for_a_concurrent_pass(given: Given, connect: Connect) -> None:
    await given.conn.execute(ENDS, 50)
    other = await connect()
    await other.execute("begin")
    assert (await children.deliver_child_ends(other, limit=TAKE)).moved == TAKE
    await given.conn.execute("set lock_timeout = '100ms'")

    assert (await children.deliver_child_ends(given.conn, limit=2 * TAKE)).moved == 2 * TAKE
    await other.execute("rollback")
    assert await given.count("child_ends") == MANY - 2 * TAKE
