"""The blocking face: the same objects for programs and handlers that do not await.

A `Blocking` behaves like the object it stands for, except that what would be awaited is waited for. There are no twins
of methods: what is added to the object is there at once.
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
    """Base of the classes whose instances a `Blocking` returns wrapped: their methods are awaitable too."""

    __slots__ = ()


class Blocking(Generic[T]):
    """An object whose awaitable answers are waited for, in a thread that is not the loop's."""

    def __init__(self, thing: T, loop: asyncio.AbstractEventLoop) -> None:
        self._thing = thing
        self._loop = loop

    def __call__(self, thing: U) -> "Blocking[U]":
        """Another object, such as a task, in the same way: `sync(report).submit("tides").result()`."""
        return Blocking(thing, self._loop)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._thing, name)
        return functools.partial(self._answer, attribute) if callable(attribute) else self._wrapped(attribute)

    def __enter__(self) -> Any:
        """What is entered by `async with`: `with ctx.reserve("team-a", tokens=4_000) as held`."""
        return self._answer(self._entered().__aenter__)

    def __exit__(self, *exc: object) -> None:
        self._answer(self._entered().__aexit__, *exc)

    @property
    def unwaited(self) -> "Unwaited[T]":
        """The same object, whose awaitable answers are given as they are: to wait for several of them together."""
        return Unwaited(self._thing, self._loop)

    def __repr__(self) -> str:
        return f"<blocking {self._thing!r}>"

    def _entered(self) -> AbstractAsyncContextManager[Any]:
        if isinstance(self._thing, AbstractAsyncContextManager):
            return self._thing
        raise TypeError(f"{self!r} is not to be entered; use it without `with`")

    def _answer(self, function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        work: Work = SimpleQueue()
        given = [_handed_over(value, work) for value in args]
        named = {name: _handed_over(value, work) for name, value in kwargs.items()}
        answer = self._wait(lambda: function(*given, **named), work)
        return self._iterated(answer) if hasattr(answer, "__anext__") else self._wrapped(answer)

    def _wait(self, call: Callable[[], Any], work: Work) -> Any:
        """Make a call on the loop, and do here what it hands back until it is answered."""
        if _running_loop() is self._loop:
            raise RuntimeError("this would wait for itself: await the object that is not blocking here")
        if self._loop.is_closed():
            raise RuntimeError(f"{self!r} is closed: use it inside the block that opened it")

        async def made_on_the_loop() -> Any:
            answer = call()
            return await answer if inspect.isawaitable(answer) else answer

        answered = asyncio.run_coroutine_threadsafe(made_on_the_loop(), self._loop)
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
        """Objects of ours stay blocking; plain values are given as they are."""
        if isinstance(answer, list):
            return [self._wrapped(item) for item in answer]
        return Blocking(answer, self._loop) if isinstance(answer, Wrapped) else answer


class Unwaited(Generic[T]):
    """An object that is asked on the loop and not waited for: `ctx.any_of(ctx.unwaited.sleep("1h"), ...)`."""

    def __init__(self, thing: T, loop: asyncio.AbstractEventLoop) -> None:
        self._thing = thing
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._thing, name)

        def asked(*args: object, **kwargs: object) -> Any:
            async def on_the_loop() -> Any:
                return function(*args, **kwargs)

            return asyncio.run_coroutine_threadsafe(on_the_loop(), self._loop).result()

        return asked


@contextmanager
def opened(thing: AbstractAsyncContextManager[T]) -> Iterator[Blocking[T]]:
    """What is opened with `async with`, open on a loop in a thread of its own, for as long as the block lasts."""
    ready: Future[tuple[T, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def hold() -> None:
        async with thing as held:
            done = asyncio.Event()
            ready.set_result((held, asyncio.get_running_loop(), done))
            await done.wait()

    closed: Future[None] = Future()

    def keep() -> None:
        try:
            asyncio.run(hold())
        except BaseException as error:
            (closed if ready.done() else ready).set_exception(error)
        else:
            closed.set_result(None)

    thread = threading.Thread(target=keep, name=f"loop of {thing!r}", daemon=True)
    thread.start()
    held, loop, done = ready.result()
    try:
        yield Blocking(held, loop)
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        closed.result()


def _handed_over(value: object, work: Work) -> object:
    """A function given from a thread runs in that thread, which waits anyway, and never blocks the loop."""
    if not inspect.isroutine(value) and not isinstance(value, functools.partial):
        return value
    if inspect.iscoroutinefunction(value):
        return value
    function: Callable[..., Any] = value

    @functools.wraps(function)
    async def in_the_thread(*args: object, **kwargs: object) -> Any:
        done: Future[Any] = Future()
        inherited = copy_context()
        work.put(lambda: _do(done, functools.partial(inherited.run, function, *args, **kwargs)))
        answer = await asyncio.wrap_future(done)
        return await answer if inspect.isawaitable(answer) else answer

    return in_the_thread


def _do(done: "Future[Any]", call: Callable[[], Any]) -> None:
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
