"""Notifier: "there is something to look at", from the process that committed it to those that wait.

A hint is sent after the commit, on a connection of its own, never inside the write (a NOTIFY there takes a lock of the
whole server at commit). Nothing depends on one arriving: whoever waits also looks by himself now and then.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Self

import msgspec

from flowfabric.errors import Unavailable
from flowfabric.postgres import call
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection

log = logging.getLogger("flowfabric.postgres")

CHANNEL = "flowfabric"
MOST_NAMES = 100
MOST_BYTES = 7_900  # of one message; Postgres takes fewer than 8 000
PAUSE = 0.003
RECONNECT_PAUSE = 0.5
LOST = (Unavailable, OSError)
LAST_WORDS = 1.0  # seconds for what is left to be sent when the process leaves


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where there may be work, and what may have ended. A hint without names means: look yourself."""

    lanes: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()


Heard = Callable[[Notification], None]


class Notifier:
    """Sends and hears the hints of one process, over one connection each, opened at their first use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lanes: set[str] = set()
        self._ended: set[str] = set()
        self._listeners: set[Heard] = set()
        self._said = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Send what is left and stop listening."""
        self._closed = True
        if self._sending is not None and self._said.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_sent.wait(), LAST_WORDS)
        for task in (self._sending, self._listening):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    def send(self, *, lanes: Iterable[str] = (), ended: Iterable[str] = ()) -> None:
        """Tell those who wait; returns at once. What is said within a few milliseconds travels together."""
        self._lanes.update(lanes)
        self._ended.update(ended)
        if self._closed or not (self._lanes or self._ended):
            return
        self._said.set()
        self._all_sent.clear()
        if self._sending is None:
            self._sending = asyncio.create_task(self._keep(self._send_all), name="hints: send")

    def listen(self, heard: Heard) -> Callable[[], None]:
        """Call `heard` with every hint, and once after each connection, until the function returned is called."""
        self._listeners.add(heard)
        if self._listening is None and not (self._closed or self._database.config.pooler):
            self._listening = asyncio.create_task(self._keep(self._listen), name="hints: listen")
        return lambda: self._listeners.discard(heard)

    async def _keep(self, use: Callable[[Connection], Awaitable[None]]) -> None:
        """Use a connection for as long as it lasts, then another."""
        while True:
            try:
                async with self._database.own_connection() as conn:
                    await hurry(self._database, conn)
                    await use(conn)
            except LOST as error:
                log.debug("hints are interrupted, polling finds the work: %s", error)
            except Exception:
                log.exception("a hint could not be sent or heard, polling finds the work")
            await asyncio.sleep(RECONNECT_PAUSE)

    async def _send_all(self, conn: Connection) -> None:
        while True:
            await self._said.wait()
            hints = deque(_hints(self._lanes, self._ended))
            self._lanes.clear()
            self._ended.clear()
            try:
                while hints:
                    message = msgspec.json.encode(hints[0]).decode()
                    await call.builtin(conn, "pg_notify", channel=CHANNEL, payload=message)
                    hints.popleft()
            except LOST:
                # What a lost connection has swallowed is said again on the next.
                self._lanes.update(*(hint.lanes for hint in hints))
                self._ended.update(*(hint.ended for hint in hints))
                raise
            if not (self._lanes or self._ended):
                self._said.clear()
                self._all_sent.set()
            await asyncio.sleep(PAUSE)

    async def _listen(self, conn: Connection) -> None:
        await conn.add_listener(CHANNEL, self._received)
        self._tell(Notification())
        await call.closed(conn)

    def _received(self, _conn: Connection, _pid: int, _channel: str, payload: object) -> None:
        try:
            self._tell(msgspec.json.decode(str(payload), type=Notification))
        except msgspec.MsgspecError:
            self._tell(Notification())  # from another version, or another program: look for ourselves

    def _tell(self, hint: Notification) -> None:
        for heard in tuple(self._listeners):
            heard(hint)


async def hurry(database: Database, conn: Connection) -> None:
    """Let a connection of ours not wait for the disk: a hint or a horizon that a crash takes back is made again.

    Behind a pooler the session is not ours to change.
    """
    if not database.config.pooler:
        await call.builtin(conn, "set_config", name="synchronous_commit", value="off", is_local=False)


def _hints(lanes: Collection[str], ended: Collection[str]) -> Iterator[Notification]:
    """As few hints as the names fit in."""
    names = [*((name, True) for name in sorted(lanes)), *((name, False) for name in sorted(ended))]
    part: list[tuple[str, bool]] = []
    size = 0
    for name, is_lane in names:
        length = len(msgspec.json.encode(name)) + 1
        if len(part) == MOST_NAMES or size + length > MOST_BYTES:
            yield _hint(part)
            part, size = [], 0
        part.append((name, is_lane))
        size += length
    if part:
        yield _hint(part)


def _hint(part: Collection[tuple[str, bool]]) -> Notification:
    return Notification(
        lanes=tuple(name for name, is_lane in part if is_lane),
        ended=tuple(name for name, is_lane in part if not is_lane),
    )
