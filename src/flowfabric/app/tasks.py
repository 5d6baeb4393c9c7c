"""Tasks: functions that run durably. A decorated function can still be called directly."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, overload

import msgspec

from flowfabric import calls, durations, payloads
from flowfabric.app.encoding import Labels, settle
from flowfabric.app.executions import Execution
from flowfabric.app.joining import join
from flowfabric.app.sync import SyncExecution
from flowfabric.engine import executions
from flowfabric.errors import FlowFabricError, InvalidBody, UnknownTask
from flowfabric.handler.captured import read_level
from flowfabric.handler.context import Context
from flowfabric.handler.journal import earlier_names
from flowfabric.handler.sync import SyncContext
from flowfabric.ids import ExecutionId, mint_execution_ids, shown
from flowfabric.model import ChildMap, OnParentEnd, Options, Submission, Submitted
from flowfabric.payloads import Arguments
from flowfabric.payloads.codecs import PLAIN
from flowfabric.postgres.callers import AsyncCaller, SyncCaller
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app import App

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
C = TypeVar("C")


class SubmitOptions(TypedDict, total=False):
    """The options of one submission, in addition to those of its task."""

    lane: str
    namespace: str
    priority: int
    key: str
    delay: str | timedelta | datetime
    deadline: str | timedelta | datetime
    tags: Mapping[str, str]
    budgets: Collection[str]
    quotas: Collection[str]
    execution_id: str | ExecutionId
    on_parent_end: OnParentEnd
    was: str | Sequence[str]


class ChildCall(msgspec.Struct, frozen=True):
    """A child that a handler submits with `ctx.submit`, and the type of its result."""

    submission: Submission
    on_parent_end: OnParentEnd
    returns: Any
    was: Sequence[str] = ()
    """Earlier names of the task, under which the handler may have submitted the child."""
    map: ChildMap | None = None


OF_TASK = ("lane", "namespace", "budgets", "quotas")


class Task(Generic[P, R]):
    """A function that runs durably: call it as before, or submit it. `P` are the arguments of a submission."""

    def __init__(
        self,
        app: "App",
        handler: Callable[..., Any],
        options: Options,
        *,
        priority: int = 0,
        non_retryable: Sequence[type[Exception]] = (),
        limit: int | None = None,
        retired: str | Collection[str] = (),
        version: int | None = None,
        capture_logs: bool | int | str = False,
    ) -> None:
        _check_handler(handler)
        if version is not None and (type(version) is not int or not 1 <= version < 1 << 31):
            raise ValueError(f"version {version!r} is invalid; use a whole number from 1")
        if limit is not None and limit < 1:
            raise ValueError(
                f"limit {limit} is invalid; use 1 or more, the number of runs of this task at once in one worker"
            )
        self.app = app
        self.handler = handler
        self.options = options
        self.priority = calls.priority(priority)
        self.non_retryable = tuple(non_retryable)
        self.limit = limit
        self.version = version or 1
        self.is_versioned = version is not None
        self.capture_logs = read_level(capture_logs)
        self.retired = frozenset([retired] if isinstance(retired, str) else retired)
        self.is_async = inspect.iscoroutinefunction(handler)
        self.injected = injected_parameter(handler)
        self.arguments = Arguments(handler, self.injected)
        self.returns = readable(payloads.returned(handler), handler)
        self._overrides: SubmitOptions = {}
        self.__name__ = handler.__name__
        self.__qualname__ = handler.__qualname__
        self.__module__ = handler.__module__
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler

    @property
    def name(self) -> str:
        """The stored name: the one given to `@app.task`, or the function's."""
        return self.options.task

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly, without submitting anything."""
        return self.handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}{f' version {self.version}' if self.is_versioned else ''}>"

    def with_options(self, **options: Unpack[SubmitOptions]) -> Self:
        """Return the same task with other options for its submissions. Raises `TypeError` for an unknown option."""
        read_options(options)
        changed = type(self).__new__(type(self))
        changed.__dict__.update(self.__dict__, _overrides={**self._overrides, **options})
        changed.__dict__.pop("_template", None)
        return changed

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> "Execution[R]":
        """Submit the task with these arguments; returns when the execution is stored durably.

        Raises the errors of `executions.submit`, such as `PayloadTooLarge`; then nothing is submitted.
        """
        return Execution.of(self.app, await self.app.client.submit(self.submission(*args, **kwargs)), self.returns)

    async def submit_many(self, calls: Sequence[tuple[Any, ...] | Mapping[str, Any]]) -> "list[Execution[R]]":
        """Submit many: each call is a tuple of arguments, or a mapping of them by name.

        If some are refused, raises an exception group of those errors; the others are submitted.
        """
        return self._executions(await self.app.client.submit_many(self._submissions(calls)))

    @overload
    def submit_in(
        self, conn: AsyncCaller, /, *args: P.args, **kwargs: P.kwargs
    ) -> "Coroutine[Any, Any, Execution[R]]": ...
    @overload
    def submit_in(self, conn: SyncCaller, /, *args: P.args, **kwargs: P.kwargs) -> SyncExecution[R]: ...
    def submit_in(self, conn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submit inside your own open transaction, on your connection or session: with your rows, or not at all.

        Takes a connection of asyncpg, psycopg 3 or Django, or a session or connection of SQLAlchemy 2. Await the call
        if the connection is async. Workers are notified after the commit of a SQLAlchemy session or of Django; with
        other connections they find the execution by polling, within a second, or at once after `await app.wake(lane)`.
        Raises the same errors as `submit`, and your transaction stays usable; raises `RuntimeError` if no transaction
        is open.
        """
        return self._join(
            conn, lambda: [self.submission(*args, **kwargs)], lambda answers: self._execution(calls.only(answers))
        )

    @overload
    def submit_many_in(
        self, conn: AsyncCaller, calls: Sequence[tuple[Any, ...] | Mapping[str, Any]], /
    ) -> "Coroutine[Any, Any, list[Execution[R]]]": ...
    @overload
    def submit_many_in(
        self, conn: SyncCaller, calls: Sequence[tuple[Any, ...] | Mapping[str, Any]], /
    ) -> list[SyncExecution[R]]: ...
    def submit_many_in(self, conn: Any, calls: Sequence[tuple[Any, ...] | Mapping[str, Any]], /) -> Any:
        """Submit many inside your own open transaction, in one statement per thousand.

        If some are refused, raises an exception group of those errors; the others are part of your transaction, so roll
        it back unless you want them.
        """
        return self._join(conn, lambda: self._submissions(calls), self._executions)

    def _join(
        self,
        conn: object,
        submissions: Callable[[], Sequence[Submission]],
        read: Callable[[Sequence[Submitted | FlowFabricError]], Any],
    ) -> Any:
        """Submit in the transaction of a caller; on a sync connection, return sync handles."""
        app = self.app

        async def submit(conn: Connection) -> tuple[Sequence[Submitted | FlowFabricError], list[str]]:
            asked = submissions()
            encode, minted = Labels(app.codecs).encode, mint_execution_ids(len(asked))
            encoded = [encode(each, execution_id) for each, execution_id in zip(asked, minted, strict=True)]
            answers = await executions.submit_many(conn, encoded, payload_limit=app.config.payload_limit, minted=minted)
            if app.codecs.label != PLAIN:
                answers = [await settle(conn, app.codecs, *each) for each in zip(asked, answers, strict=True)]
            is_any = any(isinstance(answer, Submitted) for answer in answers)
            return answers, [self._template.options.lane] if is_any else []

        def in_sync(made: Any) -> Any:
            if isinstance(made, list):
                return [SyncExecution(each, lambda: app.loop) for each in made]
            return SyncExecution(made, lambda: app.loop)

        return join(app, conn, submit, read, in_sync)

    def submission(self, *args: P.args, **kwargs: P.kwargs) -> Submission:
        """Build the submission that `submit` would send, for `flowfabric.engine.executions.submit`."""
        return self.submission_of(self.arguments.encode(args, kwargs))

    def submission_of(self, payload: bytes) -> Submission:
        """Build a submission from a payload that is already encoded."""
        return msgspec.structs.replace(self._template, payload=payload)

    def _submissions(self, calls: Sequence[tuple[Any, ...] | Mapping[str, Any]]) -> list[Submission]:
        template, encode, replace = self._template, self.arguments.encode, msgspec.structs.replace
        encoded = [encode(call, {}) if type(call) is tuple else self._payload(call) for call in calls]
        return [replace(template, payload=payload) for payload in encoded]

    def _executions(self, answers: Sequence[Submitted | FlowFabricError]) -> "list[Execution[R]]":
        refused = [answer for answer in answers if isinstance(answer, FlowFabricError)]
        if refused:
            raise ExceptionGroup(f"{len(refused)} of {len(answers)} submissions were refused", refused)
        return [self._execution(answer) for answer in cast(Sequence[Submitted], answers)]

    def _execution(self, answer: Submitted) -> "Execution[R]":
        return Execution.of(self.app, answer, self.returns)

    def _payload(self, call: Sequence[Any] | Mapping[str, Any]) -> bytes:
        return self.arguments.encode((), call) if isinstance(call, Mapping) else self.arguments.encode(tuple(call), {})

    @functools.cached_property
    def _template(self) -> Submission:
        """A submission of the task without its payload."""
        self._check_newest()
        return submission(self.options, b"", {"priority": self.priority, **self._overrides})

    def child_call(self, *args: P.args, **kwargs: P.kwargs) -> ChildCall:
        """Build the child that this call submits in a handler. Raises `InvalidBody` for an option not for children."""
        self._check_newest()
        payload = self.arguments.encode(args, kwargs)
        return child_call(self.options, payload, {"priority": self.priority, **self._overrides}, self.returns)

    def _check_newest(self) -> None:
        """Refuse to submit an old version. Raises `ValueError`."""
        newest = self.app.tasks.get(self.name, self)
        if newest.version != self.version:
            raise ValueError(
                f"version {self.version} of task {self.name} only finishes executions that have started under it; "
                f"submit version {newest.version}: {newest.__name__}"
            )


