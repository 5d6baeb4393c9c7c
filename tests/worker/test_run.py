"""One run: everything a handler returns or raises becomes exactly one outcome."""

import asyncio
import sys
from typing import Any

import pytest

from flowfabric.app import App
from flowfabric.app.executions import Execution
from flowfabric.engine import attempts
from flowfabric.errors import ExecutionFailed
from flowfabric.handler.context import Context
from flowfabric.model import Options, Submission
from tests.given import Given
from tests.worker.scene import until, working


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


async def leave() -> None:
    sys.exit(3)


async def cancel_itself() -> None:
    raise asyncio.CancelledError


async def unspeakable() -> None:
    raise Unspeakable


async def too_large() -> str:
    return "x" * 2_000_000


async def no_json() -> object:
    return object()


def stop_iteration() -> None:
    raise StopIteration("in a thread")


@pytest.mark.parametrize(
    ("handler", "class_", "reason"),
    [
        (leave, "transient", "SystemExit: 3"),
        (cancel_itself, "transient", "CancelledError: "),
        (unspeakable, "transient", "Unspeakable"),
        (too_large, "permanent", "payload_too_large: "),
        (no_json, "permanent", "no_json"),
        (stop_iteration, "transient", "RuntimeError: StopIteration('in a thread')"),
    ],
)
async def test_a_handler_that_ends_in_an_unusual_way_fails_alone(
    database_url: str, given: Given, handler: Any, class_: str, reason: str
) -> None:
    app = App(url=database_url)
    odd = app.task(handler)

    @app.task
    async def say(word: str) -> str:
        return word

    async with working(app, concurrency=1):
        failed = await failure(await odd.submit())
        assert await (await say.submit("still here")).result(20) == "still here"
        [attempt] = (await attempts.list_attempts(given.conn, failed.execution_id)).items

    assert attempt.failure is not None
    assert attempt.failure.class_ == class_
    assert reason in (attempt.failure.reason or "")


async def test_a_task_that_this_worker_does_not_have_is_left_for_another(
    database_url: str, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    app, other = App(url=database_url), App(url=database_url)

    @app.task
    async def known() -> None: ...

    @other.task
    async def unknown() -> str:
        return "done"

    async with working(app):
        execution = await app.submit("unknown", {"lane": "default"})
        await until(lambda: delayed(execution))
        assert "no running worker of lane default has task 'unknown'" in (await execution.explain()).sentence
    async with working(other):
        assert "no task unknown" in caplog.text
        await given.time_passes(seconds=6)
        assert await other.execution(execution.execution_id).result(20) == "done"

    assert await given.events(execution.execution_id) == [
        "execution_submitted", "lease_acquired", "execution_delayed", "lease_acquired", "execution_completed",
    ]  # fmt: skip


async def test_a_payload_of_the_wrong_type_fails_permanently(database_url: str, given: Given) -> None:
    app = App(url=database_url)

    @app.task(retries=5)
    async def count(number: int) -> None: ...

    async with working(app):
        asked = Submission(options=Options(task="count"), payload=b'{"number": "many"}')
        execution = Execution.of(app, await app.client.submit(asked))
        failed = await failure(execution)

    assert "ValidationError" in str(failed.raised)
    assert (await given.events(execution.execution_id)).count("lease_acquired") == 1


async def test_waits_in_a_task_group_unwind_together(database_url: str) -> None:
    app = App(url=database_url)

    @app.task
    async def both(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep("100ms"))
            group.create_task(ctx.sleep("200ms"))
        return "slept"

    async with working(app):
        assert await (await both.submit()).result(20) == "slept"


async def test_a_run_is_stopped_and_logged_when_its_attempt_times_out(
    database_url: str, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    app, cancelled = App(url=database_url), asyncio.Event()

    @app.task(timeout="200ms")
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with working(app):
        execution = await slow.submit()
        async with asyncio.timeout(8):
            await cancelled.wait()
        await attempts.time_out_attempts(given.conn)

    assert (await given.events(execution.execution_id))[-1] == "execution_failed"
    assert f"slow {execution.execution_id} used up its timeout in attempt 1 and was cancelled" in caplog.text


class Failure:
    """How an execution failed."""

    def __init__(self, execution: Execution[Any], raised: ExecutionFailed) -> None:
        self.execution_id = execution.execution_id
        self.raised = raised


async def failure(execution: Execution[Any]) -> Failure:
    """Return how the execution failed."""
    with pytest.raises(ExecutionFailed) as caught:
        await execution.result(20)
    return Failure(execution, caught.value)


async def delayed(execution: Execution[Any]) -> bool:
    return (await execution.state()) == "delayed"


async def test_a_worker_warns_of_lanes_that_no_task_is_in(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(lane="reports")
    async def report() -> None: ...

    async with working(app, lanes=["reports", "reprots"]):
        assert "no task of this app is in lane reprots" in caplog.text
        assert "lanes of its tasks: reports" in caplog.text
    caplog.clear()
    async with working(app):
        assert "no task of this app" not in caplog.text
