"""The application: what holds the tasks, and the connections they are submitted through."""

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self, TypeVar, cast, overload

import msgspec

from flowfabric import blocking, connect, migrate, payloads
from flowfabric.batch import Batch
from flowfabric.blocking import Blocking
from flowfabric.config import Config
from flowfabric.context import Context
from flowfabric.db import Database
from flowfabric.ends import Ends
from flowfabric.engine import executions, routes
from flowfabric.errors import Refusal
from flowfabric.handle import Execution
from flowfabric.hints import Hints
from flowfabric.ids import ExecutionId, mint_execution_id, parse_execution_id
from flowfabric.model import Submission, Submitted, Terms
from flowfabric.subscriptions import EventLog
from flowfabric.task import Options, Step, Task, TaskFunction, read_policy, submission

P = ParamSpec("P")
R = TypeVar("R")


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
        self, handler: Callable[Concatenate[Blocking[Context], P], R], /
    ) -> TaskFunction[P, R, Concatenate[Blocking[Context], P], R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, P], R], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> TaskFunction[P, R, P, R]: ...


class StepDecorator(Protocol):
    """Makes a function a step."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


class Connections(NamedTuple):
    """What an open app holds."""

    database: Database
    hints: Hints
    log: EventLog
    ends: Ends
    submit: Batch[Submission, Submitted]
    close: AsyncExitStack


class App:
    """A set of tasks, and after `async with` the connections of this process.

    Settings come from the arguments, then from the environment (`FLOWFABRIC_URL`, …). Without a URL an embedded
    Postgres is started under `./.flowfabric` and brought to this version; a database of yours is only checked.
    """

    def __init__(self, **settings: Any) -> None:
        self.config = Config.read(**settings)
        self.tasks: dict[str, Task[..., Any]] = {}
        self._opening = False
        self._connections: Connections | None = None

    def __repr__(self) -> str:
        return f"<app with {', '.join(self.tasks) or 'no tasks'}>"

    @overload
    def task(
        self, handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def task(
        self, handler: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def task(
        self, handler: Callable[Concatenate[Blocking[Context], P], R], /
    ) -> TaskFunction[P, R, Concatenate[Blocking[Context], P], R]: ...
    @overload
    def task(
        self, handler: Callable[Concatenate[Context, P], R], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], R]: ...
    @overload
    def task(self, handler: Callable[P, R], /) -> TaskFunction[P, R, P, R]: ...
    @overload
    def task(
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
        permanent: Sequence[type[Exception]] = (),
        policy: Mapping[str, object] | None = None,
    ) -> Decorator: ...
    def task(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Make a function a task: `@app.task` or `@app.task(lane="research", retries=3, timeout="10m")`.

        The name is the function's unless one is given; it is what is stored, so it should stay as it is. `timeout` is
        for one attempt. `permanent` lists exceptions that are not worth a retry.
        """
        if handler is None:
            return partial(self._add, **options)
        return self._add(handler)

    def _add(self, handler: Callable[..., Any], **options: Any) -> Task[..., Any]:
        name = options.pop("name", None) or getattr(handler, "__name__", "")
        if name in self.tasks:
            there = self.tasks[name].handler.__qualname__
            raise ValueError(f"there is a task {name!r} already, {there}; give this one a name of its own")
        permanent, priority = options.pop("permanent", ()), options.pop("priority", 0)
        policy = read_policy(options)
        task: Task[..., Any] = TaskFunction(
            self, handler, Terms(kind=name, policy=policy, **options), priority=priority, permanent=permanent
        )
        if not name.isprintable() or "<" in name:
            raise ValueError(f"{name} is no name to find a task by; give one: @app.task(name=...)")
        self.tasks[name] = task
        return task

    @overload
    def step(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def step(self, function: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self, *, name: str | None = None, retries: int = 0, backoff: str | timedelta = "100ms"
    ) -> StepDecorator: ...
    def step(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Make a function a step of whatever handler calls it with its context: `notes = await search(ctx, topic)`.

        Its name is the function's unless one is given. Retries happen at once, under the lease.
        """
        if function is None:
            return partial(_step, **options)
        return _step(function)

    async def __aenter__(self) -> Self:
        if self._opening or self._connections is not None:
            raise RuntimeError("this app is open already; one `async with` is enough for a process")
        self._opening = True
        try:
            async with AsyncExitStack() as opening:
                self._connections = await self._open(opening)
        finally:
            self._opening = False
        return self

    async def _open(self, opening: AsyncExitStack) -> Connections:
        database = await opening.enter_async_context(connect.open_database(self.config))
        async with database.connection() as conn:
            if self.config.url is None:
                await migrate.migrate(conn, self.config)
            await migrate.check(conn, self.config)
            for task in self.tasks.values():
                await routes.register_route(conn, task.terms)
        hints = await opening.enter_async_context(Hints(database))
        log = await opening.enter_async_context(EventLog(database, hints))
        ends = Ends(hints, lambda waited: database.run(lambda conn: executions.list_ended(conn, waited), repeat=True))
        opening.push_async_callback(ends.close)
        submit = Batch(self._submit_all, size=lambda asked: len(asked.payload or b""), in_flight=2)
        opening.push_async_callback(submit.close)
        return Connections(database, hints, log, ends, submit, opening.pop_all())

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._opened.close.aclose()
        finally:
            self._connections = None

    def blocking(self) -> "AbstractContextManager[Blocking[App]]":
        """The same app for a program that does not await: `with app.blocking() as sync: sync.submit("report", …)`.

        It is opened on a loop in a thread of its own. `sync(report)` is a task of it in the same way.
        """
        return blocking.opened(self)

    @property
    def database(self) -> Database:
        """The connections for calls."""
        return self._opened.database

    @property
    def hints(self) -> Hints:
        """What tells other processes that there is something to look at."""
        return self._opened.hints

    @property
    def log(self) -> EventLog:
        """The log of all that happens, to subscribe to."""
        return self._opened.log

    @property
    def ends(self) -> Ends:
        """Who waits for executions to end in this process."""
        return self._opened.ends

    @property
    def _opened(self) -> Connections:
        if self._connections is None:
            raise RuntimeError("this app is not open; use it inside `async with app:`")
        return self._connections

    async def submit(self, name: str, options: Options | None = None, /, **arguments: object) -> Execution[Any]:
        """Submit a task by its name, without its code; `options` say what its decorator would, such as the lane."""
        task = self.tasks.get(name)
        if task is not None:
            return await task.using(**(options or {})).submit(**arguments)
        asked = submission(Terms(kind=name), payloads.encode(arguments), options or {})
        return Execution(self, (await self._opened.submit(asked)).execution_id)

    async def send(self, task: Task[..., R], asked: Submission) -> Execution[R]:
        """Submit for a task; what is submitted at the same time goes together."""
        return Execution(self, (await self._opened.submit(asked)).execution_id, task.returns)

    async def send_many(self, task: Task[..., R], asked: Sequence[Submission]) -> list[Execution[R]]:
        """Submit many for a task. Raises an exception group of the refusals, when there are any; the others are in."""
        answers = await self._submit_all(asked)
        refused = [answer for answer in answers if isinstance(answer, Refusal)]
        if refused:
            raise ExceptionGroup(f"{len(refused)} of {len(asked)} submissions were refused", refused)
        return [Execution(self, answer.execution_id, task.returns) for answer in cast(list[Submitted], answers)]

    def execution(self, execution_id: str | ExecutionId) -> Execution[Any]:
        """The handle of an execution that somebody else submitted. Raises `InvalidId`."""
        return Execution(self, parse_execution_id(str(execution_id), self.config.execution_partitions))

    async def wake(self, lane: str) -> None:
        """Tell workers that a lane has work: after the commit of a transaction of yours that submitted some."""
        self.hints.send(lanes=[lane])

    def tell_ended(self, execution_ids: Iterable[str]) -> None:
        """Wake those who wait for these executions, here and in other processes."""
        ended = list(execution_ids)
        self.ends.tell(ended)
        self.hints.send(ended=ended)

    async def _submit_all(self, asked: Sequence[Submission]) -> list[Submitted | Refusal]:
        partitions, limit = self.config.execution_partitions, self.config.payload_limit
        # With ids of our own the call can be repeated when a reply is lost: what was taken is not taken again.
        minted = [self._with_id(submission) for submission in asked]
        answers = await self.database.run(
            lambda conn: executions.submit_many(conn, minted, partitions=partitions, payload_limit=limit), repeat=True
        )
        self.hints.send(lanes={submission.terms.lane for submission in asked})
        return answers

    def _with_id(self, asked: Submission) -> Submission:
        if asked.execution_id is not None:
            return asked
        return msgspec.structs.replace(asked, execution_id=mint_execution_id(self.config.execution_partitions))


def _step(function: Callable[..., Any], *, name: str | None = None, **options: Any) -> Step[..., Any]:
    return Step(function, name=name or function.__name__, **{"retries": 0, "backoff": "100ms", **options})