class TaskFunction(Task[P, R], Generic[P, R, Q, C]):
    """A task with the types of a direct call: with the context as an argument, and a coroutine if it is async."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> C:
        """Call the function directly, without submitting anything."""
        called: C = self.handler(*args, **kwargs)
        return called


def submission(options: Options, payload: bytes, overrides: SubmitOptions) -> Submission:
    """Build a submission from a task's options and those of one call."""
    given = read_options(overrides)
    for name in ("on_parent_end", "was"):
        if name in given:
            raise ValueError(f"option {name!r} is invalid without a parent; use ctx.submit in a handler")
    changed = {name: given.pop(name) for name in OF_TASK if name in given}
    if changed:
        options = msgspec.structs.replace(options, **changed)
    return Submission(options=options, payload=payload, **given)


def child_call(options: Options, payload: bytes, overrides: SubmitOptions, returns: Any = Any) -> ChildCall:
    """Build a child with these options. Raises `InvalidBody` for an option that children cannot have."""
    given: dict[str, Any] = dict(overrides)
    on_parent_end, was = given.pop("on_parent_end", "cancel"), earlier_names(given.pop("was", ()))
    for name in ("key", "execution_id"):
        if name in given:
            raise InvalidBody(
                f"option {name!r} is invalid for a child, whose id follows from its parent; remove it",
                field=name,
            )
    if on_parent_end not in ("cancel", "let_run"):
        raise InvalidBody(f"on_parent_end {on_parent_end!r} is invalid; use cancel or let_run", field="on_parent_end")
    return ChildCall(submission(options, payload, cast(SubmitOptions, given)), on_parent_end, returns, was)


