"""Private: sync access to async objects, for programs and handlers that do not use `await`.

Every class with async methods has a sync class, such as `SyncExecution` for `Execution`, which has the same methods
and waits for their results. The sync classes are generated (`make sync`): no sync method is written by hand.
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
from typing import Any, TypeVar, cast

T = TypeVar("T")

END = object()

Work = SimpleQueue[Callable[[], None] | None]
Loop = Callable[[], asyncio.AbstractEventLoop]
"""Returns the event loop on which the calls run. Raises `RuntimeError` if there is none, because the app is closed."""


class Sync:
    """Base of the sync classes: wraps an async object, and makes its calls on its event loop from other threads."""

    __slots__ = ("_loop", "_thing")

    _thing: Any

    def __init__(self, thing: Any, loop: Loop) -> None:
        self._thing = thing
        self._loop = loop

    def __repr__(self) -> str:
        return f"<sync {self._thing!r}>"

    def _wait(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """Call a function on the event loop and wait for its answer; functions among the arguments run in this thread.

        Sync objects among the arguments are passed as the async objects that they wrap.
        """
        work: Work = SimpleQueue()
        positional = [_for_the_loop(value, work) for value in args]
        named = {name: _for_the_loop(value, work) for name, value in kwargs.items()}
        return self._run(lambda: function(*positional, **named), work)

    def _iterate(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Iterator[Any]:
        """Iterate over what an async generator yields; it is closed with the iterator."""
        items = self._wait(function, *args, **kwargs)
        try:
            while (item := self._run(lambda: anext(items, END), SimpleQueue())) is not END:
                yield item
        finally:
            self._run(items.aclose, SimpleQueue())

    def _unwaited(self) -> Any:
        return Unwaited(self._thing, self._loop)

    def _run(self, call: Callable[[], Any], work: Work) -> Any:
        """Make a call on the event loop; until it returns, run the functions that it queues for this thread."""
        loop = self._loop()
        if _running_loop() is loop:
            raise RuntimeError(f"{self!r} would block its own event loop; await the method of the async class instead")

        async def on_the_loop() -> Any:
            answer = call()
            return await answer if inspect.isawaitable(answer) else answer

        answered = asyncio.run_coroutine_threadsafe(on_the_loop(), loop)
        answered.add_done_callback(lambda _: work.put(None))
        while (task := work.get()) is not None:
            task()
        return answered.result()


class Unwaited:
    """Calls methods on the event loop without waiting: `ctx.any_of(ctx.unwaited.sleep("1h"), ...)`."""

    def __init__(self, thing: Any, loop: Loop) -> None:
        self._thing = thing
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._thing, name)

        def call(*args: object, **kwargs: object) -> Any:
            async def on_the_loop() -> Any:
                return function(*args, **kwargs)

            return asyncio.run_coroutine_threadsafe(on_the_loop(), self._loop()).result()

        return call


@contextmanager
def opened(thing: AbstractAsyncContextManager[T]) -> Iterator[tuple[T, Loop]]:
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
        yield entered, functools.partial(_still_open, loop)
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        closed.result()


def _still_open(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    if loop.is_closed():
        raise RuntimeError("this object is closed; use it inside the `with` block that opened it")
    return loop


def _for_the_loop(value: object, work: Work) -> object:
    """Prepare an argument: a function runs in the calling thread, which waits anyway; it must not block the loop."""
    if isinstance(value, Sync):
        return value._thing
    if not inspect.isroutine(value) and not isinstance(value, functools.partial):
        return value
    if inspect.iscoroutinefunction(value):
        return value
    function = cast("Callable[..., Any]", value)

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
