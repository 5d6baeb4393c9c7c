"""The loop of sweeps: what fails is reported and backs off, and everything else goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from flowfabric.config import Config
from flowfabric.engine import claims, executions
from flowfabric.errors import ShuttingDown
from flowfabric.ids import ExecutionId
from flowfabric.postgres.database import Database
from flowfabric.sweeps import Sweep, run_each, run_once, run_sweeps
from tests.conftest import Connect
from tests.given import Given

OFTEN = timedelta(milliseconds=1)
EXPIRE_LEASES = Sweep("expire_leases", OFTEN, claims.expire_leases)
PROMOTE_DUE = Sweep("promote_due", OFTEN, executions.promote_due)

BROKEN = """
create or replace function flowfabric.promote_due(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql as $$ begin raise exception 'out of order'; end $$
"""


async def lapsed(given: Given, count: int = 1, *, stuck: int = 0) -> list[ExecutionId]:
    """Executions whose leases have lapsed; the first few have a policy that no submission could have brought."""
    submitted = [await given.submitted() for _ in range(count)]
    for execution_id in submitted[:stuck]:
        await given.rows(
            """update flowfabric.executions set policy = '{"max_reclaim_count": "x"}' where id = $1""",
            execution_id.uuid,
        )
    await claims.claim(given.conn, "w", instance="w-1", lanes=["default"], take=count)
    await given.time_passes(seconds=30)
    return submitted


async def lapses(given: Given) -> int:
    return (await given.events()).count("lease_expired")


@asynccontextmanager
async def running(database: Database, *sweeps: Sweep) -> AsyncIterator[asyncio.Task[None]]:
    """The loop, for as long as the block lasts; it must end at once when it is cancelled."""
    loop = asyncio.create_task(run_sweeps(database, sweeps))
    yield loop
    loop.cancel()
    async with asyncio.timeout(2):
        await asyncio.wait([loop])
    assert loop.cancelled()


async def becomes(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            pass


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "flowfabric.sweeps"]


async def test_sweeps_leave_the_connections_for_calls_alone(database_url: str, given: Given) -> None:
    await lapsed(given)
    async with Database(Config(pool_size=1), database_url) as database, database.connection():
        assert await run_once(database, EXPIRE_LEASES) == 1


async def test_a_run_goes_on_until_nothing_is_left(database: Database, given: Given) -> None:
    await lapsed(given, 7)

    assert await run_once(database, Sweep("expire_leases", OFTEN, claims.expire_leases, limit=3)) == 7
    assert await run_once(database, EXPIRE_LEASES) == 0
    assert await lapses(given) == 7


async def test_the_loop_runs_each_sweep_again_and_again(database: Database, given: Given) -> None:
    async with running(database, PROMOTE_DUE, EXPIRE_LEASES):
        for round_ in (1, 2, 3):
            await lapsed(given)

            async def is_swept(expected: int = round_) -> bool:
                return await lapses(given) == expected

            await becomes(is_swept)


async def test_a_sweep_that_fails_backs_off_and_does_not_stop_the_others(
    database: Database, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    await given.conn.execute(BROKEN)
    await lapsed(given)

    async def is_over() -> bool:
        return await lapses(given) == 1 and len(reports(caplog)) >= 4

    async with running(database, PROMOTE_DUE, EXPIRE_LEASES):
        await becomes(is_over)

    pauses = [float(report.split("about ")[1].split(" ")[0]) for report in reports(caplog)]
    assert pauses[:4] == [0.002, 0.004, 0.008, 0.016]
    assert all(report.startswith("sweep promote_due failed") for report in reports(caplog))
    assert all(report.endswith("out of order") for report in reports(caplog))


async def test_a_single_run_of_each_names_the_one_that_failed(database: Database, given: Given) -> None:
    await given.conn.execute(BROKEN)
    await lapsed(given)

    broken, whole = await run_each(database, [PROMOTE_DUE, EXPIRE_LEASES])

    assert (broken.sweep, broken.moved, broken.error) == ("promote_due", 0, "out of order")
    assert (whole.sweep, whole.moved, whole.error) == ("expire_leases", 1, None)


@pytest.mark.parametrize("limit", [1, 2, 500])
async def test_rows_that_cannot_be_processed_are_stepped_over_and_reported(
    database: Database, given: Given, caplog: pytest.LogCaptureFixture, limit: int
) -> None:
    """Pitfall P32."""
    executions_ = await lapsed(given, 8, stuck=5)

    assert await run_once(database, Sweep("expire_leases", OFTEN, claims.expire_leases, limit=limit)) == 3

    assert len(reports(caplog)) == 5
    assert all("expire_leases" in report and "invalid input" in report for report in reports(caplog))
    [row] = await given.rows("select array_agg(id) as stuck from flowfabric.tickets where phase = 'active'")
    assert sorted(row["stuck"]) == sorted(execution_id.uuid for execution_id in executions_[:5])


async def test_two_loops_move_each_row_once(database: Database, database_url: str, given: Given) -> None:
    await lapsed(given, 60)
    small = Sweep("expire_leases", OFTEN, claims.expire_leases, limit=5)

    async with Database(Config(), database_url) as other:
        moved = await asyncio.gather(run_once(database, small), run_once(other, small), run_once(other, small))

    # A pass that meets only locked rows comes back early: whatever it left, the next one takes.
    assert sum(moved) + await run_once(database, small) == 60
    assert await lapses(given) == 60


async def test_the_loop_goes_on_after_the_database_was_away(database: Database, given: Given) -> None:
    async def is_swept() -> bool:
        return await lapses(given) == 1

    async with running(database, PROMOTE_DUE, EXPIRE_LEASES):
        for _ in range(3):
            await given.rows(
                """select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""
            )
        await lapsed(given)
        await becomes(is_swept)


async def test_a_run_without_a_database_says_so(database_url: str) -> None:
    async with Database(Config(), database_url) as database:
        pass

    with pytest.raises(ShuttingDown):
        await run_each(database, [EXPIRE_LEASES])


async def test_the_loop_ends_promptly_also_while_a_sweep_waits(
    database: Database, connect: Connect, given: Given
) -> None:
    blocker = await connect()

    async def is_waiting() -> bool:
        return bool(await given.rows("select from pg_stat_activity where wait_event_type = 'Lock'"))

    async with blocker.transaction():
        await blocker.execute("lock table flowfabric.tickets in access exclusive mode")
        async with running(database, EXPIRE_LEASES):
            await becomes(is_waiting)


async def test_a_loop_that_nothing_goes_wrong_in_reports_nothing(
    database: Database, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="flowfabric.sweeps")
    await lapsed(given, 3)

    assert await run_once(database, EXPIRE_LEASES) == 3
    assert reports(caplog) == []
