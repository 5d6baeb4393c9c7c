"""Repeats: whatever interrupts a handler, a reader sees each of its frames once and in order."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import given as for_any
from hypothesis import strategies as st

from flowfabric import App, Context
from flowfabric.engine import claims, waits
from flowfabric.ids import ExecutionId
from flowfabric.model import Fence
from flowfabric.worker.leased import LeasedCalls
from flowfabric.worker.observer import Nobody
from flowfabric.worker.reports import Reports
from flowfabric.worker.run import Lost, run
from flowfabric.worker.running import Running
from flowfabric.worker.threads import Threads
from tests.conftest import SOAK
from tests.given import Given

HOUR = timedelta(hours=1)


class Act(NamedTuple):
    """What a handler does, and how often inside a step."""

    kind: Literal["frame", "write", "step", "sleep", "wait"]
    times: int


class Interruption(NamedTuple):
    """The end of a run in the middle: after so many acts that are not repeated."""

    how: Literal["crash", "fail"]
    after: int


ACTS = st.builds(Act, st.sampled_from(["frame", "write", "step", "step", "sleep", "wait"]), st.integers(0, 3))
INTERRUPTIONS = st.builds(Interruption, st.sampled_from(["crash", "fail"]), st.integers(0, 8))


class Leases:
    """Leases that the runs of this test always hold, as far as their worker knows."""

    def holds(self, fence: Fence) -> bool:
        return True

    def add(self, fences: object, asked_at: float) -> None:
        pass

    def release(self, fence: Fence) -> float | None:
        return None


class Play:
    """An execution whose handler does these acts, and is interrupted."""

    def __init__(self, app: App, given: Given, acts: Sequence[Act], interruptions: Sequence[Interruption]) -> None:
        self.given = given
        self.acts = acts
        self.interruptions = [*interruptions]
        self.acted = 0
        leased = LeasedCalls(app, Leases(), lease=30, lose=lambda _: None)
        self.threads = Threads()
        self.reports = Reports(
            app, leased, threads=self.threads, running=Running(), observer=Nobody(), due=lambda _: None
        )

        @app.task(retries=100, backoff="1ms", policy={"max_reclaim_count": 100})
        async def play(ctx: Context) -> None:
            await self.handler(ctx)

        self.task = play

    async def handler(self, ctx: Context) -> None:
        self.acted = 0
        out = ctx.stream("out")
        for number, act in enumerate(self.acts):
            await self.maybe_interrupted()
            await self.act(ctx, out, number, act)
        await self.maybe_interrupted()

    async def act(self, ctx: Context, out: Any, number: int, act: Act) -> None:
        async def step() -> None:
            for time in range(act.times):
                await out.write(f"{number}.{time} ")
                await self.maybe_interrupted()

        match act.kind:
            case "frame":
                await ctx.append_frame("out", f"{number} ")
            case "write":
                await out.write(f"{number} ")
            case "step":
                await ctx.step("step", step)
            case "sleep":
                await ctx.sleep(HOUR)
            case "wait":
                await ctx.wait_for_signal(f"signal {number}", timeout=HOUR)

    async def maybe_interrupted(self) -> None:
        self.acted += 1
        if self.interruptions and self.acted > self.interruptions[0].after:
            if self.interruptions.pop(0).how == "fail":
                raise ConnectionError("down")
            running = asyncio.current_task()
            assert running is not None
            running.cancel()
            await asyncio.sleep(0)

    async def runs(self, execution_id: ExecutionId) -> None:
        """Run the execution until it has ended; after a crash its lease expires, and what was not sent is lost."""
        for _ in range(60):
            await self.given.time_passes(hours=1, minutes=1)
            await claims.expire_leases(self.given.conn)
            await waits.time_out_waits(self.given.conn)
            for claim in await self.given.claim():
                context = Context(self.reports, claim, await self.reports.read_journal(claim))
                outcome = await asyncio.create_task(run(self.task, claim, context, self.threads))
                if isinstance(outcome, Lost) and (sending := context._output._sending) is not None:
                    sending.cancel()
                await self.reports.report(claim, outcome)
            if await self.given.state(execution_id) == "completed":
                return
        raise AssertionError("the execution does not end")

    def expected(self) -> str:
        """What a reader of an uninterrupted run sees."""
        steps = {number: range(act.times) for number, act in enumerate(self.acts) if act.kind == "step"}
        shown = {number: f"{number} " for number, act in enumerate(self.acts) if act.kind in ("frame", "write")}
        shown |= {number: "".join(f"{number}.{time} " for time in times) for number, times in steps.items()}
        return "".join(text for _, text in sorted(shown.items()))


async def seen(given: Given, execution_id: ExecutionId) -> str:
    """What a reader has seen in the end: of a replaced attempt, what came before the last entry of its journal."""
    rows = await given.rows(
        """
        select f.payload from flowfabric.frames f
        join flowfabric.streams s on s.execution = f.execution and s.attempt = f.attempt
        where f.execution = $1
          and (f.attempt = (select e.attempt from flowfabric.executions e where e.id = f.execution) or f.at <= (
               select max(j.at) from flowfabric.executions e cross join lateral flowfabric._journal(e.partition, e.id) j
               where e.id = f.execution and j.at <= s.closed_at))
        order by f.attempt, f.ms, f.seq
        """,
        execution_id.uuid,
    )
    return "".join(msgspec.json.decode(row["payload"], type=str) for row in rows)


@settings(
    max_examples=300 if SOAK else 25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@for_any(acts=st.lists(ACTS, min_size=2, max_size=8), interruptions=st.lists(INTERRUPTIONS, max_size=3))
async def test_a_reader_sees_each_frame_once_whatever_interrupts_the_handler(
    app: App, given: Given, acts: Sequence[Act], interruptions: Sequence[Interruption]
) -> None:
    async with App(url=app.config.url) as fresh:
        play = Play(fresh, given, acts, interruptions)
        execution = await play.task.submit()

        await play.runs(execution.execution_id)

        assert await seen(given, execution.execution_id) == play.expected()
        await play.reports.close()
