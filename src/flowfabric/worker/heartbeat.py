"""The heartbeat: renews leases and shows that this instance lives, on a thread and a connection of its own.

A handler that blocks the event loop does not lose its lease, because none of this runs there.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta

from flowfabric.db import Connection, Database
from flowfabric.engine import claims, workers
from flowfabric.errors import Refusal, Unavailable
from flowfabric.model import Fence, Renewed

log = logging.getLogger("flowfabric.worker")


class Heartbeat:
    """Keeps the leases of one instance alive, and says which ones are lost."""

    def __init__(
        self,
        database: Database,
        *,
        worker: str,
        instance: str,
        lanes: Collection[str],
        capabilities: Collection[str],
        namespace: str | None,
        lease: timedelta,
        lost: Callable[[Fence], None],
    ) -> None:
        self._database = database
        self._registration = {
            "instance": instance,
            "lanes": lanes,
            "capabilities": capabilities,
            "namespace": namespace,
            "holds_lock": not database.config.pooler,
        }
        self._worker = worker
        self._instance = instance
        self._lease = lease
        self._lost = lost
        self._held: dict[Fence, float] = {}
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._beat_for_ever()), name="heartbeat", daemon=True
        )

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; blocks until the thread has ended."""
        self._stop.set()
        self._thread.join(timeout=10)

    def hold(self, fence: Fence) -> None:
        """Renew this lease from now on."""
        with self._guard:
            self._held[fence] = time.monotonic() + self._lease.total_seconds()

    def release(self, fence: Fence) -> None:
        """Leave this lease alone from now on."""
        with self._guard:
            self._held.pop(fence, None)

    async def _beat_for_ever(self) -> None:
        pause = 0.1
        while not self._stop.is_set():
            try:
                async with self._database.own_connection() as conn:
                    pause = 0.1
                    await self._live(conn)
            except Unavailable as error:
                log.warning("the heartbeat of %s lost the database, trying again: %s", self._instance, error.message)
                self._give_up_lapsed()
            if not self._stop.is_set():
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)

    async def _live(self, conn: Connection) -> None:
        if self._registration["holds_lock"]:
            await workers.hold_lock(conn, self._instance)
        await self._register(conn)
        while not await asyncio.to_thread(self._stop.wait, self._lease.total_seconds() / 3):
            await self._renew(conn)
            [answer] = await workers.beat(conn, [self._instance])
            if answer.outcome == "not_registered":
                await self._register(conn)
        await workers.unregister_worker(conn, self._instance)

    async def _register(self, conn: Connection) -> None:
        await workers.register_worker(conn, self._worker, ttl=self._lease, **self._registration)  # type: ignore[arg-type]

    async def _renew(self, conn: Connection) -> None:
        with self._guard:
            fences = list(self._held)
        asked_at = time.monotonic()
        answers: list[Renewed | Refusal] = await claims.renew_many(conn, fences, lease=self._lease)
        for fence, answer in zip(fences, answers, strict=True):
            if isinstance(answer, Refusal):
                self._drop(fence)
            else:
                with self._guard:
                    if fence in self._held:
                        self._held[fence] = asked_at + self._lease.total_seconds()

    def _give_up_lapsed(self) -> None:
        """While the database is away nobody tells us, but our own clock says when a lease must have lapsed."""
        now = time.monotonic()
        with self._guard:
            lapsed = [fence for fence, until in self._held.items() if until <= now]
        for fence in lapsed:
            self._drop(fence)

    def _drop(self, fence: Fence) -> None:
        self.release(fence)
        self._lost(fence)