def named(tasks: Mapping[str, Task[..., Any]], name: str, options: SubmitOptions) -> Task[..., Any] | None:
    """Return the task of this name, or `None` for a task of another program: an app without tasks knows none.

    An app with tasks knows most names, so one that it does not have is probably misspelt. Only the task itself knows
    its lane, so options that name a lane say that it belongs to another program. Raises `UnknownTask`.
    """
    found = tasks.get(name)
    if found is None and tasks and "lane" not in options:
        raise unknown_task(tasks, name, 'for a task of another program, give its lane: {"lane": "default"}')
    return found


def read_returns(task: Task[..., Any] | None, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the type of the result of a task submitted by name, and its arguments without `returns=`.

    Raises `InvalidBody` if that is no type, and `TypeError` if the task has an argument of that name.
    """
    arguments = dict(given)
    known = Any if task is None else task.returns
    if "returns" not in arguments:
        return known, arguments
    if task is not None and "returns" in task.arguments.names:
        raise TypeError(f"task {task.name} has an argument named returns; submit the task itself, not its name")
    return payloads.check_kind(arguments.pop("returns"), "the result"), arguments


def unknown_task(tasks: Collection[str], name: str, *remedies: str) -> UnknownTask:
    """Return the error for a name that no task of the app has."""
    similar = difflib.get_close_matches(name, tasks, 1)
    there = f"use {similar[0]}" if similar else f"existing tasks: {', '.join(tasks) or 'none'}"
    return UnknownTask("; ".join((f"task {shown(name)} does not exist in this app", there, *remedies)), task=name)


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check options and parse their times. Raises `TypeError` for an unknown option, `ValueError` and `InvalidBody`."""
    if unknown := sorted(options.keys() - SubmitOptions.__annotations__.keys()):
        raise TypeError(f"option {unknown[0]!r} is unknown; use {', '.join(SubmitOptions.__annotations__)}")
    if (key := options.get("key")) == "":
        raise InvalidBody(f"key {key!r} is invalid; use 1 to 256 bytes, or leave it out", field="key")
    calls.priority(options.get("priority"))
    times = {name: durations.read_time(options[name]) for name in ("delay", "deadline") if name in options}
    return {**options, **times}


def read_policy(options: dict[str, Any]) -> Mapping[str, object]:
    """Take retries, backoff and timeout out of a task's options, and merge them into its policy."""
    policy: dict[str, Any] = dict(options.pop("policy", None) or {})
    retries, backoff, timeout = options.pop("retries", None), options.pop("backoff", None), options.pop("timeout", None)
    if retries is not None and (not isinstance(retries, int) or retries < 0):
        raise ValueError(f"retries {retries!r} is invalid; use a whole number from 0")
    if backoff is not None and not (retries or "retry" in policy):
        raise ValueError("backoff has no effect without retries; use retries=1 or more")
    retry = dict(policy.get("retry", {}))
    if retries is not None:
        retry["max_retries"] = retries
    if backoff is not None:
        retry["backoff"] = (
            dict(backoff) if isinstance(backoff, Mapping) else _exponential(durations.read_duration(backoff))
        )
    if retry.get("max_retries"):
        policy["retry"] = retry
    if timeout is not None:
        policy["attempt_timeout_ms"] = durations.read_duration(timeout) // timedelta(milliseconds=1)
        if not policy["attempt_timeout_ms"]:
            raise ValueError(f"timeout {timeout!r} is invalid; use 1ms or more")
    return policy


def injected_parameter(handler: Callable[..., object]) -> str | None:
    """Return the name of the parameter annotated with the context, which the worker passes."""
    types = payloads.hints(handler)
    wanted = (Context, SyncContext)
    found = [name for name in inspect.signature(handler).parameters if types.get(name) in wanted]
    if len(found) > 1:
        raise TypeError(f"{handler.__qualname__} takes the context twice, as {' and '.join(found)}; annotate one only")
    return found[0] if found else None


def readable(returns: Any, function: Callable[..., object]) -> Any:
    """Return the type that a function returns if results of it can be saved. Raises `TypeError`."""
    try:
        return payloads.check_kind(returns, f"the result of {getattr(function, '__qualname__', repr(function))}")
    except InvalidBody as refused:
        raise TypeError(refused.message) from None


def _exponential(first: timedelta) -> Mapping[str, object]:
    """Build an exponential backoff up to an hour, with jitter, so that executions do not retry all at the same time."""
    milliseconds = first // timedelta(milliseconds=1)
    most = max(milliseconds, 3_600_000)
    return {
        "type": "exponential",
        "initial_delay_ms": milliseconds,
        "multiplier": 2,
        "max_delay_ms": most,
        "jitter": True,
    }


def _check_handler(handler: Callable[..., object]) -> None:
    name = getattr(handler, "__qualname__", repr(handler))
    if not inspect.isfunction(handler):
        raise TypeError(f"{name} is not a plain function; a worker finds its handler by name, so define one with def")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError(f"{name} is a generator; return the result instead of yielding")
    first = next(iter(inspect.signature(handler).parameters.values()), None)
    if first is not None and first.name in ("self", "cls") and first.annotation is first.empty:
        raise TypeError(f"{name} is a method, and a worker has no object to call it on; make it a function")
