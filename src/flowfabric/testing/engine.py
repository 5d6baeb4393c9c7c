"""The engine of one test: its database, the apps that are open on it, and the workers that run their tasks.

`StillWaiting` is raised when a task cannot end without an answer from the test.
"""

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any, ParamSpec, Self, TypeVar

import msgspec

from flowfabric.app import App
from flowfabric.app.executions import Execution
from flowfabric.app.tasks import Task
from flowfabric.config import Config
from flowfabric.engine import executions
from flowfabric.model import Delivered, Description, Swept
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.sweeps import run_once, sweeps
from flowfabric.testing import answers, clock
from flowfabric.testing.clock import Clock
from flowfabric.testing.worker import ObservedWorker, in_background, working

log = logging.getLogger("flowfabric.testing")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

TIMEOUT = 30.0
SWEEP_INTERVAL = 0.5  # seconds between two sweeps while a test does something else
TEN_YEARS = timedelta(days=3_650)
# These sweeps are for processes that died and event ranges that fill up, which a test has not.
NOT_SWEPT = {"return_orphans", "expire_workers", "extend_events"}
# The settings that an app gets from the engine: the database with its partition counts, and to keep ended executions.
SETTINGS = ["url", "pooler", "budget_partitions", "quota_partitions"]
SETTINGS += ["retention", "event_retention"]


class StillWaiting(AssertionError):
    """The task waits for an answer from a person or a service, so it does not end however much time passes."""


