"""The engine and the clock for sync tests. Written by `make sync`; do not edit.

A method does what the method of the async class does, and waits for the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from flowfabric.app.sync import SyncApp
from flowfabric.blocking import Sync

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from flowfabric.app import App
    from flowfabric.app.executions import Execution
    from flowfabric.app.sync import SyncExecution
    from flowfabric.app.tasks import Task
    from flowfabric.model import Delivered
    from flowfabric.postgres.driver import Connection
    from flowfabric.testing.clock import Clock
    from flowfabric.testing.engine import Engine
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncClock(Sync):
    """The clock of a test's engine: it runs in real time, and `advance` moves it forward.

    The sync version of `Clock`.
    """

    __slots__ = ()
    _thing: Clock

    def now(self) -> datetime:
        """Return the current time of the engine."""
        answer: datetime = self._wait(self._thing.now)
        return answer

    def advance(self, by: str | timedelta | datetime, *, settle: bool = True) -> datetime:
        """Move the clock forward, by a duration such as `"2d"` or to a moment, and run everything that falls due.

        Running handlers finish first. Then the clock moves from one due time to the next, and the work that is due runs
        to its end each time. With `settle=False` the clock jumps immediately, and nothing is waited for. Returns the
        new time. Raises `ValueError` for a time in the past.
        """
        answer: datetime = self._wait(self._thing.advance, by, settle=settle)
        return answer


class SyncEngine(Sync):
    """The engine of one test. It runs on the test's event loop, opens at its first use and closes with the test.

    The sync version of `Engine`.
    """

    __slots__ = ()
    _thing: Engine

    @property
    def url(self) -> str:
        answer: str = self._thing.url
        return answer

    @property
    def clock(self) -> SyncClock:
        return SyncClock(self._thing.clock, self._loop)

    def use(self, app: App) -> None:
        """Make an app use the database of this test whenever it is opened. Undone after the test.

        Ended executions are kept, unless their own policy sets a retention.
        """
        self._wait(self._thing.use, app)

    def open(self, app: App) -> SyncApp:
        """Open an app on the database of this test, until the test ends. No worker runs its tasks yet."""
        return SyncApp(self._wait(self._thing.open, app))

    def work(self, app: App, *, opens: bool = True, **options: Any) -> SyncApp:
        """Open an app and start a worker for its tasks in this process; the options are those of `Worker`.

        With `opens=False` the tested code, such as a web server, opens the app itself, and the worker has its own
        connections. Safe to repeat: an app has one worker.
        """
        return SyncApp(self._wait(self._thing.work, app, opens=opens, **options))

    def run_now(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a task to its end and return its result; sleeps, delays and pauses before retries take no time.

        The task is submitted and run by a worker in this process. When nothing runs, the clock moves to the next due
        time. A task that waits for an answer fails the test with `StillWaiting`. Raises `ExecutionFailed` if the task
        does not complete.
        """
        answer: R = self._wait(self._thing.run_now, task, *args, **kwargs)
        return answer

    def approve(
        self,
        execution: Execution[Any] | SyncExecution[Any],
        title: str | None = None,
        *,
        by: str = "tester",
        note: str | None = None,
    ) -> Delivered:
        """Approve what an execution asks for, and let it resume.

        Raises `WaitpointNotFound` if the execution does not wait for an approval.
        """
        answer: Delivered = self._wait(self._thing.approve, execution, title, by=by, note=note)
        return answer

    def reject(
        self,
        execution: Execution[Any] | SyncExecution[Any],
        title: str | None = None,
        *,
        by: str = "tester",
        note: str | None = None,
    ) -> Delivered:
        """Reject what an execution asks for, and let it resume. Raises `WaitpointNotFound`."""
        answer: Delivered = self._wait(self._thing.reject, execution, title, by=by, note=note)
        return answer

    def signal(
        self,
        execution: Execution[Any] | SyncExecution[Any],
        name: str,
        payload: object = None,
        *,
        source: str = "tester",
    ) -> Delivered:
        """Send a signal that an execution waits for; no token is needed. Raises `WaitpointNotFound`."""
        answer: Delivered = self._wait(self._thing.signal, execution, name, payload, source=source)
        return answer

    def settle(self) -> None:
        """Wait until no work that is due now is left. Raises `TimeoutError` after half a minute."""
        self._wait(self._thing.settle)

    def sweep(self) -> int:
        """Run every background sweep once, and return how many rows that moved."""
        answer: int = self._wait(self._thing.sweep)
        return answer

    def run(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an operation of `flowfabric.engine` on the database of this test."""
        answer: T = self._wait(self._thing.run, operation)
        return answer
