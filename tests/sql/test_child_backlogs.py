"""What a backlog of ends of children costs: a pass reads what it may take, whatever lies there."""

import asyncpg
import pytest

from flowfabric.engine import children
from flowfabric.model import PublicState, Swept
from tests.conftest import SOAK, Connect
from tests.engine.test_children import born, completed, state, waits_for
from tests.given import Given
from tests.sql.reading import reading

MANY = 200_000 if SOAK else 10_000
TAKE = 100
EACH = 20  # rows and index entries for one that may be taken, or for one parent that is passed
PASSED = 1_000  # parents that a pass gets past
TABLES = ["executions", "tickets", "suspensions", "signals", "child_ends"]

# So many ends, an hour old, of as many families as there are to be; their parents have tickets or have not.
ENDS = f"""
insert into flowfabric.child_ends (partition, execution, parent_partition, parent, at)
select 0, gen_random_uuid(), 0, md5((n % $1::int)::text)::uuid,
       flowfabric.clock() - interval '1 hour' + n * interval '1 us'
from generate_series(1, {MANY}) n"""
PARENTS = """
insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, phase, eligibility, reason)
select 0, md5(n::text)::uuid, 0, 'busy', 0, now(), 'active', 'eligible_now', 'none' from generate_series(0, $1 - 1) n"""


async def swept(conn: asyncpg.Connection) -> tuple[Swept, int]:
    """What a pass did, and how much it read."""
    async with conn.transaction():
        answer, read = await reading(conn, children.deliver_child_ends(conn, limit=TAKE), TABLES)
    return answer, read.rows


async def locked(given: Given, connect: Connect, families: int) -> asyncpg.Connection:
    """Many ends, all of families whose parents somebody holds: whoever that is."""
    await given.conn.execute(ENDS, families)
    await given.conn.execute(PARENTS, families)
    other = await connect()
    await other.execute("begin; select from flowfabric.tickets where lane = 'busy' for update")
    return other


@pytest.fixture(params=["plans of what is there", "plans of empty tables"])
async def sweeper(request: pytest.FixtureRequest, connect: Connect) -> asyncpg.Connection:
    """A session that sweeps."""
    conn = await connect()
    if request.param == "plans of empty tables":
        await conn.execute("vacuum analyze flowfabric.child_ends")
        for _ in range(7):  # after five a statement without a plan of its own gets one for good
            await swept(conn)
    return conn


async def test_ends_that_no_parent_is_left_for_go_in_passes_of_a_size(
    given: Given, sweeper: asyncpg.Connection
) -> None:
    await given.conn.execute(ENDS, 50)

    for _ in range(4):
        answer, rows = await swept(sweeper)
        assert (answer.moved, list(answer.lanes), rows < TAKE * EACH) == (TAKE, [], True), rows

    assert await given.count("child_ends") == MANY - 4 * TAKE


async def test_ends_that_nobody_waits_for_go_in_passes_of_a_size(given: Given, sweeper: asyncpg.Connection) -> None:
    await given.conn.execute(ENDS, 5_000)
    await given.conn.execute(PARENTS, 5_000)

    for _ in range(4):
        answer, rows = await swept(sweeper)
        assert (answer.moved, list(answer.lanes), rows < TAKE * EACH) == (TAKE, [], True), rows

    assert await given.count("child_ends") == MANY - 4 * TAKE


@pytest.mark.parametrize("families", [1, PASSED // 2])
async def test_locked_parents_with_many_ends_keep_nobody_from_hearing(
    given: Given, connect: Connect, sweeper: asyncpg.Connection, families: int
) -> None:
    parent = await given.claimed()
    await waits_for(given, parent, *await born(given, parent))
    other = await locked(given, connect, families)
    await completed(given)

    answer, rows = await swept(sweeper)

    assert (answer.moved, list(answer.lanes), rows < (TAKE + families) * EACH) == (1, ["default"], True), rows
    assert await state(given, parent.execution_id) == PublicState.WAITING
    assert (await swept(sweeper))[0].moved == 0
    await other.execute("rollback")
    assert await given.count("child_ends") == MANY
    assert (await swept(sweeper))[0].moved == TAKE


async def test_more_locked_parents_than_a_pass_gets_past_keep_nobody_from_hearing_for_long(
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
    assert await state(given, parent.execution_id) == PublicState.WAITING


async def test_a_pass_does_not_wait_for_another_that_is_under_way(given: Given, connect: Connect) -> None:
    await given.conn.execute(ENDS, 50)
    other = await connect()
    await other.execute("begin")
    assert (await children.deliver_child_ends(other, limit=TAKE)).moved == TAKE
    await given.conn.execute("set lock_timeout = '100ms'")

    assert (await children.deliver_child_ends(given.conn, limit=2 * TAKE)).moved == 2 * TAKE
    await other.execute("rollback")
    assert await given.count("child_ends") == MANY - 2 * TAKE
