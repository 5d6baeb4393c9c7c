"""The engine of one test: its database, the apps that are open on it, and the workers that run their tasks."""

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
from flowfabric.testing.worker import AttentiveWorker, going_on, working

log = logging.getLogger("flowfabric.testing")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

TIMEOUT = 30.0
PACE = 0.5  # seconds between two sweeps while a test does something else
TEN_YEARS = timedelta(days=3_650)
# These look after processes that died and ranges that fill up; a test has neither.
NOT_SWEPT = {"return_orphans", "expire_workers", "extend_events"}
# What an app is told besides the URL: the counts of the template, and to keep what has ended.
TOLD = ["url", "pooler", "execution_partitions", "budget_partitions", "quota_partitions"]
TOLD += ["retention", "event_retention"]


class StillWaiting(AssertionError):
    """What was to run to its end waits for somebody, and no time that passes brings that about."""


class Engine:
    """The engine of one test. All of it runs in the loop of the test, is opened at its first use and ends with it."""

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
        self._held: list[App] = []
        self._workers: dict[App, AttentiveWorker] = {}

    def __repr__(self) -> str:
        return "<engine of this test>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the workers, which hand back what still runs, and close the apps."""
        self._closed = True
        await self._opened.aclose()

    def use(self, app: App) -> None:
        """Let an app find the database of this test when it is opened, by whomever. Undone after the test.

        Whatever has ended is kept, unless its own policy says for how long.
        """
        if app.config.url == self.url:
            return
        if _is_open(app):
            raise RuntimeError(f"{app!r} is open on another database; give it to the engine before it is opened")
        self._settings.append((app, app.config))
        app.config = msgspec.structs.replace(app.config, **{name: getattr(self._config, name) for name in TOLD})

    def give_back(self) -> None:
        """Give the apps the settings they had."""
        while self._settings:
            app, config = self._settings.pop()
            app.config = config

    async def open(self, app: App) -> App:
        """Open an app on the database of this test, until the test ends. Nothing runs its tasks yet."""
        await self._ready()
        self.use(app)
        if not _is_open(app):
            await self._opened.enter_async_context(app)
            self._held.append(app)
        return app

    async def work(self, app: App, *, opens: bool = True, **options: Any) -> App:
        """Open an app, and have a worker in this process run its tasks; the options are those of `Worker`.

        With `opens=False` the app itself is left to be opened by what is tested, such as a web server, and the worker
        has connections of its own. Safe to repeat: an app has one worker.
        """
        if app in self._workers:
            return app
        self.use(app)
        worker = AttentiveWorker(await self.open(app if opens else _twin(app)), **options)
        if not self._workers:
            await self._opened.enter_async_context(going_on(self._sweep_for_ever()))
        await self._opened.enter_async_context(working(worker))
        self._workers[app] = worker
        return app

    async def run_now(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a task to its end and return its result; sleeps, delays and pauses before retries take no time.

        It is submitted and run as always, by a worker in this process. When nothing runs, the clock moves on to what
        is due next. One that waits for somebody fails the test, with `StillWaiting`. Raises `ExecutionFailed` when it
        has failed for good.
        """
        await self.work(task.app)
        execution = await task.submit(*args, **kwargs)
        async with asyncio.timeout(2 * TIMEOUT):
            while (await self._describe(execution)).ended_at is None:
                await self._go_on(execution)
        return await execution.result(TIMEOUT)

    async def _go_on(self, execution: Execution[Any]) -> None:
        await self.settle()
        found = await self._describe(execution)
        if found.ended_at is not None:
            return
        due = await self.run(lambda conn: clock.next_due(conn, waits=False))
        if due is None:
            raise StillWaiting(
                f"{found.task} {found.explanation.sentence}; to answer it, submit it while an app_worker runs, then "
                "use engine.approve, engine.signal or clock.advance"
            )
        await self.clock.pass_until(due)

    async def approve(
        self, execution: Execution[Any], title: str | None = None, *, by: str = "tester", note: str | None = None
    ) -> Delivered:
        """Say yes to the approval an execution asks for, on whatever it shows, and let it go on.

        Raises `WaitpointNotFound` when it asks for none.
        """
        return await self._answer(
            lambda conn: answers.decide(conn, execution.execution_id, "approve", title, by=by, note=note)
        )

    async def reject(
        self, execution: Execution[Any], title: str | None = None, *, by: str = "tester", note: str | None = None
    ) -> Delivered:
        """Say no to the approval an execution asks for, and let it go on. Raises `WaitpointNotFound`."""
        return await self._answer(
            lambda conn: answers.decide(conn, execution.execution_id, "reject", title, by=by, note=note)
        )

    async def signal(
        self, execution: Execution[Any], name: str, payload: object = None, *, source: str = "tester"
    ) -> Delivered:
        """Send a signal that an execution waits for, without knowing its token. Raises `WaitpointNotFound`."""
        return await self._answer(
            lambda conn: answers.signal(conn, execution.execution_id, name, payload, source=source)
        )

    async def _answer(self, answer: Callable[[Connection], Awaitable[Delivered]]) -> Delivered:
        await self.settle()  # it may be on its way to the question
        delivered = await self.run(answer)
        await self.settle()
        return delivered

    async def settle(self) -> None:
        """Return when everything that can happen now has happened. Raises `TimeoutError` after half a minute."""
        try:
            async with asyncio.timeout(TIMEOUT):
                while await self._act():
                    pass
        except TimeoutError:
            runs = [name for worker in self._workers.values() for name in worker.runs]
            raise TimeoutError(f"after {TIMEOUT:g} s these still run: {', '.join(runs) or 'none'}") from None

    async def _act(self) -> bool:
        """Bring about what is due and wait until no worker has anything to do; whether anything happened."""
        workers = list(self._workers.values())
        before = sum(worker.acts for worker in workers)
        moved = await self.sweep()
        for worker in workers:
            await worker.idle()
        return moved > 0 or sum(worker.acts for worker in workers) > before

    async def sweep(self) -> int:
        """Bring about what happens by itself, as far as it is due, and return how many that moved."""
        await self._ready()
        async with self._sweeping:
            moved = sum([await run_once(self._database, sweep, self._woken) for sweep in self._sweeps])
        if moved:
            for worker in self._workers.values():
                worker.renew()  # it may have lost some
        return moved

    async def run(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an operation of `flowfabric.engine` on the database of this test."""
        await self._ready()
        return await self._database.run(operation)

    def _woken(self, swept: Swept) -> None:
        for app in self._held[:1]:
            app.notifier.send(lanes=swept.lanes, ended=swept.ended)

    async def _describe(self, execution: Execution[Any]) -> Description:
        return await self.run(lambda conn: executions.describe(conn, execution.execution_id))

    async def _ready(self) -> None:
        if self._closed:
            raise RuntimeError("the engine of this test is closed; use it while the test runs")
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("the engine is in use on another event loop; use it on that of the test only")
        async with self._opening:
            if self._loop is None:
                await self._opened.enter_async_context(self._database)
                self._loop = loop

    async def _sweep_for_ever(self) -> None:
        """What is due in real time happens too, if not as soon."""
        while True:
            await asyncio.sleep(PACE)
            try:
                await self.sweep()
            except Exception:
                log.exception("cannot sweep, trying again")


def _is_open(app: App) -> bool:
    with suppress(RuntimeError):
        return app.database is not None
    return False


def _twin(app: App) -> App:
    """The same tasks and settings, to be opened apart."""
    twin = copy.copy(app)
    twin._opening, twin._connections = False, None
    return twin
