"""The application: holds the tasks, and the connections through which they are submitted."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import datetime
from functools import partial
from types import UnionType
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from flowfabric import payloads
from flowfabric.app import declarations, schedules
from flowfabric.app.client import Client
from flowfabric.app.decorators import StepDecorator, TaskDecorator
from flowfabric.app.executions import Execution
from flowfabric.app.flows import Flow
from flowfabric.app.namespaces import (
    Approvals,
    Budgets,
    Events,
    Executions,
    Flows,
    Lanes,
    Quotas,
    Schedules,
    SigningKeys,
    Waitpoints,
    Workers,
)
from flowfabric.app.schedules import Declaration, Scheduled, TimingOptions
from flowfabric.app.steps import Step
from flowfabric.app.subscriptions import EventLog
from flowfabric.app.sync import SyncApp
from flowfabric.app.tails import Tails
from flowfabric.app.tasks import SubmitOptions, Task, TaskFunction, named, read_policy, read_returns, submission
from flowfabric.app.waiters import Waiters
from flowfabric.config import Config
from flowfabric.engine import clock, executions, overview, routes
from flowfabric.errors import BadSetting, SchemaBehind
from flowfabric.ids import ExecutionId, parse_execution_id
from flowfabric.model import Delivered, Options, Overview, SignalToSend
from flowfabric.payloads.codecs import PLAIN, Codec, Codecs, of_signal
from flowfabric.postgres.database import MIGRATING, Database, open_database
from flowfabric.postgres.driver import Connection
from flowfabric.postgres.notify import Notifier
from flowfabric.schema import migrate

P = ParamSpec("P")
R = TypeVar("R")

ASGIApp = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]

OWN_OPTIONS = ("non_retryable", "priority", "limit", "retired", "version", "capture_logs")
"""The options of a task that the worker uses, and that no submission carries."""


class Connections(NamedTuple):
    """The connections and background helpers of an open app."""

    database: Database
    notifier: Notifier
    log: EventLog
    waiters: Waiters
    client: Client
    tails: Tails
    close: AsyncExitStack
    loop: asyncio.AbstractEventLoop


class App:
    """A set of tasks and, inside `async with`, the connections of this process.

    Settings come from the arguments, then from the environment (`FLOWFABRIC_URL`, …). Without a URL an embedded
    Postgres starts under `./.flowfabric` and is migrated to this release; your own database is only checked.

    Opening the app creates the `budgets` and `quotas` given here, or changes them to these values:
    `App(budgets={"team-a": {"tokens": 1_000_000}}, quotas={"model": {"max_concurrent": 20}})`.
    """

    def __init__(
        self,
        *,
        budgets: declarations.Budgets | None = None,
        quotas: declarations.Quotas | None = None,
        codec: Codec | Sequence[Codec] | None = None,
        **settings: Any,
    ) -> None:
        self.config = Config.read(**settings)
        self.codecs = Codecs(codec)
        """What encodes and decodes payloads."""
        self._declared = declarations.read(budgets, quotas)
        self.tasks: dict[str, Task[..., Any]] = {}
        """The newest version of each task, by name."""
        self.versions: dict[str, dict[int, Task[..., Any]]] = {}
        """All versions of each task, by name and version."""
        self.scheduled: dict[tuple[str, str], Declaration] = {}
        self.opening = threading.Lock()  # held by a thread that opens the app for sync code
        self.kept_open: ExitStack | None = None  # closes what `app.sync().open()` has opened
        self._opening = False
        self._connections: Connections | None = None

    def __repr__(self) -> str:
        return f"<app with {', '.join(self.tasks) or 'no tasks'}>"

    @property
    def task(self) -> TaskDecorator:
        """Make a function a task: `@app.task` or `@app.task(lane="research", retries=3, timeout="10m")`.

        The task's name is the function's unless you give one. The name is stored, so do not change it while executions
        are unfinished. `timeout` is for one attempt. `non_retryable` lists exceptions that fail the execution without
        a retry. `limit` is how many runs of the task one worker runs at once; quotas limit all workers together.
        `retired` names steps that the handler no longer has: executions that have saved them complete without them.
        With `capture_logs=True` the output of an execution shows what its handler logs; a level such as `"WARNING"` is
        the lowest one to show.
        With a `version`, an execution stays with the version under which it first started, and only workers that have
        this version run it. Several versions of a task may be in one app, as functions with the same name for the task:
        the newest one is submitted and starts new executions.
        """
        return cast(TaskDecorator, self._task)

    def _task(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        return partial(self._add, **options) if handler is None else self._add(handler)

    def _add(self, handler: Callable[..., Any], **options: Any) -> Task[..., Any]:
        name = options.pop("name", None) or getattr(handler, "__name__", "")
        own = {option: options.pop(option) for option in OWN_OPTIONS if option in options}
        policy = read_policy(options)
        task: Task[..., Any] = TaskFunction(self, handler, Options(task=name, policy=policy, **options), **own)
        if not name.isprintable() or "<" in name:
            raise ValueError(f"task name {name!r} is invalid; use another one: @app.task(name=...)")
        versions = self.versions.setdefault(name, {})
        _check_version(task, versions)
        versions[task.version] = task
        self.tasks[name] = versions[max(versions)]
        return task

    @property
    def step(self) -> StepDecorator:
        """Make a function a step of every handler that calls it with its context: `await search(ctx, topic)`.

        `@app.step` or `@app.step(retries=2, backoff="1s")`. The step's name is the function's unless you give one. Its
        result is read as the annotated type, or as `returns`. Retries run immediately, while the worker holds the
        lease. If you rename the step, give its old name as `was`: what is saved under it counts as saved. If a
        parameter is annotated with the context, the function gets it too. A method is called on its object:
        `await self.search(ctx, topic)`.
        """
        return cast(StepDecorator, _step)

    def schedule(
        self, *, name: str | None = None, arguments: Mapping[str, object] | None = None, **timing: Unpack[TimingOptions]
    ) -> Callable[[Scheduled], Scheduled]:
        """Submit a task again and again: `@app.schedule(cron="0 9 * * 1-5", tz="Europe/Berlin")` above `@app.task`.

        The schedule's name is the task's unless you give one. A worker of this app creates or changes the schedule when
        it starts. Raises `InvalidSchedule`.
        """
        return schedules.declaring(self.scheduled, name, arguments, schedules.read_timing(timing))

    async def __aenter__(self) -> Self:
        if self._opening or self._connections is not None:
            raise RuntimeError("this app is already open; use one `async with` per process")
        self._opening = True
        try:
            async with AsyncExitStack() as opening:
                self._connections = await self._open(opening)
        finally:
            self._opening = False
        return self

    async def _open(self, opening: AsyncExitStack) -> Connections:
        database = await opening.enter_async_context(open_database(self.config))
        async with database.connection() as conn:
            await self._prepare(database, conn)
            options = [task.options for task in self.every_task]
            lanes = await declarations.make(conn, self._declared, options, self.config)
            for each in options:
                await routes.register_route(conn, each)
        notifier = await opening.enter_async_context(Notifier(database))
        notifier.send(lanes=lanes)
        log = await opening.enter_async_context(EventLog(database, notifier))
        waiters = Waiters(
            notifier, lambda ids: database.run(lambda conn: executions.list_ended(conn, ids), repeat=True)
        )
        opening.push_async_callback(waiters.close)
        client = Client(database, notifier, self.codecs)
        opening.push_async_callback(client.close)
        tails = Tails(log, notifier, polls_only=self.config.pooler)
        opening.push_async_callback(tails.close)
        loop = asyncio.get_running_loop()
        return Connections(database, notifier, log, waiters, client, tails, opening.pop_all(), loop)

    async def _prepare(self, database: Database, conn: Connection) -> None:
        """Migrate an embedded database that is behind this release; your own database is only checked."""
        try:
            await migrate.check(conn, self.config)
        except SchemaBehind:
            if self.config.url is not None:
                raise
            async with database.own_connection(MIGRATING) as patient:
                await migrate.migrate(patient, self.config)

    async def __aexit__(self, *exc: object) -> None:
        opened = self._opened
        try:
            async with opened.database.closing():
                await opened.close.aclose()
        finally:
            self._connections = None

    def sync(self) -> SyncApp:
        """The same app for code that does not use `await`: `with app.sync() as sync: sync(report).submit("tides")`.

        The block opens the app on an event loop in its own thread. If the app is open already, for example in the
        lifespan of an async web server, threads of this process use it as it is, also without a block:
        `app.sync()(report).submit("tides")`.
        """
        return SyncApp(self)

    def asgi(self) -> ASGIApp:
        """The HTTP API as an ASGI app, to mount in your web application: `web.mount("/flowfabric", app.asgi())`.

        It does not check its callers; the application around it must. It uses this app if it is open, and otherwise
        opens it with the first request. Raises `BadSetting` without the extra `server`.
        """
        try:
            from flowfabric.server.api import Api
        except ModuleNotFoundError as missing:
            raise BadSetting(f"app.asgi() needs {missing.name}; run: pip install 'flowfabric[server]'") from None
        return Api(self)

    @property
    def every_task(self) -> list[Task[..., Any]]:
        """All tasks, each in all its versions."""
        return [task for versions in self.versions.values() for task in versions.values()]

    def find_task(self, name: str, version: int | None = None) -> Task[..., Any] | None:
        """Return a task in this version, by default in its newest one; `None` if this app does not have it."""
        return self.tasks.get(name) if version is None else self.versions.get(name, {}).get(version)

    @property
    def is_open(self) -> bool:
        """Whether the app is open."""
        return self._connections is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which the app is open."""
        return self._opened.loop

    @property
    def database(self) -> Database:
        """The connections for calls."""
        return self._opened.database

    @property
    def notifier(self) -> Notifier:
        """Notifies other processes of new work and of ended executions."""
        return self._opened.notifier

    @property
    def log(self) -> EventLog:
        """The event log, to subscribe to."""
        return self._opened.log

    @property
    def waiters(self) -> Waiters:
        """The callers in this process that wait for executions to end."""
        return self._opened.waiters

    @property
    def approvals(self) -> Approvals:
        """The approvals that executions wait for."""
        return Approvals(self)

    @property
    def budgets(self) -> Budgets:
        """Limits on what executions may spend, and what they have spent."""
        return Budgets(self)

    @property
    def events(self) -> Events:
        """The event log, to read page by page; `log` follows it."""
        return Events(self)

    @property
    def executions(self) -> Executions:
        """All executions in the database: list, describe and change them."""
        return Executions(self)

    @property
    def flows(self) -> Flows:
        """All flows in the database: list, describe and cancel them."""
        return Flows(self)

    @property
    def lanes(self) -> Lanes:
        """The lanes (queues): list, pause, drain and resume them."""
        return Lanes(self)

    @property
    def quotas(self) -> Quotas:
        """Limits on how fast and how many executions run."""
        return Quotas(self)

    @property
    def schedules(self) -> Schedules:
        """Submissions by cron or interval: create, change and pause them."""
        return Schedules(self)

    @property
    def signing_keys(self) -> SigningKeys:
        """The secrets that sign the tokens of waitpoints."""
        return SigningKeys(self)

    @property
    def waitpoints(self) -> Waitpoints:
        """What executions wait for, and signals to them."""
        return Waitpoints(self)

    @property
    def workers(self) -> Workers:
        """The worker processes that are live."""
        return Workers(self)

    @property
    def tails(self) -> Tails:
        """The readers in this process that follow the streams of executions."""
        return self._opened.tails

    @property
    def client(self) -> Client:
        """Sends submissions and signals."""
        return self._opened.client

    @property
    def _opened(self) -> Connections:
        if self._connections is None:
            raise RuntimeError("this app is not open; use it inside `async with app:`, or `with app.sync():`")
        return self._connections

    async def overview(self, *, limit: int = 20) -> Overview:
        """Take a snapshot of waiting, running and stuck executions, with at most `limit` lanes and workers."""
        return await self.database.run(lambda conn: overview.overview(conn, limit=limit), repeat=True)

    async def now(self) -> datetime:
        """Return the time of the database, by which deadlines, delays and resets are measured."""
        return await self.database.run(clock.clock, repeat=True)

    @overload
    async def submit(
        self, name: str, options: SubmitOptions | None = None, /, *, returns: type[R], **arguments: object
    ) -> Execution[R]: ...
    @overload
    async def submit(
        self,
        name: str,
        options: SubmitOptions | None = None,
        /,
        *,
        returns: UnionType | None = None,
        **arguments: object,
    ) -> Execution[Any]: ...
    async def submit(self, name: str, options: SubmitOptions | None = None, /, **arguments: object) -> Execution[Any]:
        """Submit a task by name; `options` may include the decorator's options, such as the lane.

        An app without tasks submits any name. An app with tasks refuses a name that none of them has, unless the
        options give a lane: then it is a task of another program. Its result is read as the type `returns`, or as plain
        JSON. Raises `UnknownTask`.
        """
        given = options or {}
        task = named(self.tasks, name, given)
        returns, arguments = read_returns(task, arguments)
        if task is not None:
            asked = task.with_options(**given).submission(**arguments)
        else:
            asked = submission(Options(task=name), payloads.encode(arguments), given)
        return Execution.of(self, await self.client.submit(asked), returns)

    async def signal(self, signal: SignalToSend) -> Delivered:
        """Send a signal to a waitpoint by its id or key; concurrent signals share a round trip.

        Raises the errors of `deliver_signal`, such as `InvalidToken` and `WaitpointClosed`.
        """
        if signal.payload is not None and signal.encoding == PLAIN and self.codecs.label != PLAIN:
            stored = self.codecs.encode(signal.payload, of_signal, signal.execution_id)
            signal = replace(signal, payload=stored, encoding=self.codecs.label)
        return await self.client.signal(signal)

    @overload
    def execution(self, execution_id: str | ExecutionId, *, returns: type[R]) -> Execution[R]: ...
    @overload
    def execution(self, execution_id: str | ExecutionId, *, returns: UnionType | None = None) -> Execution[Any]: ...
    def execution(self, execution_id: str | ExecutionId, *, returns: Any = None) -> Execution[Any]:
        """The handle of an execution submitted elsewhere: `app.execution(id, returns=list[str])`. Raises `InvalidId`.

        Without `returns`, its result is read as plain JSON.
        """
        kind = Any if returns is None else payloads.check_kind(returns, "the result")
        return Execution(self, parse_execution_id(str(execution_id)), kind)

    def flow(
        self, kind: str, *, key: str | None = None, namespace: str = "default", tags: Mapping[str, str] | None = None
    ) -> Flow:
        """Start building a flow (DAG): add tasks that depend on each other, then submit them together.

        With a key the flow is submitted once: submitting the same flow again returns the same executions. Another flow
        with that key is refused with `KeyConflict`.
        """
        return Flow(self, kind, namespace, key, tags)

    async def declare_schedules(self) -> None:
        """Create or change the schedules of `@app.schedule` as the code says; a worker does so when it starts."""
        await schedules.make_declared(self)

    async def wake(self, lane: str) -> None:
        """Notify the workers of a lane; call it after you commit a transaction in which you submitted work."""
        self.notifier.send(lanes=[lane])

    def wake_from_anywhere(self, lane: str) -> None:
        """Notify the workers of a lane, from any thread. Does nothing if the app is not open; workers poll."""
        if (opened := self._connections) is not None:
            with suppress(RuntimeError):  # the event loop has ended
                opened.loop.call_soon_threadsafe(lambda: opened.notifier.send(lanes=[lane]))

    def notify(self, *, lanes: Iterable[str] = (), ended: Iterable[ExecutionId] = ()) -> None:
        """Notify the workers of these lanes and the callers that wait for these executions, in all processes."""
        names = [str(execution_id) for execution_id in ended]
        self.waiters.wake(names)
        self.notifier.send(lanes=lanes, ended=names)


def _step(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    return partial(_step, **options) if function is None else _made_step(function, **options)


def _made_step(function: Callable[..., Any], *, name: str | None = None, **options: Any) -> Step[..., Any]:
    return Step(function, name=name or function.__name__, **{"retries": 0, "backoff": "100ms", **options})


def _check_version(task: Task[..., Any], others: Mapping[int, Task[..., Any]]) -> None:
    """Check that a task differs from the tasks of the same name by its version. Raises `ValueError`."""
    if not others:
        return
    if not task.is_versioned or not all(other.is_versioned for other in others.values()):
        there = others[max(others)].handler.__qualname__
        raise ValueError(
            f"task {task.name!r} already exists: {there}; use another name for one of them, or give both a version="
        )
    if task.version in others:
        there = others[task.version].handler.__qualname__
        raise ValueError(
            f"version {task.version} of task {task.name!r} already exists: {there}; use version={max(others) + 1}"
        )
