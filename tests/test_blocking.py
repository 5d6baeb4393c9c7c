"""Sync access: the same methods, which wait for their result in a thread of their own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from flowfabric import App, ExecutionFailed, SyncContext, SyncTask
from flowfabric.blocking import Sync, opened
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


class SyncThing(Sync):
    """The sync version of a thing, as the generator would write it."""

    __slots__ = ()

    def plain(self) -> str:
        return str(self._wait(self._thing.plain))

    def later(self, n: int) -> int:
        return int(self._wait(self._thing.later, n))

    def fails(self) -> None:
        self._wait(self._thing.fails)

    def numbers(self) -> Iterator[int]:
        return self._iterate(self._thing.numbers)

    def calls(self, function: object) -> object:
        return self._wait(self._thing.calls, function)


@pytest.fixture
def thing() -> Thing:
    return Thing()


@pytest.fixture
def sync(thing: Thing) -> Iterator[SyncThing]:
    with opened(thing) as (entered, loop):
        yield SyncThing(entered, loop)


def test_methods_that_would_be_awaited_wait_for_their_result(sync: SyncThing) -> None:
    assert (sync.later(1), list(sync.numbers())) == (2, [0, 1, 2])
    assert sync.plain() != threading.current_thread().name
    with pytest.raises(LookupError, match="no"):
        sync.fails()


def test_an_iterator_left_half_way_is_closed(thing: Thing, sync: SyncThing) -> None:
    for _ in sync.numbers():
        break
    assert thing.ended


def test_a_function_passed_from_a_thread_runs_in_that_thread(sync: SyncThing) -> None:
    async def here() -> str:
        return threading.current_thread().name

    assert sync.calls(lambda: threading.current_thread().name) == threading.current_thread().name
    assert sync.calls(here) == sync.plain()
    assert sync.calls(lambda: here()) == sync.plain()


def test_a_sync_object_passed_as_an_argument_arrives_as_the_async_one(thing: Thing, sync: SyncThing) -> None:
    assert sync._wait(lambda given: given, sync) is thing


def test_an_error_inside_the_block_closes_and_is_raised(thing: Thing) -> None:
    with pytest.raises(ZeroDivisionError), opened(thing):
        raise ZeroDivisionError
    assert thing.closed


def test_an_error_while_opening_reaches_the_caller() -> None:
    class Broken(Thing):
        async def __aenter__(self) -> "Thing":
            raise ConnectionError("down")

    with pytest.raises(ConnectionError, match="down"), opened(Broken()):
        raise AssertionError("it opened")


def test_a_call_after_the_block_raises(thing: Thing) -> None:
    with opened(thing) as (entered, loop):
        sync = SyncThing(entered, loop)
    with pytest.raises(RuntimeError, match="closed"):
        sync.later(1)


async def test_a_call_on_its_own_loop_raises_instead_of_deadlocking(thing: Thing) -> None:
    with pytest.raises(RuntimeError, match="its own event loop"):
        SyncThing(thing, asyncio.get_running_loop).later(1)


async def test_threads_use_an_app_that_is_open_on_the_loop_of_an_async_program(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return n * 2

    def view(n: int) -> int:
        with app.sync() as sync:  # as in a sync endpoint of an async web server
            assert type(sync(double)) is SyncTask
            return sync(double).submit(n).result(TIMEOUT) + app.sync()(double).submit(n).result(TIMEOUT)

    async with working(app):
        assert await asyncio.gather(*(asyncio.to_thread(view, n) for n in range(4))) == [0, 4, 8, 12]
        assert app.is_open


def test_threads_that_open_an_app_at_once_share_it_until_it_is_closed(app: App) -> None:
    @app.task
    async def double(n: int) -> None: ...

    together, handles = threading.Barrier(4, timeout=TIMEOUT), list[str]()

    def view() -> None:
        together.wait()
        handles.append(str(app.sync().open()(double).submit(1).execution_id))

    threads = [threading.Thread(target=view) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(TIMEOUT)
    app.sync().close()
    app.sync().close()
    assert len(set(handles)) == 4
    assert not app.is_open


def test_a_sync_app_that_is_not_open_says_so(app: App) -> None:
    with pytest.raises(RuntimeError, match=r"this app is not open; use it inside .*`with app.sync\(\):`"):
        app.sync().submit("double")
    with app.sync() as sync, pytest.raises(TypeError, match="has no sync version"):
        sync(3)  # type: ignore[call-overload]


async def test_a_synchronous_program_submits_and_waits(app: App, database_url: str) -> None:
    @app.task
    async def double(n: int) -> int:
        if n < 0:
            raise ValueError("below zero")
        return n * 2

    def program() -> list[object]:
        front = App(url=database_url)

        @front.task(name="double")
        async def twice(n: int) -> int:
            return n * 2

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
    def report(ctx: SyncContext, topic: str) -> list[object]:
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
    def report(ctx: SyncContext) -> int:
        return ctx.step("meet", met.wait) * 0

    async with working(app):
        both = [await report.submit(), await report.submit()]
        assert [await each.result(TIMEOUT) for each in both] == [0, 0]
