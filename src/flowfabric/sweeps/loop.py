"""The loop that runs the sweeps, each at its own pace; one that fails backs off and does not stop the others."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from flowfabric.errors import Unavailable
from flowfabric.model import Swept
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.database import Database
from flowfabric.sweeps.registry import Sweep

log = logging.getLogger("flowfabric.sweeps")

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 15.0


class SweepRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one run of a sweep did: how many rows it moved, or why it failed."""

    sweep: str
    moved: int
    error: str | None = None


Woken = Callable[[Swept], None]


def _nobody(_: Swept) -> None:
    """Whoever waits finds it by looking."""


async def run_sweeps(database: Database, sweeps: Sequence[Sweep], *, woken: Woken = _nobody) -> None:
    """Run the sweeps until cancelled. Many processes may do so at once.

    `woken` is called after every pass that moved something, with the lanes that have work and what has ended.
    """
    async with asyncio.TaskGroup() as group:
        for sweep in sweeps:
            group.create_task(_repeat(database, sweep, woken), name=f"sweep {sweep.name}")


async def run_each(database: Database, sweeps: Sequence[Sweep]) -> list[SweepRun]:
    """Run every sweep once, one after the other; one that fails does not stop those behind it.

    Raises `Unavailable` when there is no database to sweep.
    """
    return [await _run(database, sweep) for sweep in sweeps]


async def run_once(database: Database, sweep: Sweep, woken: Woken = _nobody) -> int:
    """Run one sweep until it finds nothing more, and return how many rows it moved.

    When a pass fails, its rows are taken one by one; those that cannot be processed are stepped over and reported.
    """
    total, stepped_over = 0, 0
    while True:
        failed = 0
        try:
            moved = await _pass(database, sweep, woken, limit=sweep.limit, passing=stepped_over)
        except Unavailable:
            raise
        except Exception:
            await _pass(database, sweep, woken, limit=0)  # fails as well when the matter is the sweep and not a row
            moved, failed = await _one_by_one(database, sweep, woken, stepped_over)
        total += moved
        stepped_over += failed
        if moved + failed < sweep.limit:
            return total


async def _one_by_one(database: Database, sweep: Sweep, woken: Woken, stepped_over: int) -> tuple[int, int]:
    """Take as many rows as a pass would, each on its own: how many were moved, and how many could not be."""
    moved, failed = 0, 0
    while moved + failed < sweep.limit:
        try:
            taken = await _pass(database, sweep, woken, limit=1, passing=stepped_over + failed)
        except Unavailable:
            raise
        except Exception as error:
            failed += 1
            log.error("sweep %s cannot process row %d and steps over it: %s", sweep.name, stepped_over + failed, error)
        else:
            if taken == 0:
                break
            moved += taken
    return moved, failed


async def _pass(database: Database, sweep: Sweep, woken: Woken, *, limit: int, passing: int = 0) -> int:
    swept = await database.run(partial(sweep.run, limit=limit, passing=passing), aside=True)
    if swept.lanes or swept.ended:
        woken(swept)
    return swept.moved


async def _run(database: Database, sweep: Sweep) -> SweepRun:
    try:
        return SweepRun(sweep=sweep.name, moved=await run_once(database, sweep))
    except Unavailable:
        raise
    except Exception as error:
        return SweepRun(sweep=sweep.name, moved=0, error=str(error))


async def _repeat(database: Database, sweep: Sweep, woken: Woken) -> None:
    every = sweep.every.total_seconds()
    # Soon, so that short-lived processes sweep too; not at once, because many processes may start together.
    backoff = Backoff(min(every, FIRST_PAUSE), max(every, LONGEST_PAUSE), jitter=0.2)
    await backoff.wait()
    backoff = Backoff(every, max(every, LONGEST_PAUSE), jitter=0.2)
    while True:
        try:
            await run_once(database, sweep, woken)
        except Exception as error:
            log.warning("sweep %s failed, retrying in about %.2g s: %s", sweep.name, backoff.current, error)
        else:
            backoff.reset()
        await backoff.wait()
