"""Turns: a sweep with a share pauses between its passes and runs in one process at a time."""

import asyncio
from datetime import timedelta
from functools import partial

import pytest

from flowfabric.config import Config
from flowfabric.engine import executions
from flowfabric.postgres.database import Database
from flowfabric.sweeps import Sweep, run_each, run_once, run_sweeps, sweeps
from flowfabric.sweeps.turns import LONGEST_PAUSE, TURN, Turn, pause_after
from tests.conftest import Connect
from tests.given import Given, until

OFTEN = timedelta(milliseconds=1)
REMOVE = Sweep("remove_ended", OFTEN, executions.remove_ended, limit=2, share=0.9)


async def removable(given: Given, count: int) -> None:
    """Ended executions whose retention has passed."""
    for _ in range(count):
        await given.cancelled()
    await given.time_passes(days=7)


async def left(given: Given, count: int) -> bool:
    return await given.count("executions") == count


def a_turn(database: Database) -> Turn:
    return Turn(database, REMOVE.name, share=0.9)


@pytest.mark.parametrize(("took", "share", "pause"), [(0.05, 0.1, 0.45), (0.02, 0.2, 0.08), (1.0, 0.5, 1.0), (3, 1, 0)])
def test_passes_take_their_share_of_the_time(took: float, share: float, pause: float) -> None:
    assert pause_after(took, share) == pytest.approx(pause)


def test_a_pause_is_limited_and_the_turn_outlasts_the_longest_pass_and_pause() -> None:
    longest_pass = 6 * Config().call_timeout.total_seconds()

    assert pause_after(longest_pass, 0.01) == LONGEST_PAUSE
    assert longest_pass + LONGEST_PAUSE < TURN.total_seconds()


def test_removal_pauses_and_no_other_sweep_does() -> None:
    paced = {sweep.name for sweep in sweeps(Config()) if sweep.share is not None}

    assert paced == {"remove_ended", "remove_idempotency_keys"}


async def test_a_run_with_a_turn_continues_until_nothing_is_left(database: Database, given: Given) -> None:
    await removable(given, 5)

    assert await run_once(database, REMOVE, turn=a_turn(database)) == 5
    assert await given.count("executions") == 0


async def test_only_one_process_at_a_time_runs_a_sweep_with_a_share(database: Database, given: Given) -> None:
    await removable(given, 5)
    first, second = a_turn(database), a_turn(database)
    assert await first.next()

    assert await run_once(database, REMOVE, turn=second) == 0
    assert await run_once(database, REMOVE, turn=first) == 5
    await first.end()
    assert await second.next()


async def test_another_process_continues_the_turn_of_a_process_that_died(database: Database, given: Given) -> None:
    await a_turn(database).next()
    [before] = await given.rows("select * from flowfabric.turns")
    second = a_turn(database)
    assert not await second.next()
    await given.time_passes(minutes=2)

    assert await second.next()
    [after] = await given.rows("select * from flowfabric.turns")
    assert (after["holder"] != before["holder"], after["since"]) == (True, before["since"])


async def test_a_turn_of_long_ago_is_not_continued(database: Database, given: Given) -> None:
    await a_turn(database).next()
    [before] = await given.rows("select * from flowfabric.turns")
    await given.time_passes(hours=1)

    assert await a_turn(database).next()
    [after] = await given.rows("select * from flowfabric.turns")
    assert after["since"] > before["since"]


async def test_a_process_ends_only_its_own_turn(database: Database) -> None:
    first, second = a_turn(database), a_turn(database)
    assert await first.next()
    await second.end()

    assert not await second.next()
    assert await first.next()


async def test_a_locked_turn_delays_no_process(database: Database, connect: Connect) -> None:
    await a_turn(database).next()
    other = await connect()
    async with other.transaction():
        await other.execute("update flowfabric.turns set ends_at = ends_at - interval '1 hour'")

        async with asyncio.timeout(5):
            assert not await a_turn(database).next()


async def test_the_loops_of_two_processes_remove_everything(
    database: Database, database_url: str, given: Given, connect: Connect
) -> None:
    """Also what another transaction had locked: the next run takes it."""
    await removable(given, 7)
    locking = await connect()
    async with Database(Config(), database_url) as other:
        loops = [asyncio.create_task(run_sweeps(each, [REMOVE])) for each in (database, other)]
        async with locking.transaction():
            await locking.execute("select from flowfabric.removals order by ended_at limit 2 for update")
            await until(partial(left, given, 2))
        await until(partial(left, given, 0))
        for loop in loops:
            loop.cancel()
        await asyncio.wait(loops)


async def test_a_single_run_of_each_sweep_takes_no_turn_and_removes_everything(
    database: Database, given: Given
) -> None:
    await removable(given, 5)
    assert await a_turn(database).next()
    listed = [Sweep("remove_ended", OFTEN, executions.remove_ended, limit=2, share=1e-9)]

    assert [run.moved for run in await run_each(database, listed)] == [5]


async def test_a_turn_taken_before_the_clock_was_moved_back_is_over(database: Database, given: Given) -> None:
    await given.time_passes(days=2)
    assert await Turn(database, "remove_ended", 0.1).next()
    await given.time_passes(days=-2)

    assert await Turn(database, "remove_ended", 0.1).next()
    assert not await Turn(database, "remove_ended", 0.1).next()
