"""The application: what holds the tasks, and the connections they are submitted through."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast, overload

import msgspec

from flowfabric import connect, migrate, payloads, spans
from flowfabric.batch import Batch
from flowfabric.config import Config
from flowfabric.context import Context
from flowfabric.db import Database
from flowfabric.engine import executions, routes
from flowfabric.errors import Refusal
from flowfabric.handle import Ends, Execution
from flowfabric.hints import Hints
from flowfabric.ids import ExecutionId, mint_execution_id, parse_execution_id
from flowfabric.model import Submission, Submitted, Terms
from flowfabric.subscriptions import EventLog
from flowfabric.task import Task, injected_parameter

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """Makes a function a task."""

    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, R]: ...


class App:
    """A set of tasks, and after `async with` the connections of this process.

    Settings come from the arguments, then from the environment (`FLOWFABRIC_URL`, …). Without a URL an embedded
    Postgres is started under `./.flowfabric` and brought to this version; a database of yours is only checked.
    """

    def __init__(self, **settings: Any) -> None:
        self.config = Config.read(**settings)
        self.tasks: dict[str, Task[..., Any]] = {}
        self._open = AsyncExitStack()

    @overload
    def task(self, handler: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, handler: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, handler: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, handler: Callable[P, R], /) -> Task[P, R]: ...
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
        backoff: Mapping[str, object] | None = None,
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
        name = options.pop("name", None) or handler.__name__
        if name in self.tasks:
            raise ValueError(
                f"there is a task {name!r} already, {self.tasks[name].handler.__qualname__}; name this one"
            )
        permanent = options.pop("permanent", ())
        priority = options.pop("priority", 0)
        terms = Terms(kind=name, policy=_policy(options), **options)
        injected = injected_parameter(handler, Context)
        self.tasks[name] = Task(self, handler, terms, injected=injected, priority=priority, permanent=permanent)
        return self.tasks[name]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            self.database: Database = await opening.enter_async_context(connect.open_database(self.config))
            async with self.database.connection() as conn:
                if self.config.url is None:
                    await migrate.migrate(conn, self.config)
                await migrate.check(conn, self.config)
                for task in self.tasks.values():
                    await routes.register_route(conn, task.terms)
            self.hints = await opening.enter_async_context(Hints(self.database))
            self.log = await opening.enter_async_context(EventLog(self.database, self.hints))
            self.ends = Ends(self.hints)
            opening.callback(self.ends.forget)
            self._submit = Batch(self._submit_all, size=lambda asked: len(asked.payload or b""), in_flight=2)
            opening.push_async_callback(self._submit.close)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()

    async def submit(self, name: str, /, **arguments: object) -> Execution[Any]:
        """Submit a task by its name, without its code."""
        task = self.tasks.get(name)
        if task is not None:
            return await task.submit(**arguments)
        asked = Submission(terms=Terms(kind=name), payload=payloads.encode(arguments))
        return Execution(self, (await self._submit(asked)).execution_id)

    async def send(self, task: Task[..., R], asked: Submission) -> Execution[R]:
        """Submit for a task; what is submitted at the same time goes together."""
        return Execution(self, (await self._submit(asked)).execution_id, task.returns)

    async def send_many(self, task: Task[..., R], asked: Sequence[Submission]) -> list[Execution[R]]:
        """Submit many for a task. Raises an `ExceptionGroup` of the refusals, when there are any; the others are in."""
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


def _policy(options: dict[str, Any]) -> Mapping[str, object]:
    """The policy that a task's options stand for; one given whole is completed by them."""
    policy: dict[str, object] = dict(options.pop("policy", None) or {})
    retries, backoff, timeout = options.pop("retries", 0), options.pop("backoff", None), options.pop("timeout", None)
    if retries:
        policy["retry"] = {"max_retries": retries, **({"backoff": backoff} if backoff else {})}
    if timeout is not None:
        policy["attempt_timeout_ms"] = spans.read_span(timeout) // timedelta(milliseconds=1)
    return policy
