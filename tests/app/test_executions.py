"""The handle of an execution: its result, its state, and the operations on it."""

import asyncio
from contextlib import suppress
from functools import partial
from uuid import uuid4

import pytest

from flowfabric import App, Context, ExecutionCancelled, ExecutionExpired, ExecutionFailed
from flowfabric.engine import executions, lanes, waits
from flowfabric.errors import ExecutionNotFound, InvalidId, InvalidToken, ShuttingDown
from flowfabric.ids import ExecutionId
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given


async def test_a_result_has_the_type_that_the_handler_returns(app: App) -> None:
    @app.task
    async def numbers() -> set[int]:
        return {1, 2}

    async with working(app):
        execution = await numbers.submit()
        assert await execution.result(TIMEOUT) == {1, 2}
        assert await app.execution(execution.execution_id).result() in ([1, 2], [2, 1]), "without the code, plain JSON"
        assert await execution.state() == "completed"


async def test_the_steps_of_an_execution_can_be_read(app: App) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        for number in range(1_010):
            await ctx.step("page", lambda number=number: number)

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
        found = [step async for step in execution.steps(results=True)]
        synced = await asyncio.to_thread(lambda: list(app.sync()(execution).steps()))

    assert [(step.name, step.occurrence, step.result) for step in found[-1:]] == [("page", 1_010, b"1009")]
    assert [step.occurrence for step in synced] == [step.occurrence for step in found] == list(range(1, 1_011))
    assert {step.result for step in synced} == {None}


async def test_a_failure_contains_the_remote_traceback(app: App) -> None:
    @app.task(non_retryable=[LookupError])
    async def report() -> None:
        raise KeyError("tides")

    async with working(app):
        execution = await report.submit()
        with pytest.raises(ExecutionFailed, match="KeyError: 'tides'") as failed:
            await execution.result(TIMEOUT)

    assert failed.value.execution_id == execution.execution_id
    assert failed.value.failure is not None
    assert failed.value.failure.class_ == "permanent"
    [note] = failed.value.__notes__
    assert "Traceback (most recent call last)" in note
    assert 'raise KeyError("tides")' in note


async def test_a_timeout_says_what_the_execution_waits_for(app: App, given: Given) -> None:
    @app.task(lane="reports")
    def report() -> None: ...

    async with app:
        execution = await report.submit()
        await lanes.pause_lane(given.conn, "reports", by="ada", reason="the printer burns")
        for wait in (execution.result, lambda seconds: asyncio.to_thread(app.sync()(execution).result, seconds)):
            with pytest.raises(TimeoutError, match=r"within 0.01 s: lane reports has been paused .* the printer burns"):
                await wait(0.01)
        with pytest.raises(TimeoutError, match="the printer burns"):
            await execution.result(0)
        async with given.conn.transaction():
            await given.conn.execute("lock table flowfabric.lanes in access exclusive mode")
            with pytest.raises(TimeoutError, match=r"has not ended within 0.01 s$"):
                await execution.result(0.01)


async def test_a_caller_that_waits_for_a_cancelled_execution_gets_the_reason(app: App) -> None:
    @app.task
    def report() -> None: ...

    async with app:
        execution = await report.submit()
        waiting = asyncio.create_task(execution.result(TIMEOUT))
        assert await execution.cancel("not wanted", by="ann") == "cancelled"
        with pytest.raises(ExecutionCancelled, match="not wanted"):
            await waiting


async def test_a_caller_that_waits_gets_the_result_of_an_override(app: App) -> None:
    @app.task
    def report() -> dict[str, bool]: ...  # type: ignore[empty-body]

    async with app:
        execution = await report.submit()
        waiting = asyncio.create_task(execution.result(TIMEOUT))
        assert await execution.override("success", {"paid": True}, reason="by phone", by="ann") == "completed"
        assert await waiting == {"paid": True}

        other = await report.submit()
        assert await other.override("failed", reason="by phone", by="ann") == "failed"
        with pytest.raises(ExecutionFailed, match="by phone"):
            await other.result(TIMEOUT)


async def test_an_override_cancels_the_handler_and_drops_its_outcome(app: App) -> None:
    stopped = asyncio.Event()

    @app.task
    async def report() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "by the worker"

    async with working(app):
        execution = await report.submit()
        await happens(execution, "lease_acquired")
        await execution.override("success", "by ann", reason="it hangs", by="ann")
        async with asyncio.timeout(TIMEOUT):
            await stopped.wait()
        assert await execution.result(TIMEOUT) == "by ann"


