"""The application: what holds the tasks, and the connections they are submitted through."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar, Unpack, cast, overload

from flowfabric import blocking, payloads
from flowfabric.app import declarations, schedules
from flowfabric.app.declarations import Budgets, Quotas
from flowfabric.app.decorators import StepDecorator, TaskDecorator
from flowfabric.app.executions import Execution
from flowfabric.app.flows import Flow
from flowfabric.app.following import Follower
from flowfabric.app.schedules import Declaration, Scheduled, TimingOptions
from flowfabric.app.signalling import Signaller
from flowfabric.app.submitting import Submitter
from flowfabric.app.subscriptions import EventLog
from flowfabric.app.tasks import Step, SubmitOptions, Task, TaskFunction, read_policy, submission
from flowfabric.app.waiters import Ends
from flowfabric.blocking import Blocking
from flowfabric.config import Config
from flowfabric.engine import executions, routes
from flowfabric.errors import FlowFabricError, SchemaBehind
from flowfabric.ids import ExecutionId, parse_execution_id
from flowfabric.model import Delivered, Options, ScheduleChange, SignalToSend, Submission, SubmitOutcome, Submitted
from flowfabric.postgres import connect
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.postgres.notify import Notifier
from flowfabric.schema import migrate

P = ParamSpec("P")
R = TypeVar("R")


class Connections(NamedTuple):
    """What an open app holds."""

    database: Database
    hints: Notifier
    log: EventLog
    ends: Ends
    follower: Follower
    submit: Submitter
    signal: Signaller
    close: AsyncExitStack


class App:
    """A set of tasks, and after `async with` the connections of this process.

    Settings come from the arguments, then from the environment (`FLOWFABRIC_URL`, …). Without a URL an embedded
    Postgres is started under `./.flowfabric` and brought to this version; a database of yours is only checked.

    `budgets` and `quotas` are made when the app is opened, or changed to what is said here:
    `App(budgets={"team-a": {"tokens": 1_000_000}}, quotas={"model": {"max_concurrent": 20}})`.
    """

    def __init__(self, *, budgets: Budgets | None = None, quotas: Quotas | None = None, **settings: Any) -> None:
        self.config = Config.read(**settings)
        self._declared = declarations.read(budgets, quotas)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.schedules: dict[tuple[str, str], Declaration] = {}
        self._opening = False
        self._connections: Connections | None = None

    def __repr__(self) -> str:
        return f"<app with {', '.join(self.tasks) or 'no tasks'}>"

    @property
    def task(self) -> TaskDecorator:
        """Make a function a task: `@app.task` or `@app.task(lane="research", retries=3, timeout="10m")`.

        The name is the function's unless one is given; it is what is stored, so it should stay as it is. `timeout` is
        for one attempt. `permanent` lists exceptions that are not worth a retry. At most `limit` runs of it go on at
        once in one worker; for all workers together there are quotas.
        """
        return cast(TaskDecorator, self._task)

    def _task(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        return partial(self._add, **options) if handler is None else self._add(handler)

    def _add(self, handler: Callable[..., Any], **options: Any) -> Task[..., Any]:
        name = options.pop("name", None) or getattr(handler, "__name__", "")
        if name in self.tasks:
            there = self.tasks[name].handler.__qualname__
            raise ValueError(f"there is a task {name!r} already, {there}; give this one a name of its own")
        own = {option: options.pop(option) for option in ("non_retryable", "priority", "limit") if option in options}
        policy = read_policy(options)
        task: Task[..., Any] = TaskFunction(self, handler, Options(task=name, policy=policy, **options), **own)
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

    def schedule(
        self, *, name: str | None = None, arguments: Mapping[str, object] | None = None, **timing: Unpack[TimingOptions]
    ) -> Callable[[Scheduled], Scheduled]:
        """Have a task submitted again and again: `@app.schedule(cron="0 9 * * 1-5", tz="Europe/Berlin")`, above it.

        The name is the task's unless one is given. A worker of this app makes the schedule, or changes it, when it
        starts. Raises `InvalidSchedule`.
        """
        return schedules.declaring(self.schedules, name, arguments, schedules.read_timing(timing))

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
            await self._prepare(conn)
            lanes = await declarations.make(
                conn, self._declared, (task.terms for task in self.tasks.values()), self.config
            )
            for task in self.tasks.values():
                await routes.register_route(conn, task.terms)
        hints = await opening.enter_async_context(Notifier(database))
        hints.send(lanes=lanes)
        log = await opening.enter_async_context(EventLog(database, hints))
        ends = Ends(hints, lambda waited: database.run(lambda conn: executions.list_ended(conn, waited), repeat=True))
        opening.push_async_callback(ends.close)
        follower = Follower(database, hints, ends)
        opening.push_async_callback(follower.close)
        submit = Submitter(self.config, database, hints)
        opening.push_async_callback(submit.one.close)
        signal = Signaller(database, hints)
        opening.push_async_callback(signal.one.close)
        return Connections(database, hints, log, ends, follower, submit, signal, opening.pop_all())

    async def _prepare(self, conn: Connection) -> None:
        """Bring an embedded database to this version when it is behind; one of yours is only checked."""
        try:
            await migrate.check(conn, self.config)
        except SchemaBehind:
            if self.config.url is not None:
                raise
            await migrate.migrate(conn, self.config)

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._opened.close.aclose()
        finally:
            self._connections = None

    def sync(self) -> "AbstractContextManager[Blocking[App]]":
        """The same app for a program that does not await: `with app.sync() as sync: sync.submit("report", …)`.

        It is opened on a loop in a thread of its own. `sync(report)` is a task of it in the same way.
        """
        return blocking.opened(self)

    @property
    def database(self) -> Database:
        """The connections for calls."""
        return self._opened.database

    @property
    def hints(self) -> Notifier:
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

    async def submit(self, name: str, options: SubmitOptions | None = None, /, **arguments: object) -> Execution[Any]:
        """Submit a task by its name, without its code; `options` say what its decorator would, such as the lane."""
        task = self.tasks.get(name)
        if task is not None:
            return await task.with_options(**(options or {})).submit(**arguments)
        asked = submission(Options(task=name), payloads.encode(arguments), options or {})
        return self._handle(await self._opened.submit.one(asked), Any)

    async def send(self, task: Task[..., R], asked: Submission) -> Execution[R]:
        """Submit for a task; what is submitted at the same time goes together."""
        return self._handle(await self._opened.submit.one(asked), task.returns)

    async def send_many(self, task: Task[..., R], asked: Sequence[Submission]) -> list[Execution[R]]:
        """Submit many for a task. Raises an exception group of the refusals, when there are any; the others are in."""
        answers = await self._opened.submit.many(asked)
        refused = [answer for answer in answers if isinstance(answer, FlowFabricError)]
        if refused:
            raise ExceptionGroup(f"{len(refused)} of {len(asked)} submissions were refused", refused)
        created, returns = SubmitOutcome.CREATED, task.returns
        return [
            Execution(self, answer.execution_id, returns, fresh=answer.outcome is created)
            for answer in cast(list[Submitted], answers)
        ]

    async def signal(self, signal: SignalToSend) -> Delivered:
        """Send a signal to a waitpoint by its id; what is sent at the same time goes together.

        Raises `InvalidToken`, `WaitpointClosed`, and what else refuses a signal.
        """
        return await self._opened.signal.one(signal)

    def _handle(self, answer: Submitted, returns: Any) -> Execution[Any]:
        return Execution(self, answer.execution_id, returns, fresh=answer.outcome is SubmitOutcome.CREATED)

    def execution(self, execution_id: str | ExecutionId) -> Execution[Any]:
        """The handle of an execution that somebody else submitted. Raises `InvalidId`."""
        return Execution(self, parse_execution_id(str(execution_id), self.config.execution_partitions))

    def flow(
        self, kind: str, *, key: str | None = None, namespace: str = "default", tags: Mapping[str, str] | None = None
    ) -> Flow:
        """A flow to put tasks into that wait for each other, and then submit whole; `kind` is what it is called.

        With a key it is submitted once: whoever submits one with that key later gets the same executions.
        """
        return Flow(self, kind, namespace, key, tags)

    async def create_schedule(
        self,
        name: str,
        task: Task[..., Any] | str,
        arguments: Mapping[str, object] | None = None,
        *,
        by: str | None = None,
        paused: bool = False,
        **timing: Unpack[TimingOptions],
    ) -> ScheduleChange:
        """Have a task submitted again and again, by `cron` and `tz` or `every` span, until the schedule is deleted.

        Safe to repeat: the same schedule answers `NOOP`. Raises `InvalidSchedule`, `ScheduleAlreadyExists`.
        """
        asked = schedules.submitted(self, task, arguments)
        return await schedules.create(self, name, asked, schedules.read_timing(timing), by=by, paused=paused)

    async def declare_schedules(self) -> None:
        """Make the schedules of `@app.schedule` what the code says; a worker does so when it starts."""
        await schedules.make_declared(self)

    async def wake(self, lane: str) -> None:
        """Tell workers that a lane has work: after the commit of a transaction of yours that submitted some."""
        self.notifier.send(lanes=[lane])

    def tell_ended(self, execution_ids: Iterable[str], *, follow: bool = True) -> None:
        """Wake those who wait for these executions, here and in other processes.

        With `follow` also those who wait for what these ends have brought about, should they be in flows.
        """
        ended = list(execution_ids)
        self.ends.tell(ended)
        self.notifier.send(ended=ended)
        if follow:
            self._opened.follower.follow(ended)


def _step(function: Callable[..., Any], *, name: str | None = None, **options: Any) -> Step[..., Any]:
    return Step(function, name=name or function.__name__, **{"retries": 0, "backoff": "100ms", **options})
