"""Several waits of one execution that are late in the same pass: the first ending counts, and nothing follows it."""

from datetime import timedelta

import pytest

from flowfabric.engine import waits
from flowfabric.model import Suspension, Wish
from tests.given import Given


def wish(name: str, behavior: str, minutes: int) -> Wish:
    asked = Suspension(
        condition={"kind": "single", "waitpoint": name},
        waitpoints=[name],
        timeout=timedelta(minutes=minutes),
        timeout_behavior=behavior,
    )
    return Wish(name=name, occurrence=1, what=asked)


@pytest.mark.parametrize(
    ("behaviors", "outcome"),
    [(("cancel", "fail"), "execution_cancelled"), (("fail", "expire"), "execution_failed")],
)
async def test_two_late_waits_with_different_endings_end_the_execution_once(
    given: Given, behaviors: tuple[str, str], outcome: str
) -> None:
    claim = await given.claimed()
    wishes = [wish(f"w{minute}", behavior, minute) for minute, behavior in enumerate(behaviors, 1)]
    await waits.suspend(given.conn, claim.fence, wishes)
    await given.time_passes(hours=1)

    swept = await waits.time_out_waits(given.conn)

    kinds = await given.events(claim.execution_id)
    assert kinds[-1] == outcome
    assert kinds.count("waitpoint_closed") == 2
    assert (swept.moved, list(swept.ended)) == (1, [claim.execution_id])


async def test_a_late_wait_that_resumes_does_not_resume_an_execution_that_another_late_wait_ends(given: Given) -> None:
    claim = await given.claimed()
    await waits.suspend(given.conn, claim.fence, [wish("a", "auto_resume", 1), wish("b", "fail", 2)])
    await given.time_passes(hours=1)

    await waits.time_out_waits(given.conn)

    assert (await given.events(claim.execution_id))[-1] == "execution_failed"
