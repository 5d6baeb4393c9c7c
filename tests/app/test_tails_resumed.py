"""Property: a reader that is killed and resumed at every frame sees what a reader sees that is never killed."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import given as for_any
from hypothesis import strategies as st

from flowfabric import App, Execution
from flowfabric.engine import attempts, claims, executions, streams, waits
from flowfabric.model import Claim, FailureClass, Frame, Superseded, Suspension, Wish
from tests.app.scene import TIMEOUT
from tests.app.test_tails import Found, read, resuming, save
from tests.conftest import SOAK
from tests.engine.streams.scene import appended, frame, patch
from tests.given import Given, until

POLICY = {"retry": {"max_retries": 100}, "max_reclaim_count": 100, "max_replay_count": 100}
ACTS = ["append", "append", "append", "summary", "save", "delay", "suspend", "fail", "lapse"]


class Play:
    """An execution that puts out numbered frames and is suspended, retried and reclaimed in between."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.number = 0
        self.waits = 0

    async def act(self, kind: str, claim: Claim) -> Claim:
        """Do one thing; return the claim with which the execution continues."""
        conn, fence = self.given.conn, claim.fence
        self.number += 1
        match kind:
            case "append":
                await appended(conn, claim, b"%d" % self.number, b'"%d again"' % self.number)
                return claim
            case "summary":
                asked = [patch(claim, b'{"n": %d}' % self.number), frame(claim, b"%d" % self.number)]
                await streams.append_frames(conn, asked)
                return claim
            case "save":
                await save(self.given, claim, f"step {self.number}")
                return claim
            case "delay":
                await attempts.delay(conn, fence)
            case "suspend":
                await self.suspend(claim)
            case "fail":
                await attempts.fail(conn, fence, "down", class_=FailureClass.TRANSIENT)
            case _:
                await self.given.time_passes(minutes=1)
                await claims.expire_leases(conn)
        await self.given.time_passes(minutes=10)
        [again] = await self.given.claim()
        return again

    async def suspend(self, claim: Claim) -> None:
        self.waits += 1
        what = Suspension(
            condition={"kind": "single", "waitpoint": "go", "name": "go"},
            waitpoints=["go"],
            timeout=timedelta(minutes=1),
            timeout_behavior="auto_resume",
        )
        await waits.suspend(self.given.conn, claim.fence, [Wish(name="go", occurrence=self.waits, what=what)])
        await self.given.time_passes(minutes=2)
        await waits.time_out_waits(self.given.conn)


def shown(found: Sequence[Found]) -> list[bytes]:
    """What a reader that follows the marks shows in the end."""
    kept: list[Frame] = []
    for it in found:
        if isinstance(it, Superseded):
            kept = [old for old in kept if it.keeps(old)]
        elif isinstance(it, Frame):
            kept.append(it)
    return [it.payload for it in kept]


async def plays(app: App, given: Given, execution: Execution[object], acts: Sequence[str]) -> None:
    play = Play(given)
    [claim] = await given.claim()
    for kind in acts:
        claim = await play.act(kind, claim)
        app.notifier.send(streams=[str(execution.execution_id)])
    await attempts.complete(given.conn, claim.fence)
    app.notify(ended=[execution.execution_id])


@settings(
    max_examples=200 if SOAK else 15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@for_any(acts=st.lists(st.sampled_from(ACTS), min_size=1, max_size=12), replays=st.lists(st.booleans(), max_size=2))
async def test_a_tail_resumed_at_every_frame_yields_the_same_sequence(
    app: App, given: Given, acts: Sequence[str], replays: Sequence[bool]
) -> None:
    async with App(url=app.config.url) as fresh, asyncio.timeout(TIMEOUT):
        execution = fresh.execution(await given.submitted(policy=POLICY))
        follower = asyncio.create_task(read(execution, attempts="all"))
        killed = asyncio.create_task(resuming(execution, attempts="all"))
        await until(lambda: fresh.tails.waiting_count == 2)
        await plays(fresh, given, execution, acts)
        assert await killed == await follower == await read(execution, attempts="all")
        for from_scratch in replays:
            await executions.replay(given.conn, execution.execution_id, by="ops", from_scratch=from_scratch)
            await plays(fresh, given, execution, ["append"])

        whole = await read(execution, attempts="all")
        valid = await read(execution, attempts="valid")
        assert shown(valid) == shown(whole)
        for found, option in ((whole, "all"), (valid, "valid")):
            for place, it in enumerate(found):
                assert await read(execution, it.cursor, attempts=option) == found[place + 1 :]
