"""A run does not start with a lease that is about to expire, however long the claim took to arrive."""

import time
from datetime import datetime

import pytest

from flowfabric.app import App
from tests.given import Given
from tests.worker.scene import working

HOUR = 3_600.0


@pytest.mark.parametrize(("asked_ago", "is_renewed"), [(0.0, False), (0.4 * HOUR, False), (0.6 * HOUR, True)])
async def test_a_lease_with_less_than_half_left_is_renewed_before_its_run_starts(
    database_url: str, given: Given, asked_ago: float, is_renewed: bool
) -> None:
    """The lease counts from before the claim was sent: the answer may have been on its way for that long."""
    app = App(url=database_url)
    seen: list[datetime] = []

    @app.task(name="report", lane="elsewhere")
    async def look() -> None:
        [row] = await given.rows("select expires_at from flowfabric.tickets")
        seen.append(row["expires_at"])

    async with working(app, lease="1h", lanes=["default"]) as worker:
        await given.submitted(lane="elsewhere")
        [claim] = await given.claim(
            worker=worker.name, instance=worker.instance, lanes=["elsewhere"], lease=worker.lease
        )
        worker._heartbeat.add([claim.fence], time.monotonic() - asked_ago)
        await worker._run(claim)

        assert (seen[0] > claim.expires_at) is is_renewed
        assert worker._heartbeat.left(claim.fence) > HOUR / 2
