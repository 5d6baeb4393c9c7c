"""The context of a handler: steps that run once, and the shape of the journal."""

import asyncio
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from flowfabric import App, Context, ExecutionFailed, PermanentError, SyncContext
from flowfabric.engine import claims, steps
from flowfabric.model import Step
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given


@dataclass
class Notes:
    topic: str
    pages: list[int]


async def test_a_saved_step_is_not_run_again_by_the_next_attempt(app: App) -> None:
    calls: list[str] = []

    async def search(topic: str) -> str:
        calls.append(topic)
        return f"notes on {topic}"

    @app.task(retries=1, backoff="1ms")
    async def report(ctx: Context, topic: str) -> str:
        notes = await ctx.step("search", search, topic)
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return f"{notes}, attempt {ctx.attempt}"

    async with working(app):
        execution = await report.submit("tides")
        assert await execution.result(TIMEOUT) == "notes on tides, attempt 2"
    assert calls == ["tides"]


async def test_a_step_saved_before_a_crash_is_not_run_again_by_who_takes_over(app: App, given: Given) -> None:
    calls: list[str] = []

    def call(name: str) -> str:
        calls.append(name)
        return name

    @app.task
    async def report(ctx: Context) -> str:
        return f"{await ctx.step('a', call, 'a')} {await ctx.step('b', call, 'b')}, attempt {ctx.attempt}"

    async with app:
        execution = await report.submit()
    [claim] = await given.claim()
    await steps.save_step(given.conn, Step(fence=claim.fence, name="a", occurrence=1, result=b'"by the dead"'))
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)

    async with working(app):
        assert await app.execution(execution.execution_id).result(TIMEOUT) == "by the dead b, attempt 2"
    assert calls == ["b"]


async def test_a_step_that_failed_is_not_saved_and_runs_again(app: App, given: Given) -> None:
    calls: list[int] = []

    def flaky(attempt: int) -> str:
        calls.append(attempt)
        if attempt == 1:
            raise ConnectionError("down")
        return "up"

    @app.task(retries=1, backoff="1ms")
    async def report(ctx: Context) -> str:
        return await ctx.step("flaky", flaky, ctx.attempt)

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == "up"
    assert (calls, await given.count("steps")) == ([1, 2], 1)


async def test_steps_in_a_loop_are_saved_by_occurrence(app: App, given: Given) -> None:
    @app.task(retries=1, backoff="1ms")
    async def report(ctx: Context) -> list[int]:
        found = [await ctx.step("page", lambda n: n * 10, n) for n in (1, 2, 3)]
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return found

    async with working(app):
        execution = await report.submit()
        assert await execution.result(TIMEOUT) == [10, 20, 30]
        journal = await steps.read_journal(given.conn, execution.execution_id)
    assert [(entry.occurrence, entry.result) for entry in journal] == [(1, b"10"), (2, b"20"), (3, b"30")]


async def test_occurrences_count_when_a_step_is_called_not_when_it_is_awaited(app: App) -> None:
    @app.task(retries=1, backoff="1ms")
    async def report(ctx: Context) -> list[str]:
        first, second = ctx.step("x", lambda: "first"), ctx.step("x", lambda: "second")
        found = [await second, await first] if ctx.attempt == 1 else [await first, await second]
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return found

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == ["first", "second"]


async def test_steps_under_gather_run_concurrently(app: App) -> None:
    @app.task
    async def report(ctx: Context) -> list[str]:
        met = asyncio.Barrier(3)

        async def meet(name: str) -> str:
            await met.wait()  # passes only when all three have arrived
            return name

        return list(await asyncio.gather(*(ctx.step("meet", meet, name) for name in "abc")))

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == ["a", "b", "c"]


async def test_a_step_returns_its_annotated_type_in_the_first_run_and_from_the_journal(app: App) -> None:
    seen: list[object] = []

    async def search(topic: str) -> Notes:
        return Notes(topic, [1, 2])

    @app.task(retries=1, backoff="1ms")
    async def report(ctx: Context) -> Notes:
        notes = await ctx.step("search", search, "tides")
        loose = await ctx.step("loose", lambda: {"topic": notes.topic, "pages": [1, 2]})
        seen.append((notes, loose))
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return notes

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == Notes("tides", [1, 2])
    both = (Notes("tides", [1, 2]), {"topic": "tides", "pages": [1, 2]})
    assert seen == [both, both]


