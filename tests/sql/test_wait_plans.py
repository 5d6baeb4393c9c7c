"""What waits read: as much beside a hundred thousand that wait as beside a hundred."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import asyncpg
import pytest

from benchmarks.waiting import FILL
from flowfabric.engine import claims, executions, waits
from flowfabric.model import Claim, Delivered
from tests.conftest import SOAK, Connect, Server
from tests.engine.waits.scene import ANY, Waiting, wish
from tests.filled import copied, undone
from tests.given import Given, submission
from tests.sql.reading import Read
from tests.sql.reading import reading as reading_of

FEW, MANY = 100, 100_000 if SOAK else 20_000
HOUR = timedelta(hours=1)

reading = partial(reading_of, tables=["executions", "tickets", "suspensions", "waitpoints", "signals"])


async def asked(conn: asyncpg.Connection, amount: int, **options: Any) -> list[Waiting]:
    """So many that have just suspended."""
    await executions.submit_many(conn, [submission()] * amount)
    claimed = await claims.claim(conn, "w", instance="w-1", lanes=["default"], take=amount)
    return [Waiting(claim, await waits.suspend(conn, claim.fence, wish(ANY, **options))) for claim in claimed]


class Filled(NamedTuple):
    """A database in which so many wait, and three of them with their tokens."""

    url: str
    ours: list[Waiting]


async def fill(url: str, amount: int) -> list[Waiting]:
    conn = await asyncpg.connect(url)
    ours = await asked(conn, 3)
    await conn.execute(FILL, amount)
    await conn.execute("vacuum analyze")
    await conn.close()
    return ours


@pytest.fixture(scope="module", params=[FEW, MANY])
def filled(server: Server, template: str, request: pytest.FixtureRequest) -> Iterator[Filled]:
    with copied(server, template) as url:
        yield Filled(url, asyncio.run(fill(url, request.param)))


@pytest.fixture
async def full(filled: Filled) -> AsyncIterator[asyncpg.Connection]:
    """A connection to it; what is done there is undone."""
    async with undone(filled.url) as conn:
        yield conn


async def test_a_signal_reads_no_more_however_many_wait(full: asyncpg.Connection, filled: Filled) -> None:
    for one in filled.ours:
        done, read = await reading(full, waits.deliver_signal(full, one.signal()))
        assert isinstance(done, Delivered)
        assert done.effect == "resume_condition_satisfied"
        assert (read.rows <= 60, read.whole) == (True, 0), read


async def test_a_signal_with_a_bad_token_reads_next_to_nothing(full: asyncpg.Connection, filled: Filled) -> None:
    [told], read = await reading(full, waits.deliver_signals(full, [filled.ours[0].signal(token="bad")]))

    assert told.code == "invalid_token"
    assert (read.rows <= 4, read.whole) == (True, 0), read


async def test_an_approval_and_a_resume_read_no_more_however_many_wait(
    full: asyncpg.Connection, filled: Filled
) -> None:
    approved, resumed, _ = filled.ours

    _, read = await reading(full, waits.deliver_approval(full, approved.execution_id, "w", "approve", by="ann"))
    assert (read.rows <= 60, read.whole) == (True, 0), read
    _, read = await reading(full, waits.resume(full, resumed.execution_id, by="ann"))
    assert (read.rows <= 60, read.whole) == (True, 0), read


async def test_a_suspension_reads_no_more_however_many_wait(full: asyncpg.Connection) -> None:
    await executions.submit(full, submission())
    [claim] = await claims.claim(full, "w", instance="w-1", lanes=["default"])

    _, read = await reading(full, waits.create_waitpoint(full, claim.fence, "w"))
    assert (read.rows <= 20, read.whole) == (True, 0), read
    _, read = await reading(full, waits.suspend(full, claim.fence, wish(ANY, timeout=HOUR)))
    assert (read.rows <= 60, read.whole) == (True, 0), read


async def test_sweeps_that_find_little_read_little(full: asyncpg.Connection) -> None:
    late = await asked(full, 2, timeout=HOUR, timeout_behavior="auto_resume")
    swept, read = await reading(full, waits.time_out_waits(full))
    assert (swept.moved, read.rows <= 15, read.whole) == (0, True, 0), read
    await full.execute("select flowfabric.move_clock('1 hour')")

    swept, read = await reading(full, waits.time_out_waits(full))
    assert (swept.moved, read.rows <= 40 * len(late), read.whole) == (2, True, 0), read
    swept, read = await reading(full, waits.close_waitpoints(full))
    assert (swept.moved, read.rows <= 15, read.whole) == (0, True, 0), read


async def test_a_page_of_what_waits_reads_a_page(full: asyncpg.Connection) -> None:
    page, read = await reading(full, waits.list_suspended(full, limit=10))

    assert len(page.items) == 10
    assert read.rows <= 20 * FEW


async def test_a_long_life_does_not_make_the_next_wait_slower(connect: Connect, given: Given) -> None:
    conn = await connect()
    async with conn.transaction():
        [first] = await asked(conn, 1)
        for table, own in (("suspensions", "suspension"), ("waitpoints", "waitpoint")):
            await conn.execute(PAST.format(table=table, own=own))
        await conn.execute(SIGNALS)
        await conn.execute("analyze flowfabric.suspensions, flowfabric.waitpoints, flowfabric.signals")

        done, read = await reading(conn, waits.deliver_signal(conn, first.signal()))

    assert done.effect == "resume_condition_satisfied"
    assert (read.rows <= 60, read.whole) == (True, 0), read
    assert await given.count("signals") == 2_001


# Two thousand waits that are over, of the same execution.
PAST = """
insert into flowfabric.{table}
select (jsonb_populate_record(o.*, jsonb_build_object(
    'id', gen_random_uuid(), 'suspension', gen_random_uuid(), 'state', 'closed', 'ended_at', now()))).*
