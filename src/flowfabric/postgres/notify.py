"""Notifications between processes: "this lane has work", "this execution has ended", over LISTEN and NOTIFY.

A notification is sent after the commit, on its own connection, never inside the write: a NOTIFY there takes a lock on
the whole server at commit. Nothing depends on a notification arriving, because every waiting process also polls.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Self

import msgspec

from flowfabric.errors import Unavailable
from flowfabric.postgres import call, driver
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection

log = logging.getLogger("flowfabric.postgres")

CHANNEL = "flowfabric"
STREAMS = "flowfabric_streams"  # apart, so that only processes that tail a stream are woken for its frames
MOST_NAMES = 100
MOST_BYTES = 7_900  # of one message; Postgres accepts fewer than 8,000
PAUSE = 0.003
LOST = (Unavailable, OSError)
CLOSING_TIME = 1.0  # seconds to send what is left when the process closes


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lanes that may have work, and executions that may have ended or have new frames.

    One without names means: look at everything.
    """

    lanes: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()


Listener = Callable[[Notification], None]


class Notifier:
    """Sends and receives the notifications of one process, over one connection each, opened at first use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lanes: set[str] = set()
        self._ended: set[str] = set()
        self._streams: set[str] = set()
        self._listeners: set[Listener] = set()
        self._stream_listeners: set[Listener] = set()
        self._attention = asyncio.Event()
        self._waiting = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Send what is left and stop listening."""
        self._closed = True
        if self._sending is not None and self._waiting.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_sent.wait(), CLOSING_TIME)
        for task in (self._sending, self._listening):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    def send(self, *, lanes: Iterable[str] = (), ended: Iterable[str] = (), streams: Iterable[str] = ()) -> None:
        """Queue a notification and return at once. Names queued within a few milliseconds share a message."""
        self._lanes.update(lanes)
        self._ended.update(ended)
        self._streams.update(streams)
        if self._closed or not self._is_left():
            return
        self._waiting.set()
        self._all_sent.clear()
        if self._sending is None:
            self._sending = asyncio.create_task(self._keep(self._send_all), name="notifier: send")

    def listen(self, listener: Listener, *, streams: bool = False) -> Callable[[], None]:
        """Call `listener` with every notification, and once after each connect. Returns a function that stops it.

        Notifications of `streams` have a channel of their own, which only processes with such a listener listen to.
        """
        listeners = self._stream_listeners if streams else self._listeners
        listeners.add(listener)
        self._attention.set()
        if self._listening is None and not (self._closed or self._database.config.pooler):
            self._listening = asyncio.create_task(self._keep(self._listen), name="notifier: listen")
        return lambda: listeners.discard(listener)

    async def _keep(self, use: Callable[[Connection], Awaitable[None]]) -> None:
        """Use a connection until it is lost, then open another."""
        reconnect = Backoff(0.5, 0.5)
        while True:
            try:
                async with self._database.own_connection() as conn:
                    await commit_asynchronously(self._database, conn)
                    await use(conn)
            except LOST as error:
                log.debug("notifications are interrupted; workers poll until they are restored: %s", error)
            except Exception:
                log.exception("could not send or receive notifications; workers poll until they are restored")
            await reconnect.wait()

    async def _send_all(self, conn: Connection) -> None:
        while True:
            await self._waiting.wait()
            messages = deque(_messages(self._lanes, self._ended, self._streams))
            for names in (self._lanes, self._ended, self._streams):
                names.clear()
            try:
                while messages:
                    channel = STREAMS if messages[0].streams else CHANNEL
                    text = msgspec.json.encode(messages[0]).decode()
                    await call.builtin(conn, "pg_notify", channel=channel, payload=text)
                    messages.popleft()
            except LOST:
                # Send these again on the next connection.
                self._lanes.update(*(message.lanes for message in messages))
                self._ended.update(*(message.ended for message in messages))
                self._streams.update(*(message.streams for message in messages))
                raise
            if not self._is_left():
                self._waiting.clear()
                self._all_sent.set()
            await asyncio.sleep(PAUSE)

    def _is_left(self) -> bool:
        return bool(self._lanes or self._ended or self._streams)

    async def _listen(self, conn: Connection) -> None:
        await conn.add_listener(CHANNEL, self._received)
        self._deliver(Notification())
        every = self._database.config.call_timeout.total_seconds()
        hears_streams = False
        while True:
            self._attention.clear()
            if self._stream_listeners and not hears_streams:
                await conn.add_listener(STREAMS, self._received)
                hears_streams = True
                self._deliver(Notification())
            if await driver.closed(conn, every, self._attention):
                return
            if not self._attention.is_set():
                # A connection that went silent looks like one without news, so ask now and then.
                await call.builtin(conn, "now")

    def _received(self, _conn: Connection, _pid: int, _channel: str, payload: object) -> None:
        try:
            self._deliver(msgspec.json.decode(str(payload), type=Notification))
        except msgspec.MsgspecError:
            self._deliver(Notification())  # from another release, or another program: look at everything

    def _deliver(self, notification: Notification) -> None:
        if notification.streams:
            listeners = self._stream_listeners
        else:
            listeners = self._listeners if notification.lanes or notification.ended else self._everybody()
        for listener in tuple(listeners):
            listener(notification)

    def _everybody(self) -> set[Listener]:
        return self._listeners | self._stream_listeners


async def commit_asynchronously(database: Database, conn: Connection) -> None:
    """Let this session's commits not wait for the disk: a crash may undo a notification or a horizon, never work.

    Behind a pooler the session is shared, so it stays as it is.
    """
    if not database.config.pooler:
        await call.builtin(conn, "set_config", name="synchronous_commit", value="off", is_local=False)


def _messages(lanes: Collection[str], ended: Collection[str], streams: Collection[str]) -> Iterator[Notification]:
    """The names in as few messages as they fit in; those of streams apart, because they have their own channel."""
    yield from _packed([*(("lanes", name) for name in sorted(lanes)), *(("ended", name) for name in sorted(ended))])
    yield from _packed([("streams", name) for name in sorted(streams)])


def _packed(names: Sequence[tuple[str, str]]) -> Iterator[Notification]:
    part: list[tuple[str, str]] = []
    size = 0
    for what, name in names:
        length = len(msgspec.json.encode(name)) + 1
        if len(part) == MOST_NAMES or size + length > MOST_BYTES:
            yield _message(part)
            part, size = [], 0
        part.append((what, name))
        size += length
    if part:
        yield _message(part)


def _message(part: Collection[tuple[str, str]]) -> Notification:
    return Notification(
        lanes=tuple(name for what, name in part if what == "lanes"),
        ended=tuple(name for what, name in part if what == "ended"),
        streams=tuple(name for what, name in part if what == "streams"),
    )
