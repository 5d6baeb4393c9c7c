"""The synchronous interface: the same methods, which block instead of being awaited."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from flowfabric import App, Blocking, Context, ExecutionFailed
from flowfabric.blocking import opened
from tests.app.scene import TIMEOUT, working


class Thing:
    """Something to open, with methods of every kind."""

    value = 3

    def __init__(self) -> None:
        self.closed = False
        self.ended = False

    async def __aenter__(self) -> "Thing":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.closed = True

    def plain(self) -> str:
        return threading.current_thread().name

    async def later(self, n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    async def fails(self) -> None:
        raise LookupError("no")

    async def numbers(self) -> AsyncIterator[int]:
        try:
            for n in range(3):
                yield n
        finally:
            self.ended = True

    async def calls(self, function: object) -> object:
        answer = function()  # type: ignore[operator]
        return await answer if asyncio.iscoroutine(answer) else answer


def test_methods_that_would_be_awaited_block() -> None:
    thing = Thing()
    with opened(thing) as sync:
        assert (sync.later(1), sync.value, list(sync.numbers())) == (2, 3, [0, 1, 2])
        assert sync.plain() != threading.current_thread().name
        with pytest.raises(LookupError, match="no"):
            sync.fails()
        with pytest.raises(AttributeError, match="nowhere"):
            sync.nowhere()
    assert thing.closed


def test_an_async_context_manager_is_entered_with_a_plain_with() -> None:
    with opened(Thing()) as sync:
        inner, seen = Thing(), list[bool]()
        with sync(inner):
            seen.append(inner.closed)
        assert [*seen, inner.closed] == [False, True]
        with pytest.raises(TypeError, match="without `with`"), sync(3):
            raise AssertionError("it was entered")


def test_an_iterator_left_half_way_is_closed() -> None:
    thing = Thing()
    with opened(thing) as sync:
        for _ in sync.numbers():
            break
    assert thing.ended


def test_a_function_passed_from_a_thread_runs_in_that_thread() -> None:
    async def here() -> str:
        return threading.current_thread().name

    with opened(Thing()) as sync:
        assert sync.calls(lambda: threading.current_thread().name) == threading.current_thread().name
        assert sync.calls(here) == sync.plain()
        assert sync.calls(lambda: here()) == sync.plain()


def test_an_error_inside_the_block_closes_and_is_raised() -> None:
    thing = Thing()
    with pytest.raises(ZeroDivisionError), opened(thing):
        raise ZeroDivisionError
    assert thing.closed


def test_an_error_while_opening_reaches_the_caller() -> None:
    class Broken(Thing):
        async def __aenter__(self) -> "Thing":
            raise ConnectionError("down")

    with pytest.raises(ConnectionError, match="down"), opened(Broken()):
        raise AssertionError("it opened")


def test_a_call_after_the_block_raises() -> None:
    with opened(Thing()) as sync:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        sync.later(1)


async def test_a_call_on_its_own_loop_raises_instead_of_deadlocking() -> None:
    with pytest.raises(RuntimeError, match=r"itself|deadlock"):
        Blocking(Thing(), asyncio.get_running_loop()).later(1)


async def test_a_synchronous_program_submits_and_waits(app: App, database_url: str) -> None:
    @app.task
    async def double(n: int) -> int:
        if n < 0:
            raise ValueError("below zero")
        return n * 2

    def program() -> list[object]:
        front = App(url=database_url)
        twice = front.task(name="double")(double.handler)
        with front.sync() as sync:
            known = sync.submit("double", n=1)
            many = sync(twice).submit_many([(2,), (3,)])
            keyed = sync(twice).with_options(key="four").submit(4)
            with pytest.raises(ExecutionFailed, match="below zero"):
                sync.submit("double", n=-1).result(TIMEOUT)
            ends = [event.kind for event in keyed.events()][-1]
            return [each.result(TIMEOUT) for each in [known, *many, keyed]] + [ends, known.state()]

    async with working(app):
        assert await asyncio.to_thread(program) == [2, 4, 6, 8, "execution_completed", "completed"]


async def test_a_synchronous_handler_has_the_same_context(app: App) -> None:
    names: list[str] = []

    @app.task(retries=1, backoff="1ms")
    def report(ctx: Blocking[Context], topic: str) -> list[object]:
        names.append(ctx.step("name", lambda: threading.current_thread().name))
        assert names[-1].startswith(threading.current_thread().name[:7])
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return [topic, ctx.attempt, len(set(names)), 0 <= ctx.random() < 1, ctx.now() is not None]

    async with working(app):
        assert await (await report.submit("tides")).result(TIMEOUT) == ["tides", 2, 1, True, True]


async def test_a_blocking_step_does_not_block_other_runs(app: App) -> None:
    met = threading.Barrier(2, timeout=TIMEOUT)

    @app.task
    def report(ctx: Blocking[Context]) -> int:
        return ctx.step("meet", met.wait) * 0  # type: ignore[no-any-return]

    async with working(app):
        both = [await report.submit(), await report.submit()]
        assert [await each.result(TIMEOUT) for each in both] == [0, 0]
