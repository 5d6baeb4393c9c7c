"""The loop of sweeps: a sweep that fails is reported and backs off, and the others continue."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import pytest

from flowfabric.config import Config
from flowfabric.engine import claims, executions
from flowfabric.errors import ShuttingDown
from flowfabric.ids import ExecutionId
from flowfabric.postgres.database import Database
from flowfabric.sweeps import Sweep, run_each, run_once, run_sweeps
from flowfabric.sweeps.loop import pause
from tests.conftest import Connect
from tests.given import Given, until

OFTEN = timedelta(milliseconds=1)
EXPIRE_LEASES = Sweep("expire_leases", OFTEN, claims.expire_leases)
PROMOTE_DUE = Sweep("promote_due", OFTEN, executions.promote_due)

BROKEN = """
create or replace function flowfabric.promote_due(
    take int default 500, passing int default 0, among text[] default null, out moved int, out lanes text[],
    out ended text[])
language plpgsql as $$ begin raise exception 'out of order'; end $$
"""


async def expired(given: Given, count: int = 1, *, stuck: int = 0) -> list[ExecutionId]:
    """Executions whose leases have expired; the first `stuck` have a policy that no submission can have."""
    submitted = [await given.submitted() for _ in range(count)]
    for execution_id in submitted[:stuck]:
        await given.rows(
            """update flowfabric.executions set policy = '{"max_reclaim_count": "x"}' where id = $1""",
            execution_id.uuid,
        )
    await given.claim(take=count)
    await given.time_passes(seconds=30)
    return submitted


async def swept(given: Given, count: int) -> bool:
    """Whether so many leases were expired by a sweep."""
    return (await given.events()).count("lease_expired") == count


@asynccontextmanager
async def running(database: Database, *sweeps: Sweep) -> AsyncIterator[asyncio.Task[None]]:
    """The loop, while the block runs; it must end immediately when it is cancelled."""
    loop = asyncio.create_task(run_sweeps(database, sweeps))
    yield loop
    loop.cancel()
    async with asyncio.timeout(2):
        await asyncio.wait([loop])
    assert loop.cancelled()


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "flowfabric.sweeps"]


async def test_sweeps_do_not_use_the_connections_of_calls(database_url: str, given: Given) -> None:
    await expired(given)
    async with Database(Config(pool_size=1), database_url) as database, database.connection():
        assert await run_once(database, EXPIRE_LEASES) == 1


async def test_a_run_continues_until_nothing_is_left(database: Database, given: Given) -> None:
    await expired(given, 7)

    assert await run_once(database, Sweep("expire_leases", OFTEN, claims.expire_leases, limit=3)) == 7
    assert await run_once(database, EXPIRE_LEASES) == 0
    assert await swept(given, 7)


async def test_the_loop_repeats_each_sweep(database: Database, given: Given) -> None:
    async with running(database, PROMOTE_DUE, EXPIRE_LEASES):
        for count in (1, 2, 3):
            await expired(given)
            await until(partial(swept, given, count))


async def test_a_sweep_that_fails_backs_off_and_does_not_stop_the_others(
    database: Database, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    await given.conn.execute(BROKEN)
    await expired(given)

    async with running(database, PROMOTE_DUE, EXPIRE_LEASES):
        await until(lambda: swept(given, 1))
        await until(lambda: len(reports(caplog)) >= 4)

    pauses = [re.findall(r"0\.\d+", report) for report in reports(caplog)]
    assert pauses[:4] == [["0.002"], ["0.004"], ["0.008"], ["0.016"]]
    assert all("promote_due" in report for report in reports(caplog))
    assert all("out of order" in report for report in reports(caplog))


async def test_a_single_run_of_each_sweep_names_the_one_that_failed(database: Database, given: Given) -> None:
    await given.conn.execute(BROKEN)
    await expired(given)

    broken, whole = await run_each(database, [PROMOTE_DUE, EXPIRE_LEASES])

    assert (broken.sweep, broken.moved, broken.error) == ("promote_due", 0, "out of order")
    assert (whole.sweep, whole.moved, whole.error) == ("expire_leases", 1, None)


@pytest.mark.parametrize("limit", [1, 2, 500])
async def test_rows_that_cannot_be_processed_are_skipped_and_reported(
    database: Database, given: Given, caplog: pytest.LogCaptureFixture, limit: int
) -> None:
    """One bad row must not stop the batch, nor hide the rows behind it."""
    executions_ = await expired(given, 8, stuck=5)

    assert await run_once(database, Sweep("expire_leases", OFTEN, claims.expire_leases, limit=limit)) == 3

    assert len(reports(caplog)) == 5
    assert all("expire_leases" in report and "invalid input" in report for report in reports(caplog))
    [row] = await given.rows("select array_agg(id) as stuck from flowfabric.tickets where phase = 'active'")
    assert sorted(row["stuck"]) == sorted(execution_id.uuid for execution_id in executions_[:5])


async def test_two_loops_move_each_row_once(database: Database, database_url: str, given: Given) -> None:
    await expired(given, 60)
    small = Sweep("expire_leases", OFTEN, claims.expire_leases, limit=5)

    async with Database(Config(), database_url) as other:
        moved = await asyncio.gather(run_once(database, small), run_once(other, small), run_once(other, small))

    # A pass that finds only locked rows ends early; the next one takes the rows it left.
    assert sum(moved) + await run_once(database, small) == 60
    assert await swept(given, 60)


async def test_the_loop_resumes_after_an_outage_of_the_database(database: Database, given: Given) -> None:
    async with running(database, PROMOTE_DUE, EXPIRE_LEASES):
        for _ in range(3):
            await given.rows(
                """select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""
            )
        await expired(given)
        await until(lambda: swept(given, 1))


async def test_a_run_on_a_closed_database_fails(database_url: str) -> None:
    async with Database(Config(), database_url) as database:
        pass

    with pytest.raises(ShuttingDown):
        await run_each(database, [EXPIRE_LEASES])


async def test_the_loop_ends_promptly_while_a_sweep_is_blocked(
    database: Database, connect: Connect, given: Given
) -> None:
    blocker = await connect()

    async with blocker.transaction():
        await blocker.execute("lock table flowfabric.tickets in access exclusive mode")
        async with running(database, EXPIRE_LEASES):
            await given.until_blocked()


async def test_a_sweep_that_succeeds_logs_nothing(
    database: Database, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="flowfabric.sweeps")
    await expired(given, 3)

    assert await run_once(database, EXPIRE_LEASES) == 3
    assert reports(caplog) == []


@pytest.mark.parametrize(
    ("every", "moved", "took", "expected"),
    [(2, 0, 0.01, 2), (2, 0, 0.1, 5), (2, 0, 9, 15), (2, 1, 0.1, 2), (0.25, 0, 0.1, 0.25), (60, 0, 0.1, 60)],
)
def test_a_sweep_that_takes_long_to_find_nothing_runs_less_often(
    every: float, moved: int, took: float, expected: float
) -> None:
    sweep = Sweep("expire_leases", timedelta(seconds=every), claims.expire_leases)

    assert pause(sweep, moved, took, longest=15) == expected
