"""Repeats: whatever interrupts a handler, a reader sees each of its frames once and in order."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as for_any
from hypothesis import strategies as st

from flowfabric import App, Context, Execution
from flowfabric.engine import claims, waits
from flowfabric.ids import ExecutionId
from flowfabric.model import Fence, Frame, Superseded
from flowfabric.worker.leased import LeasedCalls
from flowfabric.worker.observer import Nobody
from flowfabric.worker.reports import Reports
from flowfabric.worker.run import Lost, run
from flowfabric.worker.running import Running
from flowfabric.worker.threads import Threads
from tests.conftest import SOAK
from tests.given import Given

HOUR = timedelta(hours=1)

log = logging.getLogger("play")


@pytest.fixture(autouse=True)
def everything() -> Iterator[None]:
    log.setLevel(logging.INFO)
    yield
    log.setLevel(logging.NOTSET)


class Act(NamedTuple):
    """What a handler does, and how often inside a step. Two steps beside each other are not interrupted."""

    kind: Literal["frame", "write", "log", "progress", "step", "thread", "both", "sleep", "wait"]
    times: int


class Interruption(NamedTuple):
    """The end of a run in the middle: after so many acts that are not repeated."""

    how: Literal["crash", "fail", "stop"]
    after: int


ACTS = st.builds(
    Act,
    st.sampled_from(["frame", "write", "log", "progress", "step", "step", "thread", "both", "sleep", "wait"]),
    st.integers(0, 3),
)
INTERRUPTIONS = st.builds(Interruption, st.sampled_from(["crash", "fail", "stop"]), st.integers(0, 8))


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
        self.is_stopped = False
        leased = LeasedCalls(app, Leases(), lease=30, lose=lambda _: None)
        self.threads = Threads()
        self.reports = Reports(
            app, leased, threads=self.threads, running=Running(), observer=Nobody(), due=lambda _: None
        )

        @app.task(retries=100, backoff="1ms", policy={"max_reclaim_count": 100}, capture_logs=True)
        async def play(ctx: Context) -> None:
            await self.handler(ctx)

        self.task = play

    async def handler(self, ctx: Context) -> None:
        self.acted = 0
        for number, act in enumerate(self.acts):
            await self.maybe_interrupted()
            await self.act(ctx, number, act)
        await self.maybe_interrupted()

    async def act(self, ctx: Context, number: int, act: Act) -> None:
        async def step(name: str) -> None:
            for time in range(act.times):
                await ctx.stream(name).write(f"{number}.{time} ")
                if act.kind == "step":
                    await self.maybe_interrupted()

        def log_in_thread() -> None:
            for time in range(act.times):
                log.info("%d.%d ", number, time)

        match act.kind:
            case "frame":
                await ctx.append_frame("out", f"{number} ")
            case "write":
                await ctx.stream("out").write(f"{number} ")
            case "log":
                log.info("%d ", number)
            case "progress":
                await ctx.progress(number, str(act.times))
            case "step":
                await ctx.step("step", step, "out")
            case "thread":
                await ctx.step("thread", log_in_thread)
            case "both":
                await asyncio.gather(ctx.step("left", step, "left"), ctx.step("right", step, "right"))
            case "sleep":
                await ctx.sleep(HOUR)
            case "wait":
                await ctx.wait_for_signal(f"signal {number}", timeout=HOUR)

    async def maybe_interrupted(self) -> None:
        self.acted += 1
        if self.interruptions and self.acted > self.interruptions[0].after:
            interruption = self.interruptions.pop(0)
            if interruption.how == "fail":
                raise ConnectionError("down")
            self.is_stopped = interruption.how == "stop"
            self.running.cancel()
            await asyncio.Event().wait()

    async def runs(self, execution_id: ExecutionId) -> None:
        """Run the execution until it has ended.

        After a crash its lease expires, and what was not sent is lost. A worker that is stopped releases it.
        """
        for _ in range(60):
            await self.given.time_passes(hours=1, minutes=1)
            await claims.expire_leases(self.given.conn)
            await waits.time_out_waits(self.given.conn)
            for claim in await self.given.claim():
                context = Context(self.reports, claim, await self.reports.read_journal(claim))
                self.is_stopped = False
                self.running = asyncio.create_task(run(self.task, claim, context, self.threads))
                outcome = await self.running
                if isinstance(outcome, Lost) and self.is_stopped:
                    await self.reports.requeue(claim)
                elif isinstance(outcome, Lost) and (sending := context._output._sending) is not None:
                    sending.cancel()
                await self.reports.report(claim, outcome)
            if await self.given.state(execution_id) == "completed":
                return
        raise AssertionError("the execution does not end")

    def expected(self) -> dict[str, str]:
        """What a reader of an uninterrupted run sees, by the type of the frames."""
        shown: defaultdict[str, str] = defaultdict(str)
        for number, act in enumerate(self.acts):
            texts = [f"{number}.{time} " for time in range(act.times)]
            match act.kind:
                case "frame" | "write":
                    shown["out"] += f"{number} "
                case "log":
                    shown["log"] += f"INFO play: {number} \n"
                case "step":
                    shown["out"] += "".join(texts)
                case "thread":
                    shown["log"] += "".join(f"INFO play: {text}\n" for text in texts)
                case "both":
                    shown["left"] += "".join(texts)
                    shown["right"] += "".join(texts)
        return {name: text for name, text in shown.items() if text}

    def last_progress(self) -> float | None:
        return max((number for number, act in enumerate(self.acts) if act.kind == "progress"), default=None)


async def seen(execution: Execution[Any], attempts: Literal["valid", "all"]) -> dict[str, str]:
    """What a reader has seen in the end, by the type of the frames: without what a mark has told it to forget."""
    kept: list[Frame] = []
    async for frame in execution.frames(attempts=attempts):
        if isinstance(frame, Superseded):
            kept = [old for old in kept if frame.keeps(old)]
        elif isinstance(frame, Frame) and frame.text is not None:
            kept.append(frame)
    return {name: "".join(it.text or "" for it in kept if it.type == name) for name in {it.type for it in kept}}


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
        live = asyncio.create_task(seen(execution, "valid"))

        await play.runs(execution.execution_id)

        assert await live == play.expected()
        assert await seen(execution, "valid") == play.expected()
        assert await seen(execution, "all") == play.expected()
        progress = await execution.progress()
        assert (progress and progress.percent) == play.last_progress()
        await play.reports.close()
