"""Subscriptions: any number of subscribers follow the event log over one reading connection.

A subscriber pulls pages when it wants them. A slow subscriber holds one page, delays no other and misses no event.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Self, TypeVar

from flowfabric import cursors
from flowfabric.engine import events
from flowfabric.errors import DatabaseUnavailable, ShuttingDown, StreamDisconnected
from flowfabric.model import Event, EventFilter
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.postgres.notify import Notifier, commit_asynchronously

T = TypeVar("T")

SHORTEST_PAUSE = 0.005
LONGEST_PAUSE = 1.0
EVERYTHING = EventFilter()


class EventLog:
    """Reads the event log for all subscribers of a process, over one connection."""

    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier
        self._turn = asyncio.Lock()
        self._connection = AsyncExitStack()
        self._conn: Connection | None = None
        self._failed_at = 0.0
        self._failure: DatabaseUnavailable | None = None
        self._horizon = 0
        self._backoff = Backoff(SHORTEST_PAUSE, LONGEST_PAUSE)
        self._waiting: set[asyncio.Future[None]] = set()
        self._waiting_for_one: set[asyncio.Future[None]] = set()  # for an event of one execution
        self._notified = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._closed = True

    async def __aenter__(self) -> Self:
        self._closed = False
        self._stop_listening = self._notifier.listen(lambda _: self._notified.set())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End every subscription with `ShuttingDown`."""
        self._closed = True
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        self._wake(self._waiting | self._waiting_for_one, _shutting_down())
        await self._connection.aclose()  # not in turn: a call in flight may never be answered, and fails now

    @property
    def waiting_count(self) -> int:
        """How many subscribers have seen every event and wait for more."""
        return len(self._waiting) + len(self._waiting_for_one)

    async def subscribe(self, cursor: str = "", filter: EventFilter = EVERYTHING) -> "Subscription":  # noqa: A002
        """Follow the log from a cursor; an empty cursor means from the moment of this call.

        Raises `InvalidCursor`, `CursorExpired`, and `StreamDisconnected` if the database is unavailable for longer
        than the setting `subscription_timeout`.
        """
        start = await self.call(lambda conn: events.read_events(conn, cursor, filter, limit=0), cursor)
        return Subscription(self, cursor or start.cursor, filter)

    async def call(self, operation: Callable[[Connection], Awaitable[T]], cursor: str) -> T:
        """Run an operation on the reading connection; reconnect for up to `subscription_timeout`."""
        timeout = self._database.config.subscription_timeout.total_seconds()
        deadline, backoff = time.monotonic() + timeout, Backoff(0.05, LONGEST_PAUSE)
        while True:
            try:
                return await self._try(operation, time.monotonic())
            except DatabaseUnavailable as error:
                if time.monotonic() + backoff.current > deadline:
                    raise StreamDisconnected(
                        f"the database was unavailable for {timeout:g} s: {error.message}; subscribe again with this "
                        "cursor",
                        cursor=cursor,
                    ) from error
            await backoff.wait()

    async def wait_beyond(self, cursor: str, *, of_one: bool = False) -> None:
        """Wait until the horizon of the log is beyond this cursor.

        A subscriber to one execution (`of_one`) also returns while events are missing below the last id: it reads
        beyond the horizon, so its next event may be there already.
        """
        if self._horizon > (cursors.decode_event_cursor(cursor) or 0):
            return
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting_for_one if of_one else self._waiting
        waiting.add(moved)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="event log: watch")
        try:
            await moved
        except StreamDisconnected as error:
            raise StreamDisconnected(error.message, cursor=cursor) from error
        finally:
            waiting.discard(moved)
            if not self.waiting_count:
                self._notified.set()  # nobody waits any more, so `_watch` may end

    async def _watch(self) -> None:
        """Advance the horizon for all waiting subscribers and wake them; a notification cuts a polling pause short."""
        while self.waiting_count:
            self._notified.clear()
            try:
                horizon, last_id = await self.call(events.watch_log, "")
            except Exception as error:
                self._wake(self._waiting | self._waiting_for_one, error)
                return
            if horizon > self._horizon:
                self._horizon = horizon
                self._backoff.reset()
                self._wake(self._waiting | self._waiting_for_one)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._notified.wait(), self._backoff.next())
                self._backoff.reset()
            if horizon < last_id:
                self._wake(self._waiting_for_one)

    def _wake(self, waiting: set[asyncio.Future[None]], error: Exception | None = None) -> None:
        for moved in [*waiting]:
            if not moved.done():
                if error is None:
                    moved.set_result(None)
                else:
                    moved.set_exception(error)
            self._waiting.discard(moved)
            self._waiting_for_one.discard(moved)

    async def _try(self, operation: Callable[[Connection], Awaitable[T]], asked_at: float) -> T:
        async with self._turn:
            if self._failure is not None and self._failed_at > asked_at:
                raise self._failure  # another call failed while this one waited for its turn
            try:
                answer = await operation(await self._reading())
            except DatabaseUnavailable as error:
                # Reconnect whatever the reason: after a failover this connection may lead to a standby.
                self._failed_at, self._failure, self._conn = time.monotonic(), error, None
                raise
            self._failure = None
            return answer

    async def _reading(self) -> Connection:
        self._refuse_if_closed()
        if self._conn is None or self._conn.is_closed():
            await self._connection.aclose()
            self._conn = await self._connection.enter_async_context(self._database.own_connection())
            if self._closed:
                await self._connection.aclose()
            self._refuse_if_closed()
            self._horizon = 0  # this may be another server, whose horizon is lower
            await commit_asynchronously(self._database, self._conn)
        return self._conn

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise _shutting_down()


class Subscription:
    """An endless iterator over events. `cursor` is the position after the last event it returned."""

    def __init__(self, log: EventLog, cursor: str, filter: EventFilter) -> None:  # noqa: A002
        self._log = log
        self._filter = filter
        self._position = cursor
        self._page: deque[Event] = deque()
        self.cursor = cursor

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Raises `StreamDisconnected`, with the cursor, if the database stays unavailable."""
        while not self._page:
            await self._read()
        event = self._page.popleft()
        self.cursor = event.cursor
        return event

    async def _read(self) -> None:
        page = await self._log.call(
            lambda conn: events.read_events(conn, self._position, self._filter, advance=False), self.cursor
        )
        self._page.extend(page.events)
        self._position = page.cursor
        if not page.events:
            self.cursor = page.cursor
            if not page.more:
                await self._log.wait_beyond(page.cursor, of_one=self._filter.execution_id is not None)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("this process is closing and reads no more events; subscribe in another process")
