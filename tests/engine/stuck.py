"""A system with executions stuck for every reason that the overview, `ff top` and `ff doctor` report."""

from datetime import timedelta

from flowfabric.engine import attempts, lanes, waits, workers
from tests.engine.waits.scene import wish
from tests.given import Given


async def everything_stuck(given: Given, *, later: timedelta = timedelta(seconds=6), crew: bool = True) -> None:
    """Create a paused lane, a missing capability, a due retry, a later retry, a wait, a hold and a lost worker.

    All of it happened `later` ago. With `crew`, a live worker serves most of the lanes.
    """
    conn = given.conn
    await given.claimed(lane="lost", lease=timedelta(minutes=10))
    await workers.register_worker(conn, "pool", instance=given.instance, lanes=["lost"], ttl=timedelta(seconds=5))
    for lane, backoff in [("due", timedelta(seconds=5)), ("later", timedelta(days=29, minutes=30))]:
        claim = await given.claimed(lane=lane, policy={"retry": {"max_retries": 3}})
        await attempts.fail(conn, claim.fence, "it broke", retry_after=backoff)
    await waits.suspend(conn, (await given.claimed(lane="waits")).fence, wish())
    await given.held(lane="held")
    await given.submitted(lane="paused")
    await lanes.pause_lane(conn, "paused", by="ada", reason="the printer burns")
    await given.submitted(lane="gpus", needs={"gpu", "cuda"})
    await given.submitted(lane="lonely")
    await given.time_passes(seconds=later.total_seconds())
    if crew:
        served = ["due", "later", "waits", "held", "paused", "gpus"]
        await workers.register_worker(conn, "crew", instance="crew-1", lanes=served, capabilities=["cuda"])
