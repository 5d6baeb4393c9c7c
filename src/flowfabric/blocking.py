"""Private: sync access to async objects, for programs and handlers that do not use `await`.

A `Blocking` wraps an object and behaves like it, except that its methods wait for the result instead of returning an
awaitable. It forwards every method, so no sync version of a method is ever written by hand.
"""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

END = object()

Work = SimpleQueue[Callable[[], None] | None]


class Wrapped:
    """Base of the classes with async methods; a `Blocking` returns their instances wrapped."""

    __slots__ = ()


class Blocking(Generic[T]):
    """A wrapper whose methods wait for their result. Use it in a thread other than the event loop's."""

    def __init__(self, thing: T, loop: asyncio.AbstractEventLoop) -> None:
        self._thing = thing
        self._loop = loop

    def __call__(self, thing: U) -> "Blocking[U]":
        """Wrap another object, such as a task: `sync(report).submit("tides").result()`."""
        return Blocking(thing, self._loop)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._thing, name)
        return functools.partial(self._call, attribute) if callable(attribute) else self._wrapped(attribute)

    def __enter__(self) -> Any:
        """Enter an async context manager: `with ctx.reserve("team-a", tokens=4_000) as reservation`."""
        return self._call(self._context_manager().__aenter__)

    def __exit__(self, *exc: object) -> None:
        self._call(self._context_manager().__aexit__, *exc)

    @property
    def unwaited(self) -> "Unwaited[T]":
        """The same object, whose methods return awaitables, so that you can wait for several of them together."""
        return Unwaited(self._thing, self._loop)

    def __repr__(self) -> str:
        return f"<blocking {self._thing!r}>"

    def _context_manager(self) -> AbstractAsyncContextManager[Any]:
        if isinstance(self._thing, AbstractAsyncContextManager):
            return self._thing
        raise TypeError(f"{self!r} is not a context manager; use it without `with`")

    def _call(self, function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        work: Work = SimpleQueue()
        positional = [_run_in_this_thread(value, work) for value in args]
        named = {name: _run_in_this_thread(value, work) for name, value in kwargs.items()}
        answer = self._wait(lambda: function(*positional, **named), work)
        return self._iterated(answer) if hasattr(answer, "__anext__") else self._wrapped(answer)

    def _wait(self, call: Callable[[], Any], work: Work) -> Any:
        """Make a call on the event loop; until it returns, run the functions that it queues for this thread."""
        if _running_loop() is self._loop:
            raise RuntimeError(f"{self!r} would block its own event loop; await the wrapped object instead")
        if self._loop.is_closed():
            raise RuntimeError(f"{self!r} is closed; use it inside the `with` block that opened it")

        async def on_the_loop() -> Any:
            answer = call()
            return await answer if inspect.isawaitable(answer) else answer

        answered = asyncio.run_coroutine_threadsafe(on_the_loop(), self._loop)
        answered.add_done_callback(lambda _: work.put(None))
        while (task := work.get()) is not None:
            task()
        return answered.result()

    def _iterated(self, answer: Any) -> Iterator[Any]:
        try:
            while (item := self._wait(lambda: anext(answer, END), SimpleQueue())) is not END:
                yield self._wrapped(item)
        finally:
            if hasattr(answer, "aclose"):
                self._wait(answer.aclose, SimpleQueue())

    def _wrapped(self, answer: Any) -> Any:
        """Wrap objects with async methods; return plain values as they are."""
        if isinstance(answer, list):
            return [self._wrapped(item) for item in answer]
        return Blocking(answer, self._loop) if isinstance(answer, Wrapped) else answer


class Unwaited(Generic[T]):
    """A wrapper that calls methods on the event loop without waiting: `ctx.any_of(ctx.unwaited.sleep("1h"), ...)`."""

    def __init__(self, thing: T, loop: asyncio.AbstractEventLoop) -> None:
        self._thing = thing
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._thing, name)

        def call(*args: object, **kwargs: object) -> Any:
            async def on_the_loop() -> Any:
                return function(*args, **kwargs)

            return asyncio.run_coroutine_threadsafe(on_the_loop(), self._loop).result()

        return call


@contextmanager
def opened(thing: AbstractAsyncContextManager[T]) -> Iterator[Blocking[T]]:
    """Open an async context manager on an event loop in its own thread, for as long as the block lasts."""
    ready: Future[tuple[T, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def keep_open() -> None:
        async with thing as entered:
            done = asyncio.Event()
            ready.set_result((entered, asyncio.get_running_loop(), done))
            await done.wait()

    closed: Future[None] = Future()

    def run() -> None:
        try:
            asyncio.run(keep_open())
        except BaseException as error:
            (closed if ready.done() else ready).set_exception(error)
        else:
            closed.set_result(None)

    thread = threading.Thread(target=run, name=f"loop of {thing!r}", daemon=True)
    thread.start()
    entered, loop, done = ready.result()
    try:
        yield Blocking(entered, loop)
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        closed.result()


def _run_in_this_thread(value: object, work: Work) -> object:
    """Run a function passed as an argument in the calling thread, which waits anyway; it must not block the loop."""
    if not inspect.isroutine(value) and not isinstance(value, functools.partial):
        return value
    if inspect.iscoroutinefunction(value):
        return value
    function: Callable[..., Any] = value

    @functools.wraps(function)
    async def in_the_thread(*args: object, **kwargs: object) -> Any:
        done: Future[Any] = Future()
        inherited = copy_context()
        work.put(lambda: _finish(done, functools.partial(inherited.run, function, *args, **kwargs)))
        answer = await asyncio.wrap_future(done)
        return await answer if inspect.isawaitable(answer) else answer

    return in_the_thread


def _finish(done: "Future[Any]", call: Callable[[], Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(call())
    except BaseException as error:
        done.set_exception(error)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