async def test_a_parent_continues_with_the_result_of_an_overridden_child(app: App) -> None:
    @app.task(lane="elsewhere")
    async def child() -> int: ...  # type: ignore[empty-body]

    @app.task
    async def parent(ctx: Context) -> int:
        return await (await ctx.submit(child)).result()

    async with working(app, lanes=["default"]):
        execution = await parent.submit()
        await happens(execution, "execution_suspended")
        [found] = (await app.database.run(partial(executions.list_executions, lane="elsewhere"))).items
        await app.execution(found.execution_id).override("success", 42, reason="by hand", by="ann")
        assert await execution.result(TIMEOUT) == 42


async def test_a_caller_that_waits_for_an_expired_execution_gets_the_reason(app: App, given: Given) -> None:
    @app.task
    def report() -> None: ...

    async with app:
        execution = await report.with_options(deadline="1h").submit()
        await given.time_passes(hours=1)
        await executions.expire_executions(given.conn)
        with pytest.raises(ExecutionExpired, match="execution_deadline"):
            await execution.result(TIMEOUT)


async def test_waiting_times_out_and_leaves_the_execution_alone(app: App) -> None:
    @app.task
    def report() -> None: ...

    async with app:
        execution = await report.submit()
        for timeout in (0, 0.01, "10ms"):
            with pytest.raises(TimeoutError):
                await execution.result(timeout)
        assert await execution.state() == "waiting"
        with pytest.raises(ValueError, match="'soon'"):
            await execution.result("soon")


async def test_an_execution_is_described_and_explained(app: App) -> None:
    @app.task(lane="research")
    def report() -> None: ...

    async with app:
        execution = await report.submit()
        assert ((await execution.describe()).lane, await execution.state()) == ("research", "waiting")
        assert "research" in (await execution.explain()).sentence


async def test_waiting_for_an_unknown_execution_raises(app: App) -> None:
    async with app:
        with pytest.raises(ExecutionNotFound):
            await app.execution(ExecutionId(3, uuid4())).result(TIMEOUT)
        with pytest.raises(InvalidId):
            app.execution("tides")


async def test_events_are_followed_to_the_end(app: App) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        await ctx.sleep("51ms")

    async with working(app):
        execution = await report.submit()
        kinds = [event.kind async for event in execution.events()]

    assert kinds == [
        "execution_submitted", "lease_acquired", "execution_delayed", "lease_acquired", "execution_completed",
    ]  # fmt: skip


async def test_events_of_a_replayed_execution_continue_past_its_first_end(app: App) -> None:
    @app.task
    async def report() -> None: ...

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
        await execution.replay(by="ops")
        kinds = [event.kind async for event in execution.events()]

    assert (kinds.count("execution_completed"), kinds[-1]) == (2, "execution_completed")


async def test_a_signal_needs_an_open_waitpoint_and_its_token(app: App, given: Given) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        await ctx.wait_for_signal("paid")

    async with working(app):
        execution = await order.submit()
        await happens(execution, "execution_suspended")
        for waitpoint in ("packed", "paid"):
            with pytest.raises(InvalidToken):
                await execution.signal(waitpoint, token=f"k1:{'0' * 64}")
        await waits.resume(given.conn, execution.execution_id, by="ops")
        await app.wake("default")
        await execution.result(TIMEOUT)
        with pytest.raises(InvalidToken):
            await execution.signal("paid", token="k1:00")
    assert await given.count("signals") == 0


async def test_a_wait_ends_when_the_app_closes(app: App) -> None:
    @app.task
    def report() -> None: ...

    async with app:
        execution = await report.submit()
        waiting = asyncio.create_task(execution.result())
        with suppress(TimeoutError):
            await execution.result(0.01)  # the task has started to wait by then

    with pytest.raises(ShuttingDown):
        await waiting


async def test_a_result_from_another_process_arrives(app: App, database_url: str) -> None:
    @app.task
    async def report() -> str:
        return "done"

    elsewhere = App(url=database_url)
    async with elsewhere:
        execution = await elsewhere.submit("report")
        waiting = asyncio.create_task(execution.result(TIMEOUT))
        async with working(app):
            assert await waiting == "done"


async def test_an_override_accepts_a_result_as_large_as_the_payload_limit(database_url: str) -> None:
    app = App(url=database_url, payload_limit=2_000_000)

    @app.task
    async def report() -> str:
        return ""

    async with app:
        execution = await report.submit()
        await execution.override("success", "x" * 1_500_000, reason="known", by="ops")

        assert len(await execution.result(20)) == 1_500_000
