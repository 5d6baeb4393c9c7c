"""The types of an app's decorators, for type checkers."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from flowfabric.app.steps import Step
from flowfabric.app.tasks import TaskFunction
from flowfabric.handler.context import Context
from flowfabric.handler.sync import SyncContext

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Decorator(Protocol):
    """Makes a function a task."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, handler: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[SyncContext, P], R], /
    ) -> TaskFunction[P, R, Concatenate[SyncContext, P], R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, P], R], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> TaskFunction[P, R, P, R]: ...


class TaskDecorator(Protocol):
    """Makes a function a task, with or without options."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, handler: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[SyncContext, P], R], /
    ) -> TaskFunction[P, R, Concatenate[SyncContext, P], R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, P], R], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> TaskFunction[P, R, P, R]: ...
    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        lane: str = "default",
        namespace: str = "default",
        needs: Collection[str] = (),
        budgets: Collection[str] = (),
        quotas: Collection[str] = (),
        priority: int = 0,
        retries: int = 0,
        backoff: str | timedelta | Mapping[str, object] | None = None,
        timeout: str | timedelta | None = None,
        non_retryable: Sequence[type[Exception]] = (),
        limit: int | None = None,
        retired: str | Collection[str] = (),
        version: int | None = None,
        capture_logs: bool | int | str = False,
        policy: Mapping[str, object] | None = None,
    ) -> Decorator: ...


class PlainStepDecorator(Protocol):
    """Makes a function a step."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[T, Context, P], Coroutine[Any, Any, R]], /
    ) -> Step[Concatenate[T, P], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[T, SyncContext, P], R], /) -> Step[Concatenate[T, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


class ReturningStepDecorator(Protocol[R]):
    """Makes a function a step whose result has a given type."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, object]], /) -> Step[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[T, Context, P], Coroutine[Any, Any, object]], /
    ) -> Step[Concatenate[T, P], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], object], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[T, SyncContext, P], object], /) -> Step[Concatenate[T, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, object]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, object], /) -> Step[P, R]: ...


class StepDecorator(Protocol):
    """Makes a function a step, with or without options."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[T, Context, P], Coroutine[Any, Any, R]], /
    ) -> Step[Concatenate[T, P], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[T, SyncContext, P], R], /) -> Step[Concatenate[T, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
    ) -> PlainStepDecorator: ...
    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        returns: type[R],
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
    ) -> ReturningStepDecorator[R]: ...
