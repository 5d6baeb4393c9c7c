"""The heartbeat: renews leases and shows that this instance lives, on a thread and a connection of its own.

A handler that blocks the event loop does not lose its lease, because none of this runs there.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import msgspec

from flowfabric.engine import claims, workers
from flowfabric.errors import FlowFabricError, Unavailable
from flowfabric.model import Fence
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection

log = logging.getLogger("flowfabric.worker")

LONGEST_INTERVAL = timedelta(seconds=10)
LONGEST_LIFE = timedelta(minutes=10)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
LAST_WORDS = 5.0


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """Who an instance says it is."""

    worker: str
    instance: str
    lanes: Collection[str]
    capabilities: Collection[str]
    namespace: str | None
    lease: timedelta


class Heartbeat:
    """Keeps the leases of one instance alive, and says which ones are lost, on the loop it was made on."""

    def __init__(self, database: Database, registration: Registration, lost: Callable[[Fence], None]) -> None:
        self._database = database
        self._about = registration
        self._lost = lost
        self._home = asyncio.get_running_loop()  # where handlers run
        self._lease = registration.lease.total_seconds()
        self._interval = min(registration.lease / 3, LONGEST_INTERVAL).total_seconds()
        self._held: dict[UUID, tuple[Fence, float]] = {}
        self._guard = threading.Lock()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="heartbeat", daemon=True)
        self.registered: Future[None] = Future()

    def start(self) -> None:
        """Begin to beat; `registered` tells when this instance is known, or why it cannot be."""
        self._thread.start()

    def stop(self) -> None:
        """Unregister and beat no more; blocks until that is done, or a while if the database is away."""
        self._stopping = True
        self.look()
        if self._thread.is_alive():
            self._thread.join(timeout=LAST_WORDS)

    def look(self) -> None:
        """Renew now: one of the leases may be gone."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the thread has ended meanwhile
                self._loop.call_soon_threadsafe(self._wake.set)

    def hold(self, fences: Iterable[Fence], asked_at: float) -> None:
        """Renew these leases from now on; they were asked for at that moment of the monotonic clock."""
        until = asked_at + self._lease
        with self._guard:
            self._held.update((fence.lease_id, (fence, until)) for fence in fences)

    def release(self, fence: Fence) -> None:
        """Leave this lease alone from now on."""
        with self._guard:
            self._held.pop(fence.lease_id, None)

    def holds(self, fence: Fence) -> bool:
        """Whether this lease is ours, for all we know."""
        return fence.lease_id in self._held

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        watching = asyncio.create_task(self._watch())
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not self._stopping:
            began = time.monotonic()
            try:
                async with self._database.own_connection() as conn:
                    await self._beat(conn)
            except Exception as error:
                self._failed(error)
            if not self._stopping:
                if time.monotonic() - began > LONGEST_PAUSE:
                    backoff.reset()
                await backoff.wait()
        watching.cancel()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, FlowFabricError) and not isinstance(error, Unavailable) and not self.registered.done():
            self.registered.set_exception(error)
        elif isinstance(error, Unavailable | TimeoutError):
            log.warning("the heartbeat of %s lost the database, trying again: %s", self._about.instance, error)
        else:
            log.exception("the heartbeat of %s failed, trying again", self._about.instance)

    async def _beat(self, conn: Connection) -> None:
        async with asyncio.timeout(self._interval):
            await self._register(conn)
        while not self._stopping:
            async with asyncio.timeout(self._interval):
                await self._renew(conn)
                [answer] = await workers.beat(conn, [self._about.instance])
                if answer.outcome == "not_registered":
                    await self._register(conn)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._wake.wait()
            self._wake.clear()
        async with asyncio.timeout(LAST_WORDS):
            await workers.unregister_worker(conn, self._about.instance)

    async def _register(self, conn: Connection) -> None:
        """Take the lock by which others see that we live, and register then, so that it is never missed."""
        about, holds_lock = self._about, not self._database.config.pooler
        if holds_lock:
            await workers.hold_lock(conn, about.instance)
        await workers.register_worker(
            conn,
            about.worker,
            instance=about.instance,
            lanes=about.lanes,
            capabilities=about.capabilities,
            namespace=about.namespace,
            ttl=min(about.lease, LONGEST_LIFE),
            holds_lock=holds_lock,
        )
        if not self.registered.done():
            self.registered.set_result(None)

    async def _renew(self, conn: Connection) -> None:
        with self._guard:
            fences = [fence for fence, _ in self._held.values()]
        if not fences:
            return
        until = time.monotonic() + self._lease
        answers = await claims.renew_many(conn, fences, lease=self._about.lease)
        for fence, answer in zip(fences, answers, strict=True):
            if isinstance(answer, FlowFabricError):
                self._drop(fence)
            else:
                with self._guard:
                    if fence.lease_id in self._held:
                        self._held[fence.lease_id] = fence, until

    async def _watch(self) -> None:
        """While the database is away nobody tells us, but our own clock says when a lease is about to lapse."""
        every = min(self._lease / 10, 1.0)
        while True:
            await asyncio.sleep(every)
            soon = time.monotonic() + every  # the next look would come too late
            with self._guard:
                lapsed = [fence for fence, until in self._held.values() if until <= soon]
            for fence in lapsed:
                self._drop(fence)

    def _drop(self, fence: Fence) -> None:
        self.release(fence)
        with suppress(RuntimeError):  # that loop has ended meanwhile
            self._home.call_soon_threadsafe(self._lost, fence)