async def test_now_and_random_are_the_same_in_every_run(app: App) -> None:
    seen: list[tuple[datetime, float, float]] = []

    @app.task(retries=1, backoff="1ms")
    async def report(ctx: Context) -> None:
        seen.append((await ctx.now(), await ctx.random(), await ctx.random()))
        if ctx.attempt == 1:
            raise ConnectionError("down")

    async with working(app):
        await (await report.submit()).result(TIMEOUT)
    assert seen[0] == seen[1]
    assert seen[0][0].tzinfo is not None
    assert seen[0][1] != seen[0][2]


async def test_a_step_is_retried_within_the_run(app: App) -> None:
    calls: list[int] = []

    async def flaky() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("down")
        return len(calls)

    @app.task
    async def report(ctx: Context) -> tuple[int, int]:
        return await ctx.step("flaky", flaky, retries=2, backoff="1ms"), ctx.attempt

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == (3, 1)


async def test_a_step_that_fails_permanently_is_not_retried(app: App) -> None:
    calls: list[int] = []

    async def hopeless() -> None:
        calls.append(1)
        raise PermanentError("no such topic")

    @app.task(retries=5)
    async def report(ctx: Context) -> None:
        await ctx.step("hopeless", hopeless, retries=5, backoff="1ms")

    async with working(app):
        with pytest.raises(ExecutionFailed, match="PermanentError: no such topic"):
            await (await report.submit()).result(TIMEOUT)
    assert calls == [1]


async def test_a_decorated_step_reads_like_a_call(app: App) -> None:
    tries: list[str] = []

    @app.step(retries=1, backoff="1ms")
    async def search(topic: str, *, retries: int) -> Notes:
        tries.append(topic)
        if len(tries) == 1:
            raise ConnectionError("down")
        return Notes(topic, [retries])

    @app.step
    def shout(text: str) -> str:
        return text.upper()

    @app.task
    async def report(ctx: Context) -> str:
        notes = await search(ctx, "tides", retries=7)
        return await shout(ctx, f"{notes.topic} {notes.pages[0]}")

    @app.task
    def blocked(ctx: SyncContext) -> str:
        return shout(ctx, search(ctx, "ebb", retries=8).topic)

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == "TIDES 7"
        assert await (await blocked.submit()).result(TIMEOUT) == "EBB"
    assert shout.function("plain") == "PLAIN"
    with pytest.raises(TypeError, match=r"shout\.function"):
        shout("plain")  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["", "x" * 129, "é" * 65])
async def test_a_step_with_an_invalid_name_is_refused_before_it_runs(app: App, name: str) -> None:
    calls: list[int] = []

    @app.task(retries=5)
    async def report(ctx: Context) -> None:
        await ctx.step(name, lambda: calls.append(1))

    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"InvalidName: .*128 bytes"):
            await (await report.submit()).result(TIMEOUT)
    assert calls == []


async def test_step_results_that_cannot_be_saved_fail_permanently(app: App) -> None:
    def wrong() -> int:
        return "three"  # type: ignore[return-value]

    made: dict[str, Any] = {"odd": object, "wrong": wrong, "huge": lambda: "x" * 1_048_577, "nan": lambda: float("nan")}

    @app.task(retries=5)
    async def report(ctx: Context, which: str) -> None:
        await ctx.step(which, made[which])

    async with working(app):
        for which, why in [
            ("odd", r"InvalidBody: .*'odd'.*JSON"),
            ("wrong", r"'wrong'.*Expected `int`"),
            ("huge", "PayloadTooLarge"),
            ("nan", r"InvalidBody: .*'nan'.*NaN"),
        ]:
            execution = await report.submit(which)
            with pytest.raises(ExecutionFailed, match=why):
                await execution.result(TIMEOUT)
            assert (await execution.describe()).counts.attempts == 1, which


async def test_a_step_or_a_wait_inside_a_step_fails(app: App) -> None:
    @app.task
    async def nested(ctx: Context) -> None:
        async def outer() -> None:
            await ctx.step("inner", int)

        await ctx.step("outer", outer)

    @app.task
    def sleepy(ctx: SyncContext) -> None:
        ctx.step("outer", lambda: ctx.sleep("1h"))

    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"inner.* inside .*outer"):
            await (await nested.submit()).result(TIMEOUT)
        with pytest.raises(ExecutionFailed, match=r"sleep.* inside .*outer"):
            await (await sleepy.submit()).result(TIMEOUT)


