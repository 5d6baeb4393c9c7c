"""The heartbeat: renews leases and keeps this instance registered, on its own thread and connection.

A handler that blocks the event loop does not lose its lease, because none of this runs there.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import msgspec

from flowfabric.engine import claims, workers
from flowfabric.errors import FlowFabricError, RowLocked, Unavailable
from flowfabric.model import Fence, RegisteredTask
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.worker.running import Running

log = logging.getLogger("flowfabric.worker")

LONGEST_INTERVAL = timedelta(seconds=10)
LONGEST_LIFE = timedelta(minutes=10)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
SHORT_LIFE = 1.0  # seconds; after a connection that was lost sooner there is a pause
STOP_TIMEOUT = 5.0
LOOK_FOR_NEWS = 1.0  # seconds


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance registers: its name, lanes, capabilities and tasks."""

    worker: str
    instance: str
    lanes: Collection[str]
    capabilities: Collection[str]
    namespace: str | None
    tasks: Collection[RegisteredTask] | None
    lease: timedelta


class Heartbeat:
    """Renews the leases of one instance, and calls `lost` for each lost lease, on the event loop that created it."""

    def __init__(
        self, database: Database, registration: Registration, running: Running, lost: Callable[[Fence], None]
    ) -> None:
        self._database = database
        self._about = registration
        self._running = running
        self._lost = lost
        self._home = asyncio.get_running_loop()  # where handlers run
        self._lease = registration.lease.total_seconds()
        self._interval = min(registration.lease / 3, LONGEST_INTERVAL).total_seconds()
        self._held: dict[UUID, tuple[Fence, float]] = {}
        self._guard = threading.Lock()
        self._stopping = False
        self._has_beaten = False  # on the current connection
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="heartbeat", daemon=True)
        self.registered: Future[None] = Future()

    def start(self) -> None:
        """Start the thread; `registered` is done when this instance is registered, and raises if it is refused."""
        self._thread.start()

    def stop(self) -> None:
        """Unregister and stop; blocks until that is done, or for a few seconds if the database is unavailable."""
        self._stopping = True
        self.renew_now()
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_TIMEOUT)

    def renew_now(self) -> None:
        """Renew without waiting for the interval, because one of the leases may be lost."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the thread has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    def add(self, fences: Iterable[Fence], asked_at: float) -> None:
        """Renew these leases from now on; `asked_at` is when they were claimed, on the monotonic clock."""
        until = asked_at + self._lease
        with self._guard:
            self._held.update((fence.lease_id, (fence, until)) for fence in fences)

    def release(self, fence: Fence) -> float | None:
        """Stop renewing this lease, and return when it expires, on the monotonic clock; `None` if it is not held."""
        with self._guard:
            held = self._held.pop(fence.lease_id, None)
        return None if held is None else held[1]

    def holds(self, fence: Fence) -> bool:
        """Whether this instance has the lease, as far as it knows."""
        return fence.lease_id in self._held

    def left(self, fence: Fence) -> float:
        """How many seconds of the lease are left by our own clock; none if it is not held."""
        _, until = self._held.get(fence.lease_id, (None, 0.0))
        return max(until - time.monotonic(), 0.0)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        watching = asyncio.create_task(self._watch())
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.5)
        while not self._stopping:
            began = time.monotonic()
            try:
                async with self._database.own_connection() as conn:
                    conn.add_termination_listener(lambda _: self._wake.set())  # notice a lost connection immediately
                    await self._beat(conn)
            except Exception as error:
                self._failed(error)
            await self._pause(backoff, time.monotonic() - began)
        watching.cancel()

    async def _pause(self, backoff: Backoff, lived: float) -> None:
        """Wait before the next connection: not at all if the lost one worked, because its liveness lock is lost too."""
        has_beaten, self._has_beaten = self._has_beaten, False
        if has_beaten:
            backoff.reset()
        if not self._stopping and (not has_beaten or lived < SHORT_LIFE):
            await backoff.wait()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, FlowFabricError) and not isinstance(error, Unavailable) and not self.registered.done():
            self.registered.set_exception(error)
        elif isinstance(error, Unavailable | TimeoutError):
            why = f"Postgres did not answer within {self._interval:g} s" if isinstance(error, TimeoutError) else error
            log.warning("could not send the heartbeat of %s; reconnecting: %s", self._about.instance, why)
        else:
            log.exception("could not send the heartbeat of %s; reconnecting", self._about.instance)

    async def _beat(self, conn: Connection) -> None:
        self._wake.clear()
        async with asyncio.timeout(self._interval):
            registered = await self._register(conn)
        while not self._stopping:
            async with asyncio.timeout(self._interval):
                locked = await self._renew(conn, self._fences())
                [answer] = await workers.beat(conn, [self._about.instance])
                if not registered or answer.outcome == "not_registered":
                    registered = await self._register(conn)
            self._has_beaten = True
            await self._wait(conn, locked)
        async with asyncio.timeout(STOP_TIMEOUT):
            await workers.unregister_worker(conn, self._about.instance)

    async def _wait(self, conn: Connection, locked: Sequence[Fence]) -> None:
        """Wait for the next renewal. Meanwhile renew only leases whose executions were locked, or that have news."""
        end = time.monotonic() + self._interval
        while not self._wake.is_set() and (left := end - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._interval / 10 if locked else LOOK_FOR_NEWS)):
                    await self._wake.wait()
            again = {*locked, *self._with_news()}
            if again:
                async with asyncio.timeout(self._interval):
                    locked = await self._renew(conn, [fence for fence in again if self.holds(fence)])
        self._wake.clear()

    def _with_news(self) -> list[Fence]:
        """The leases whose runs have steps that have become long since the last renewal."""
        leases = self._running.unreported()
        with self._guard:
            return [self._held[lease][0] for lease in leases if lease in self._held]

    async def _register(self, conn: Connection) -> bool:
        """Take the advisory lock that shows that this instance is alive, then register, so that it is never missing.

        Returns False if another transaction has locked the entry: renewals on this connection must not wait for it.
        """
        about, holds_lock = self._about, not self._database.config.pooler
        if holds_lock:
            await workers.hold_lock(conn, about.instance)
        try:
            await workers.register_worker(
                conn,
                about.worker,
                instance=about.instance,
                lanes=about.lanes,
                capabilities=about.capabilities,
                namespace=about.namespace,
                tasks=about.tasks,
                ttl=min(about.lease, LONGEST_LIFE),
                holds_lock=holds_lock,
                wait=False,
            )
        except RowLocked as error:
            log.warning("could not register %s; retrying in %g s: %s", about.instance, self._interval, error)
            return False
        if not self.registered.done():
            self.registered.set_result(None)
        return True

    def _fences(self) -> list[Fence]:
        with self._guard:
            return [fence for fence, _ in self._held.values()]

    async def _renew(self, conn: Connection, fences: Sequence[Fence]) -> list[Fence]:
        """Renew these leases, and return those whose executions were locked, for example by a handler's transaction."""
        if not fences:
            return []
        locked = []
        until = time.monotonic() + self._lease
        running = self._running.report()
        reports = {lease: [step.reported() for step in steps] for lease, steps in running.items()}
        answers = await claims.renew_many(conn, fences, lease=self._about.lease, running=reports)
        for fence, answer in zip(fences, answers, strict=True):
            if isinstance(answer, FlowFabricError):
                self._drop(fence)
            elif answer.outcome == "locked":
                locked.append(fence)
            else:
                for step in running.get(fence.lease_id, ()):
                    step.is_reported = True
                with self._guard:
                    if fence.lease_id in self._held:
                        self._held[fence.lease_id] = fence, until
        return locked

    async def _watch(self) -> None:
        """Drop leases that are about to expire by our own clock: an unavailable database cannot tell us."""
        every = min(self._lease / 10, 1.0)
        while True:
            await asyncio.sleep(every)
            soon = time.monotonic() + every  # the next check would be too late
            with self._guard:
                expiring = [fence for fence, until in self._held.values() if until <= soon]
            for fence in expiring:
                self._drop(fence)

    def _drop(self, fence: Fence) -> None:
        self.release(fence)
        with suppress(RuntimeError):  # that event loop has ended
            self._home.call_soon_threadsafe(self._lost, fence)
