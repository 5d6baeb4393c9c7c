"""Captured logs: what a handler logs is shown in the stream of its execution, once and in order."""

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import pytest

from flowfabric import App, Context, Execution, ExecutionFailed, SyncContext
from flowfabric.errors import FlowFabricError
from flowfabric.handler.captured import LogHandler
from flowfabric.handler.runtime import RunningStep
from flowfabric.model import Appended, Claim, FrameToAppend
from flowfabric.worker.leased import LeasedCalls
from flowfabric.worker.observer import Nobody
from flowfabric.worker.reports import Reports
from flowfabric.worker.run import run
from flowfabric.worker.running import Running
from flowfabric.worker.threads import Threads
from tests.app.scene import TIMEOUT, happens, later, working
from tests.given import Given
from tests.handler.test_frames import frames
from tests.handler.test_repeats import Leases

log = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def everything() -> Iterator[None]:
    log.setLevel(logging.DEBUG)
    yield
    log.setLevel(logging.NOTSET)


@contextmanager
def only_handler(handler: logging.Handler) -> Iterator[None]:
    """Log without the handlers of pytest, which are slow, raise errors and cannot print a lone surrogate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root, "handlers", [handler])
        yield


async def lines(given: Given, execution: Execution[Any], attempt: int | None = None) -> list[str]:
    """The captured lines, each as its last word."""
    return [line.rpartition(" ")[2] for line in (await text(given, execution, attempt)).splitlines()]


async def text(given: Given, execution: Execution[Any], attempt: int | None = None) -> str:
    found = await frames(given, execution, attempt)
    return "".join(frame.data for frame in found if frame.type == "log")


async def test_records_of_the_handler_its_steps_tasks_and_threads_are_frames_of_kind_stderr(
    app: App, given: Given
) -> None:
    @app.task(capture_logs=True)
    async def ship(ctx: Context) -> None:
        log.info("here")
        await ctx.step("thread", lambda: log.debug("in %s", "step"))
        await asyncio.to_thread(log.warning, "thread")
        await asyncio.create_task(ctx.append_frame("end"))
        logging.getLogger("a.library").error("library")

    async with working(app):
        execution = await ship.submit()
        await execution.result(TIMEOUT)
        log.error("outside")
    found = await frames(given, execution)
    shown = "".join(frame.data for frame in found if frame.type == "log")
    assert shown == "INFO shop: here\nDEBUG shop: in step\nWARNING shop: thread\nERROR a.library: library\n"
    assert {(frame.kind, frame.mode) for frame in found if frame.type == "log"} == {("stderr", "durable")}
    assert found[-1].data == "ERROR a.library: library\n"


async def test_each_run_shows_its_own_records_only(app: App, given: Given) -> None:
    @app.task(capture_logs=True)
    async def ship(number: int) -> None:
        for _ in range(20):
            log.info("order %d", number)
            await asyncio.sleep(0)

    @app.task
    async def silent() -> None:
        log.error("not captured")

    async with working(app):
        executions = [*await ship.submit_many([(number,) for number in range(20)]), await silent.submit()]
        for execution in executions:
            await execution.result(TIMEOUT)
    for number, execution in enumerate(executions[:-1]):
        assert await lines(given, execution) == [str(number)] * 20
    assert await frames(given, executions[-1]) == []


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (True, ["debug", "warning", "error"]),
        ("warning", ["warning", "error"]),
        (logging.ERROR, ["error"]),
        (False, []),
    ],
)
async def test_a_level_is_the_lowest_that_is_shown(
    app: App, given: Given, level: bool | int | str, shown: list[str]
) -> None:
    @app.task(capture_logs=level)
    async def ship() -> None:
        for name in ("debug", "warning", "error"):
            getattr(log, name)(name)

    async with working(app):
        execution = await ship.submit()
        await execution.result(TIMEOUT)
    assert await lines(given, execution) == shown


@pytest.mark.parametrize("level", ["loud", -1, None, 1.5, ["INFO"]])
def test_an_unknown_level_is_refused_when_the_task_is_declared(app: App, level: Any) -> None:
    with pytest.raises(ValueError, match=r"capture_logs .* is invalid"):

        @app.task(capture_logs=level)
        async def ship() -> None: ...


async def test_odd_records_are_shown_as_well_as_text_can(app: App, given: Given) -> None:
    @app.task(capture_logs=True)
    async def ship() -> None:
        log.info({"a": 1})
        log.info("nul \0, surrogate \ud800, 💡")
        try:
            raise ConnectionError("down")
        except ConnectionError:
            log.exception("could not %s", "ship")
        log.error("nothing raised", exc_info=True)
        log.info("line 1\nline 2", stack_info=True)
        log.info("x" * 100_000)

    with only_handler(logging.NullHandler()):
        async with working(app):
            execution = await ship.submit()
            await execution.result(TIMEOUT)
    said = await text(given, execution)
    assert said.startswith(
        "INFO shop: {'a': 1}\nINFO shop: nul \0, surrogate \\ud800, 💡\nERROR shop: could not ship\n"
    )
    assert "Traceback (most recent call last):" in said
    assert "ConnectionError: down\nERROR shop: nothing raised\nINFO shop: line 1\nline 2\nStack" in said
    assert said.endswith("\nINFO shop: " + "x" * 100_000 + "\n")


async def test_a_record_that_cannot_be_formatted_does_not_stop_the_handler(
    app: App, given: Given, capsys: pytest.CaptureFixture[str]
) -> None:
    class Odd:
        def __str__(self) -> str:
            log.info("while it is formatted")
            raise RuntimeError("no text")

    @app.task(capture_logs=True)
    async def ship() -> str:
        log.info("%d", "no number")
        log.info("%s", Odd())
        log.info("fine")
        return "shipped"

    with only_handler(logging.NullHandler()):
        async with working(app):
            execution = await ship.submit()
            assert await execution.result(TIMEOUT) == "shipped"
    assert await lines(given, execution) == ["formatted", "fine"]
    assert "no number" in capsys.readouterr().err


async def test_a_resumed_run_and_a_retry_show_nothing_again(app: App, given: Given) -> None:
    @app.task(capture_logs=True, retries=1, backoff="1ms")
    async def ship(ctx: Context) -> None:
        log.info("start")
        await ctx.step("pack", log.info, "packed")
        log.info("slept")
        await ctx.sleep("1h")
        log.info("awake")
        if ctx.attempt == 1:
            raise ConnectionError("down")

    async with working(app):
        execution = await ship.submit()
        await happens(execution, "execution_delayed")
        await later(app, given, execution, hours=1)
        await execution.result(TIMEOUT)
    assert await lines(given, execution, 1) == ["start", "packed", "slept", "awake"]
    assert await lines(given, execution, 2) == ["awake"]


async def test_what_a_failed_run_logged_is_shown(app: App, given: Given) -> None:
    @app.task(capture_logs=True)
    def ship(ctx: SyncContext) -> None:
        try:
            raise ConnectionError("down")
        except ConnectionError:
            log.exception("failed")
            raise

    async with working(app):
        execution = await ship.submit()
        with pytest.raises(ExecutionFailed, match="down"):
            await execution.result(TIMEOUT)
    assert "ConnectionError: down" in await text(given, execution)


async def test_logs_and_streams_of_a_run_keep_their_order(app: App, given: Given) -> None:
    @app.task(capture_logs=True)
    async def ship(ctx: Context) -> None:
        out = ctx.stream("answer")
        for number in range(50):
            log.info("%d", number)
            await out.write(f"{number}")

    @app.task(capture_logs=True)
    def ship_sync(ctx: SyncContext) -> None:
        out = ctx.stream("answer")
        for number in range(50):
            log.info("%d", number)
            out.write(f"{number}")

    async with working(app):
        executions = [await ship.submit(), await ship_sync.submit()]
        for execution in executions:
            await execution.result(TIMEOUT)
    for execution in executions:
        shown = "".join(frame.data for frame in await frames(given, execution))
        assert shown == "".join(f"INFO shop: {number}\n{number}" for number in range(50))


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_flood_of_records_is_bounded_and_says_how_many_are_missing(
    app: App, given: Given, *, in_thread: bool
) -> None:
    def flood() -> None:
        for number in range(10_000):
            log.info("%05d %s", number, "x" * 100)

    @app.task(capture_logs=True)
    async def ship() -> None:
        log.info("first")
        if in_thread:
            thread = threading.Thread(target=copy_context().run, args=[flood])
            thread.start()
            thread.join()  # so the event loop has no turn meanwhile
        else:
            flood()

    with only_handler(logging.NullHandler()):
        async with working(app):
            execution = await ship.submit()
            await execution.result(TIMEOUT)
    said = (await text(given, execution)).splitlines()
    missing = [int(line.split()[2].replace(",", "")) for line in said if "missing here" in line]
    assert said[0] == "INFO shop: first"
    assert sum(missing) + len(said) - len(missing) == 10_001
    assert sum(missing) > 5_000


async def test_many_threads_log_at_once_and_nothing_is_lost(app: App, given: Given) -> None:
    @app.task(capture_logs=True)
    async def ship(ctx: Context) -> None:
        def says(name: str) -> None:
            for number in range(50):
                log.info("%s%d", name, number)

        await asyncio.gather(*(ctx.step("say", says, name) for name in "abcdefgh"))

    async with working(app):
        execution = await ship.submit()
        await execution.result(TIMEOUT)
    found = await lines(given, execution)
    for name in "abcdefgh":
        assert [line for line in found if line[0] == name] == [f"{name}{number}" for number in range(50)]


async def test_the_log_of_the_worker_about_a_run_is_not_the_log_of_its_handler(app: App, given: Given) -> None:
    @app.task(capture_logs=True)
    async def ship(ctx: Context) -> None:
        logging.getLogger("flowfabric.worker").error("about the run")
        logging.getLogger("flowfabric").error("about the run")
        logging.getLogger("flowfabricated").error("handler")

    async with working(app):
        execution = await ship.submit()
        await execution.result(TIMEOUT)
    assert await lines(given, execution) == ["handler"]


class Chatty(Reports):
    """A worker whose library logs each call, as drivers do."""

    async def append_frames(
        self, claim: Claim, frames: Sequence[FrameToAppend]
    ) -> Sequence[Appended | FlowFabricError]:
        log.info("appending")
        return await super().append_frames(claim, frames)

    async def save_step(self, claim: Claim, step: RunningStep, result: bytes) -> bytes:
        log.info("saving")
        return await super().save_step(claim, step, result)


async def test_what_is_logged_while_frames_are_sent_does_not_cause_more_of_them(app: App, given: Given) -> None:
    @app.task(capture_logs=True)
    async def ship(ctx: Context) -> None:
        log.info("start")
        await ctx.step("pack", log.info, "packed")

    async with app:
        execution = await ship.submit()
        [claim] = await given.claim()
        threads, leased = Threads(), LeasedCalls(app, Leases(), lease=30, lose=lambda _: None)
        reports = Chatty(app, leased, threads=threads, running=Running(), observer=Nobody(), due=lambda _: None)
        await run(ship, claim, Context(reports, claim, ()), threads)
        await reports.close()
    assert await lines(given, execution) == ["start", "packed", "saving"]


async def test_the_root_logger_has_no_handler_of_ours_when_nothing_is_captured(app: App) -> None:
    inside: list[int] = []

    def ours() -> int:
        return sum(isinstance(each, LogHandler) for each in logging.root.handlers)

    @app.task(capture_logs=True)
    async def ship() -> None:
        await asyncio.sleep(0)
        inside.append(ours())

    async with working(app):
        for execution in await ship.submit_many([()] * 5):
            await execution.result(TIMEOUT)
    assert inside == [1] * 5
    assert ours() == 0


def test_what_python_prints_of_programs_without_handlers_is_still_printed(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("shop.till")

    with only_handler(LogHandler()):
        logger.warning("printed")
        logger.info("below WARNING")
        logger.addHandler(own := logging.NullHandler())
        logger.warning("for its own handler")
        logger.removeHandler(own)
    assert capsys.readouterr().err == "printed\n"


async def test_a_thread_that_logs_after_its_run_has_ended_does_no_harm(app: App, given: Given) -> None:
    ended, logged = threading.Event(), threading.Event()

    def later() -> None:
        ended.wait(TIMEOUT)
        log.info("too late")
        logged.set()

    @app.task(capture_logs=True)
    async def ship() -> None:
        log.info("in time")
        asyncio.get_running_loop().run_in_executor(None, later)

    async with working(app):
        execution = await ship.submit()
        await execution.result(TIMEOUT)
        ended.set()
        await asyncio.to_thread(logged.wait, TIMEOUT)
    assert await lines(given, execution) == ["time"]