class Engine:
    """The engine of one test. It runs on the test's event loop, opens at its first use and closes with the test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock(self)
        self._config = Config(url=url, retention=TEN_YEARS, event_retention=TEN_YEARS)
        self._database = Database(self._config, url)
        self._sweeps = [sweep for sweep in sweeps(self._config) if sweep.name not in NOT_SWEPT]
        self._opened = AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._opening = asyncio.Lock()
        self._sweeping = asyncio.Lock()
        self._settings: list[tuple[App, Config]] = []
        self._apps: list[App] = []
        self._workers: dict[App, ObservedWorker] = {}

    def __repr__(self) -> str:
        return "<engine of this test>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the workers, which requeue unfinished executions, and close the apps."""
        self._closed = True
        await self._opened.aclose()

    def use(self, app: App) -> None:
        """Make an app use the database of this test whenever it is opened. Undone after the test.

        Ended executions are kept, unless their own policy sets a retention.
        """
        if app.config.url == self.url:
            return
        if _is_open(app):
            raise RuntimeError(f"{app!r} is open on another database; pass it to the engine before you open it")
        self._settings.append((app, app.config))
        app.config = msgspec.structs.replace(app.config, **{name: getattr(self._config, name) for name in SETTINGS})

    def give_back(self) -> None:
        """Restore the settings that the apps had before the test."""
        while self._settings:
            app, config = self._settings.pop()
            app.config = config

    async def open(self, app: App) -> App:
        """Open an app on the database of this test, until the test ends. No worker runs its tasks yet."""
        await self._ready()
        self.use(app)
        if not _is_open(app):
            await self._opened.enter_async_context(app)
            self._apps.append(app)
        return app

    async def work(self, app: App, *, opens: bool = True, **options: Any) -> App:
        """Open an app and start a worker for its tasks in this process; the options are those of `Worker`.

        With `opens=False` the tested code, such as a web server, opens the app itself, and the worker has its own
        connections. Safe to repeat: an app has one worker.
        """
        if app in self._workers:
            return app
        self.use(app)
        worker = ObservedWorker(await self.open(app if opens else _copy(app)), **options)
        if not self._workers:
            await self._opened.enter_async_context(in_background(self._sweep_forever()))
        await self._opened.enter_async_context(working(worker))
        self._workers[app] = worker
        return app

    async def run_now(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a task to its end and return its result; sleeps, delays and pauses before retries take no time.

        The task is submitted and run by a worker in this process. When nothing runs, the clock moves to the next due
        time. A task that waits for an answer fails the test with `StillWaiting`. Raises `ExecutionFailed` if the task
        does not complete.
        """
        await self.work(task.app)
        execution = await task.submit(*args, **kwargs)
        async with asyncio.timeout(2 * TIMEOUT):
            while (await self._describe(execution)).ended_at is None:
                await self._move_to_next_due(execution)
        return await execution.result(TIMEOUT)

    async def _move_to_next_due(self, execution: Execution[Any]) -> None:
        await self.settle()
        found = await self._describe(execution)
        if found.ended_at is not None:
            return
        due = await self.run(lambda conn: clock.next_due(conn, waits=False))
        if due is None and await self._act():
            return  # a retry became due after `settle`, in real time
        if due is None:
            raise StillWaiting(
                f"{found.task} {found.explanation.sentence}; to answer it, submit it while an app_worker runs, then "
                "use engine.approve, engine.signal or clock.advance"
            )
        await self.clock.pass_until(due)

    async def approve(
        self, execution: Execution[Any], title: str | None = None, *, by: str = "tester", note: str | None = None
    ) -> Delivered:
        """Approve what an execution asks for, and let it resume.

        Raises `WaitpointNotFound` if the execution does not wait for an approval.
        """
        return await self._answer(
            lambda conn: answers.decide(conn, execution.execution_id, "approve", title, by=by, note=note)
        )

    async def reject(
        self, execution: Execution[Any], title: str | None = None, *, by: str = "tester", note: str | None = None
    ) -> Delivered:
        """Reject what an execution asks for, and let it resume. Raises `WaitpointNotFound`."""
        return await self._answer(
            lambda conn: answers.decide(conn, execution.execution_id, "reject", title, by=by, note=note)
        )

    async def signal(
        self, execution: Execution[Any], name: str, payload: object = None, *, source: str = "tester"
    ) -> Delivered:
        """Send a signal that an execution waits for; no token is needed. Raises `WaitpointNotFound`."""
        return await self._answer(
            lambda conn: answers.signal(conn, execution.execution_id, name, payload, source=source)
        )

    async def _answer(self, answer: Callable[[Connection], Awaitable[Delivered]]) -> Delivered:
        await self.settle()  # the execution may not have reached its wait yet
        delivered = await self.run(answer)
        await self.settle()
        return delivered

    async def settle(self) -> None:
        """Wait until no work that is due now is left. Raises `TimeoutError` after half a minute."""
        try:
            async with asyncio.timeout(TIMEOUT):
                while await self._act():
                    pass
        except TimeoutError:
            runs = [name for worker in self._workers.values() for name in worker.runs]
            raise TimeoutError(
                f"work is still running after {TIMEOUT:g} s: {', '.join(runs) or 'no handler'}"
            ) from None

    async def _act(self) -> bool:
        """Run the work that is due until every worker is idle; return whether anything happened."""
        workers = list(self._workers.values())
        before = sum(worker.acts for worker in workers)
        moved = await self.sweep()
        for worker in workers:
            await worker.idle()
        return moved > 0 or sum(worker.acts for worker in workers) > before

    async def sweep(self) -> int:
        """Run every background sweep once, and return how many rows that moved."""
        await self._ready()
        async with self._sweeping:
            moved = sum([await run_once(self._database, sweep, self._notify_swept) for sweep in self._sweeps])
        if moved:
            for worker in self._workers.values():
                worker.renew()  # a sweep may have ended some of its leases
        return moved

    async def run(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an operation of `flowfabric.engine` on the database of this test."""
        await self._ready()
        return await self._database.run(operation)

    def _notify_swept(self, swept: Swept) -> None:
        for app in self._apps[:1]:
            app.notifier.send(lanes=swept.lanes, ended=map(str, swept.ended))

    async def _describe(self, execution: Execution[Any]) -> Description:
        return await self.run(lambda conn: executions.describe(conn, execution.execution_id))

    async def _ready(self) -> None:
        if self._closed:
            raise RuntimeError("the engine of this test is closed; use it only while the test runs")
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("the engine is in use on another event loop; use it only on the test's event loop")
        async with self._opening:
            if self._loop is None:
                await self._opened.enter_async_context(self._database)
                self._loop = loop

    async def _sweep_forever(self) -> None:
        """Run the sweeps in real time too, for work that falls due while the test does something else."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL)
            try:
                await self.sweep()
            except Exception:
                log.exception("could not sweep; retrying in %g s", SWEEP_INTERVAL)


def _is_open(app: App) -> bool:
    with suppress(RuntimeError):
        return app.database is not None
    return False


def _copy(app: App) -> App:
    """Copy an app with its tasks and settings, to open it separately."""
    copied = copy.copy(app)
    copied._opening, copied._connections = False, None
    return copied
