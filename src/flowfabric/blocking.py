"""The blocking face: the same objects for programs and handlers that do not await.

`blocking(thing, loop)` behaves like the thing, except that what would be awaited is waited for.
"""

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any


class Blocking:
    """An object whose awaitable answers are waited for, in a thread that is not the loop's."""

    def __init__(self, thing: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._thing = thing
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._thing, name)
        return self._calling(attribute) if callable(attribute) else attribute

    def __repr__(self) -> str:
        return f"<blocking {self._thing!r}>"

    def _calling(self, function: Any) -> Any:
        def call(*args: object, **kwargs: object) -> Any:
            return self._answered(function, args, kwargs)

        return call

    def _answered(self, function: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        async def made_on_the_loop() -> Any:
            answer = function(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        answer = asyncio.run_coroutine_threadsafe(made_on_the_loop(), self._loop).result()
        return self._iterated(answer) if hasattr(answer, "__anext__") else self._wrapped(answer)

    def _iterated(self, answer: Any) -> Iterator[Any]:
        while True:
            try:
                yield asyncio.run_coroutine_threadsafe(anext(answer), self._loop).result()
            except StopAsyncIteration:
                return

    def _wrapped(self, answer: Any) -> Any:
        """Objects of ours stay blocking; plain values are given as they are."""
        return Blocking(answer, self._loop) if type(answer).__module__ == "flowfabric.handle" else answer
