"""The loop that runs the sweeps, each at its own interval. A sweep that fails backs off; the others continue."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from flowfabric.errors import RowLocked, Unavailable
from flowfabric.model import Swept
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.database import Database
from flowfabric.sweeps.registry import Sweep
from flowfabric.sweeps.turns import Turn

log = logging.getLogger("flowfabric.sweeps")

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 15.0
SHORT_PAUSE = 2.0  # the longest one of a frequent sweep: after an outage, dead workers must be noticed soon
SLOW_SHARE = 50  # at most one part in this many of the time goes into a sweep that finds nothing
MOST_SKIPPED = 10_000  # rows; a run that has skipped more of them leaves the rest to the next run


class SweepRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one run of a sweep: how many rows it moved, or why it failed."""

    sweep: str
    moved: int
    error: str | None = None


Woken = Callable[[Swept], None]


def _notify_nobody(_: Swept) -> None:
    """Send no notification; workers and waiting callers find the changes when they poll."""


async def run_sweeps(database: Database, sweeps: Sequence[Sweep], *, woken: Woken = _notify_nobody) -> None:
    """Run the sweeps until cancelled. Many processes may do so at the same time.

    After every pass that made work claimable or ended executions, `woken` is called with those lanes and executions.
    """
    async with asyncio.TaskGroup() as group:
        for sweep in sweeps:
            group.create_task(_repeat(database, sweep, woken), name=f"sweep {sweep.name}")


async def run_each(database: Database, sweeps: Sequence[Sweep]) -> list[SweepRun]:
    """Run every sweep once, one after the other. If a sweep fails, the next ones still run.

    Raises `Unavailable` if the database is unavailable.
    """
    return [await _run(database, sweep) for sweep in sweeps]


async def run_once(database: Database, sweep: Sweep, woken: Woken = _notify_nobody, turn: Turn | None = None) -> int:
    """Run one sweep until it finds no more rows, and return how many rows it moved.

    With a turn, it pauses between two passes, and stops if another process has the turn. Rows that are locked are
    skipped. If a pass fails, its rows are processed one by one; rows that fail are logged and skipped.
    """
    total, skipped = 0, 0
    while turn is None or await turn.next():
        try:
            swept = await _pass(database, sweep, woken, limit=sweep.limit, passing=skipped)
            moved, left = swept.moved, swept.locked
        except Exception as error:
            if isinstance(error, Unavailable) and not isinstance(error, RowLocked):
                raise
            await _pass(database, sweep, woken, limit=0)  # raises too if the sweep itself fails, not a row
            moved, left = await _one_by_one(database, sweep, woken, skipped)
        total += moved
        skipped += left
        if moved + left < sweep.limit or skipped > MOST_SKIPPED:
            break
    return total


async def _one_by_one(database: Database, sweep: Sweep, woken: Woken, skipped: int) -> tuple[int, int]:
    """Process the rows of one pass one at a time; return how many were moved, and how many failed or are locked."""
    moved, left = 0, 0
    while moved + left < sweep.limit:
        try:
            swept = await _pass(database, sweep, woken, limit=1, passing=skipped + left)
        except RowLocked:
            left += 1
        except Unavailable:
            raise
        except Exception as error:
            left += 1
            log.error("sweep %s could not process row %d; skipping it: %s", sweep.name, skipped + left, error)
        else:
            if swept.moved + swept.locked == 0:
                break
            moved += swept.moved
            left += swept.locked
    return moved, left


async def _pass(database: Database, sweep: Sweep, woken: Woken, *, limit: int, passing: int = 0) -> Swept:
    swept = await database.run(partial(sweep.run, limit=limit, passing=passing), aside=True, wait=False)
    if swept.lanes or swept.ended:
        woken(swept)
    return swept


async def _run(database: Database, sweep: Sweep) -> SweepRun:
    try:
        return SweepRun(sweep=sweep.name, moved=await run_once(database, sweep))
    except Unavailable:
        raise
    except Exception as error:
        return SweepRun(sweep=sweep.name, moved=0, error=str(error))


def pause(sweep: Sweep, moved: int, took: float, longest: float) -> float:
    """How many seconds to wait after a run that `took` so long.

    While a transaction holds an old snapshot, a sweep reads through all dead rows to find nothing. It then runs less
    often, unless its interval is shorter than two seconds: those sweeps notice dead workers, and start what is due.
    """
    every = sweep.every.total_seconds()
    return every if moved or every < 2 else max(every, min(SLOW_SHARE * took, longest))


async def _repeat(database: Database, sweep: Sweep, woken: Woken) -> None:
    every = sweep.every.total_seconds()
    # Start soon, so that short-lived processes sweep too, but not at once: many processes may start together.
    longest = max(every, min(LONGEST_PAUSE, max(8 * every, SHORT_PAUSE)))
    backoff = Backoff(min(every, FIRST_PAUSE), longest, jitter=0.2)
    turn = Turn(database, sweep.name, sweep.share) if sweep.share else None
    while True:
        await backoff.wait()
        try:
            began = time.monotonic()
            moved = await run_once(database, sweep, woken, turn)
            took = time.monotonic() - began
            if turn is not None:
                await turn.end()
        except Exception as error:
            log.warning("sweep %s failed; retrying in about %.2g s: %s", sweep.name, backoff.current, error)
        else:
            backoff.first = pause(sweep, moved, took, longest)
            backoff.reset()
