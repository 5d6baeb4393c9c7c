"""Where the time of one execution on an idle worker goes, part by part, from the submit call to the result.

Times come from three clocks that are the same on one machine: the caller's, the handler's, and the database's, from the
events. We assume that a notification reaches the worker when it reaches the caller, which listens on the same channel.
"""

import asyncio
import random
import time
from itertools import pairwise
from statistics import median

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.scenarios.latency import GAP, WARM
from benchmarks.workers import opened, working
from flowfabric.app import App
from flowfabric.postgres.driver import Connection
from flowfabric.postgres.notify import Notification

COUNT = 300

EVENTS = "select kind, extract(epoch from at)::float8 as at from flowfabric.events where execution = $1 order by id"
KINDS = ("execution_submitted", "lease_acquired", "execution_completed")
PARTS = (
    "submit_call_ms",  # from the call until the function runs in the database
    "submit_commit_ms",  # until the call has returned: the submission is on disk
    "hint_ms",  # until the notification has been received
    "claim_call_ms",  # until the worker's claim runs in the database
    "claim_commit_ms",  # until the handler starts
    "complete_call_ms",  # the handler, and until its completion runs in the database
    "complete_hint_ms",  # until its commit and its notification have reached the caller
    "result_ms",  # until the result is read
)


class Hearing:
    """When the notification about new work, and the one about the end, were received."""

    def __init__(self) -> None:
        self.work = self.end = 0.0

    def heard(self, hint: Notification) -> None:
        if hint.lanes and not self.work:
            self.work = time.time()
        if hint.ended and not self.end:
            self.end = time.time()


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT)
    async with opened(ground) as app, working(ground, 1), app.database.connection() as conn:
        taken = [await once(app, conn) for _ in range(WARM + count)][WARM:]
    for part, seconds in zip(PARTS, zip(*taken, strict=True), strict=True):
        ground.tell(**{part: median(seconds) * 1_000})
    ground.tell(all_ms=median(sum(parts) for parts in taken) * 1_000)
    return count


async def once(app: App, conn: Connection) -> list[float]:
    """Return the seconds of each part."""
    await asyncio.sleep(random.uniform(*GAP))
    hearing = Hearing()
    forget = app.notifier.listen(hearing.heard)
    called_at = time.time()
    execution = await tasks.began_by_date.submit()
    submitted_at = time.time()
    began_at = await execution.result()
    ended_at = time.time()
    forget()
    events = {each["kind"]: each["at"] for each in await conn.fetch(EVENTS, execution.execution_id.uuid)}
    submitting, claiming, completing = (events[kind] for kind in KINDS)
    # A poll may have been faster than the notification.
    hinted_at, told_at = hearing.work or submitted_at, hearing.end or ended_at
    moments = (
        called_at, submitting, submitted_at, hinted_at, claiming, began_at, completing, told_at, ended_at,
    )  # fmt: skip
    return [later - earlier for earlier, later in pairwise(moments)]


scenario = Scenario(
    name="latency_parts",
    about="one at a time on an idle worker: the p50 of each part of the way",
    run=run,
    unit="ms, p50",
    figure="all_ms",
    less_is_better=True,
)
