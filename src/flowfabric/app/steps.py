"""Steps: functions that run as a step of the handler that calls them with its context."""

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from flowfabric import durations, payloads
from flowfabric.app.tasks import injected_parameter, readable
from flowfabric.handler.context import Context
from flowfabric.handler.journal import earlier_names
from flowfabric.handler.sync import SyncContext

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")


class Step(Generic[P, R]):
    """A function that runs as a step when a handler calls it with its context: `notes = await search(ctx, topic)`.

    `P` are its arguments without the context. A method is called on its object: `await self.search(ctx, topic)`.
    """

    def __init__(
        self,
        function: Callable[P, Any],
        *,
        name: str,
        retries: int,
        backoff: str | timedelta,
        returns: Any = None,
        was: str | Sequence[str] = (),
    ) -> None:
        durations.read_duration(backoff)
        self.returns = readable(payloads.returned(function) if returns is None else returns, function)
        self.injected = injected_parameter(function)
        self.name = name
        self.function: Callable[..., Any] = function
        self._retries = retries
        self._backoff = backoff
        self._was = earlier_names(was)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    @overload
    def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
    @overload
    def __call__(self, ctx: SyncContext, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, ctx: Context | SyncContext, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function as a step of the handler that has this context."""
        if not isinstance(ctx, Context | SyncContext):
            raise TypeError(
                f"step {self.name} got {type(ctx).__name__} as its first argument, not the context; outside a handler "
                f"call {self.name}.function"
            )
        positional, named = self._with_context(ctx, args, kwargs)
        call = functools.partial(self.function, *positional, **named)
        options: dict[str, Any] = {"retries": self._retries, "backoff": self._backoff, "was": self._was}
        return ctx.step(self.name, call, returns=self.returns, **options)

    @overload
    def __get__(self, thing: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self: "Step[Concatenate[T, Q], R]", thing: T, owner: type, /) -> "Step[Q, R]": ...
    def __get__(self, thing: object, owner: type, /) -> "Step[..., R]":
        """Return the step of an object, if the function is a method: `await self.search(ctx, topic)`."""
        if thing is None:
            return self
        bound = copy.copy(self)
        bound.function = self.function.__get__(thing, owner)
        return bound

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    def _with_context(
        self, ctx: Context | SyncContext, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put the context where the function is annotated with it; as for a task, the async one if it is async."""
        if (injected := self.injected) is None:
            return args, kwargs
        given: Any = ctx
        if inspect.iscoroutinefunction(self.function) and isinstance(ctx, SyncContext):
            given = ctx._thing
        elif not inspect.iscoroutinefunction(self.function) and isinstance(ctx, Context):
            loop = asyncio.get_running_loop()
            given = SyncContext(ctx, lambda: loop)
        parameters = inspect.signature(self.function).parameters
        place = list(parameters).index(injected)
        if len(args) < place or parameters[injected].kind is inspect.Parameter.KEYWORD_ONLY:
            return args, {**kwargs, injected: given}
        return (*args[:place], given, *args[place:]), kwargs