async def test_a_payload_of_the_wrong_type_fails_permanently_and_names_the_path(app: App, given: Given) -> None:
    @app.task(retries=5)
    def report(notes: Notes) -> None: ...

    async with working(app):
        payload = b'{"notes": {"topic": "tides", "pages": [1, "two"]}}'  # from a caller who does not know the task
        execution = app.execution(await given.submitted(task=report.name, payload=payload))
        with pytest.raises(ExecutionFailed, match=r"report.*`int`, got `str` - at `\$.notes.pages"):
            await execution.result(TIMEOUT)
        assert (await execution.describe()).counts.attempts == 1


async def test_a_result_that_cannot_be_encoded_fails_permanently(app: App) -> None:
    @app.task(retries=5)
    def report() -> object:
        return object()

    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"result of report.*JSON"):
            await (await report.submit()).result(TIMEOUT)


async def test_a_handler_sees_its_id_attempt_and_tags(app: App) -> None:
    @app.task
    async def report(ctx: Context) -> tuple[str, int, dict[str, str]]:
        return str(ctx.execution_id), ctx.attempt, dict(ctx.tags)

    async with working(app):
        execution = await report.with_options(tags={"a.b": "c"}).submit()
        assert await execution.result(TIMEOUT) == (str(execution.execution_id), 1, {"a.b": "c"})


@pytest.mark.parametrize("keep", [True, False])
async def test_a_replay_runs_saved_steps_again_only_when_they_are_not_kept(app: App, keep: bool) -> None:
    calls: list[str] = []

    @app.task
    async def report(ctx: Context) -> int:
        await ctx.step("a", lambda: calls.append("a"))
        await ctx.sleep("51ms")  # longer than the worker waits in place
        await ctx.step("b", lambda: calls.append("b"))
        return len(calls)

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
        await execution.replay(by="ops", from_scratch=not keep)
        await happens(execution, "execution_completed", times=2)
    assert calls == (["a", "b"] if keep else ["a", "b", "a", "b"])


async def test_a_sync_function_in_a_step_runs_in_a_thread_and_other_runs_go_on(app: App) -> None:
    free = threading.Event()

    def fetch(topic: str) -> str:
        assert free.wait(TIMEOUT)
        return f"{topic} in {threading.current_thread().name}"

    @app.task
    async def blocking(ctx: Context) -> str:
        return await ctx.step("fetch", fetch, "tides")

    @app.task
    async def other() -> None:
        free.set()

    async with working(app):
        first = await blocking.submit()
        await (await other.submit()).result(TIMEOUT)
        assert await first.result(TIMEOUT) == f"tides in blocking {first.execution_id} fetch"


async def test_a_hundred_blocking_steps_wait_at_the_same_time(app: App) -> None:
    together = threading.Barrier(100)

    @app.task
    async def blocking(ctx: Context) -> None:
        await ctx.step("meet", lambda: together.wait(TIMEOUT) and None)

    async with working(app, concurrency=100):
        for execution in await blocking.submit_many([()] * 100):
            await execution.result(TIMEOUT)


async def test_a_sync_function_that_returns_an_awaitable_is_awaited_on_the_event_loop(app: App) -> None:
    async def fetch() -> str:
        return threading.current_thread().name

    @app.task
    async def report(ctx: Context) -> bool:
        return await ctx.step("fetch", lambda: fetch()) == threading.current_thread().name

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT)


async def test_a_step_in_a_thread_has_the_context_variables_of_its_handler_and_is_retried(app: App) -> None:
    tenant: ContextVar[str] = ContextVar("tenant")
    calls: list[str] = []

    def fetch() -> str:
        calls.append(tenant.get())
        if len(calls) < 3:
            raise ConnectionError("down")
        return calls[-1]

    @app.task
    async def report(ctx: Context) -> str:
        tenant.set("acme")
        return await ctx.step("fetch", fetch, retries=2, backoff="1ms")

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == "acme"
    assert calls == ["acme"] * 3
