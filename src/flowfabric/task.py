"""Tasks: functions that run durably. A decorated function stays the plain callable it was."""

import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack

import msgspec

from flowfabric import spans
from flowfabric.model import Submission, Terms
from flowfabric.payloads import Arguments

if TYPE_CHECKING:
    from flowfabric.app import App
    from flowfabric.handle import Execution

P = ParamSpec("P")
R = TypeVar("R")


class Options(TypedDict, total=False):
    """What one submission may ask for beyond what its task says."""

    lane: str
    namespace: str
    priority: int
    key: str
    delay: str | timedelta | datetime
    deadline: str | timedelta | datetime
    tags: Mapping[str, str]
    budgets: Collection[str]
    quotas: Collection[str]
    execution_id: str


class Task(Generic[P, R]):
    """A function that runs durably: call it as before, or submit it."""

    def __init__(
        self,
        app: "App",
        handler: Callable[..., Any],
        terms: Terms,
        *,
        injected: str | None,
        priority: int = 0,
        permanent: Sequence[type[Exception]] = (),
        options: Options | None = None,
    ) -> None:
        self.app = app
        self.handler = handler
        self.terms = terms
        self.injected = injected
        self.priority = priority
        self.permanent = tuple(permanent)
        self.arguments = Arguments(handler, injected)
        self.returns = typing.get_type_hints(handler).get("return", Any)
        self._options: Options = options or {}
        self.__name__ = handler.__name__
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler

    @property
    def name(self) -> str:
        """What the engine calls it; stays the same when the function is renamed, if it was given."""
        return self.terms.kind

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def using(self, **options: Unpack[Options]) -> Self:
        """The same task with other options for what is submitted through it."""
        return type(self)(
            self.app,
            self.handler,
            self.terms,
            injected=self.injected,
            priority=self.priority,
            permanent=self.permanent,
            options={**self._options, **options},
        )

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> "Execution[R]":
        """Have it run, soon and once; answers as soon as that is on disk."""
        return await self.app.send(self, self.submission(*args, **kwargs))

    async def submit_many(self, calls: Sequence[tuple[Any, ...] | Mapping[str, Any]]) -> "list[Execution[R]]":
        """Have many run: a tuple of arguments, or a mapping of them by name, each."""
        asked = [
            self.submission(**call) if isinstance(call, Mapping) else self.submission(*call)  # type: ignore[call-arg]
            for call in calls
        ]
        return await self.app.send_many(self, asked)

    def submission(self, *args: P.args, **kwargs: P.kwargs) -> Submission:
        """What would be submitted by this call."""
        options = self._options
        changed = {name: options[name] for name in ("lane", "namespace", "budgets", "quotas") if name in options}
        return Submission(
            terms=msgspec.structs.replace(self.terms, **changed) if changed else self.terms,
            payload=self.arguments.encode(args, kwargs),
            execution_id=options.get("execution_id"),
            key=options.get("key"),
            priority=options.get("priority", self.priority),
            delay=spans.read_time(options.get("delay")),
            deadline=spans.read_time(options.get("deadline")),
            tags=options.get("tags", {}),
        )


def injected_parameter(handler: Callable[..., object], kind: type) -> str | None:
    """The name of the parameter annotated with that type, which the worker fills in."""
    hints = typing.get_type_hints(handler)
    return next((name for name in inspect.signature(handler).parameters if hints.get(name) is kind), None)