from flowfabric.{table} o cross join generate_series(1, 2000)
"""
SIGNALS = """
insert into flowfabric.signals (partition, number, at, execution, id, waitpoint, name, category, source_type,
                                source_identity, effect)
select w.partition, row_number() over (), now(), w.execution, gen_random_uuid(), w.id, 'x', 'signal',
       'external', 'x', 'no_op'
from flowfabric.waitpoints w where w.state = 'closed'
"""


async def cycle(conn: asyncpg.Connection, amount: int) -> dict[str, Read]:
    """Every call about waits once, on so many executions, and what each read."""
    read: dict[str, Read] = {}
    await executions.submit_many(conn, [submission()] * amount)
    taken: list[Claim] = await claims.claim(conn, "w", instance="w-1", lanes=["default"], take=amount)
    for claim in taken:
        _, read["create_waitpoint"] = await reading(conn, waits.create_waitpoint(conn, claim.fence, "w"))
    suspended = []
    for claim in taken:
        answer, read["suspend"] = await reading(conn, waits.suspend(conn, claim.fence, wish(ANY, timeout=HOUR)))
        suspended.append(Waiting(claim, answer))
    signals = [one.signal(idempotency_key="k") for one in suspended]
    _, read["deliver_signal"] = await reading(conn, waits.deliver_signals(conn, signals))
    _, read["claim"] = await reading(conn, claims.claim(conn, "w", instance="w-1", lanes=["default"], take=amount))
    _, read["time_out_waits"] = await reading(conn, waits.time_out_waits(conn))
    _, read["close_waitpoints"] = await reading(conn, waits.close_waitpoints(conn))
    for claim in taken:
        _, read["cancel"] = await reading(
            conn, executions.cancel(conn, claim.execution_id, reason="done with", by="ops")
        )
    return read


async def test_plans_made_on_empty_tables_serve_full_ones(connect: Connect, given: Given) -> None:
    conn = await connect()
    for table in ("executions", "tickets", "suspensions", "waitpoints", "signals"):
        await conn.execute(f"alter table flowfabric.{table} set (autovacuum_enabled = off)")
    async with conn.transaction():
        for _ in range(8):
            await cycle(conn, 1)
    await asked(given.conn, 1)
    await given.rows(FILL, MANY)

    async with conn.transaction():
        read = await cycle(conn, 20)

    assert {name: each.whole for name, each in read.items()} == dict.fromkeys(read, 0)
    assert {name: each.rows for name, each in read.items() if each.rows > 50 * 20} == {}
