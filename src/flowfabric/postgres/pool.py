"""A connection pool: opens connections on demand, up to a limit, and lends each to one caller at a time.

A caller that does not have to wait costs one list operation: no task, no timer and no round trip.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class Lendable(Protocol):
    """The methods that the pool needs of a connection."""

    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self) -> None: ...


C = TypeVar("C", bound=Lendable)

CLOSING_TIME = 1.0  # seconds to take leave of the server, which frees its sessions a little earlier


class Closing(ConnectionError):
    """The pool is closing and lends no more connections."""


class Pool(Generic[C]):
    """A pool of up to `most` connections. It lends the most recently used one first, so that surplus ones stay idle."""

    def __init__(self, connect: Callable[[], Awaitable[C]], most: int) -> None:
        self._connect = connect
        self._most = most
        self._open = 0  # lent, idle, or being opened
        self._idle: list[C] = []
        self._lent: set[C] = set()
        self._waiting: deque[asyncio.Future[C | None]] = deque()
        self._all_back = asyncio.Event()
        self.is_closing = False

    @property
    def in_use(self) -> int:
        """The number of connections in use."""
        return len(self._lent)

    async def borrow(self, seconds: float | None) -> C:
        """Borrow a connection; wait for one if all are in use, without a limit unless it is given in seconds.

        Raises `TimeoutError` after that many `seconds`, or any error of connecting.
        """
        conn = self._take_idle()
        if conn is None:
            async with asyncio.timeout(seconds):
                conn = await self._wait()
        if self.is_closing:
            self._drop(conn)
            raise Closing("the pool is closing")
        self._lent.add(conn)
        return conn

    def give_back(self, conn: C) -> None:
        """Return a connection to the pool. A connection that is closed or has an open transaction is dropped."""
        self._lent.discard(conn)
        if not self._lent:
            self._all_back.set()
        if self.is_closing or conn.is_closed() or conn.is_in_transaction():
            self._drop(conn)
        else:
            self._offer(conn)

    async def close(self) -> None:
        """Stop lending, and close all connections once none is in use. If cancelled, close those in use as well."""
        self.is_closing = True
        while self._waiting:
            self._offer(None)
        try:
            while self._lent:
                self._all_back.clear()
                await self._all_back.wait()
            async with asyncio.timeout(CLOSING_TIME):
                await asyncio.gather(*(conn.close() for conn in self._idle), return_exceptions=True)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Stop lending, and close all connections immediately, those in use as well."""
        self.is_closing = True
        while self._waiting:
            self._offer(None)
        for conn in (*self._lent, *self._idle):
            conn.terminate()

    def drop_idle(self) -> None:
        """Close the idle connections, because there is reason to believe that they are lost."""
        while self._idle:
            self._drop(self._idle.pop())

    def _take_idle(self) -> C | None:
        while self._idle:
            conn = self._idle.pop()
            if not conn.is_closed():  # the server may have closed it while it was idle
                return conn
            self._open -= 1
        return None

    async def _wait(self) -> C:
        """Wait for a returned connection, or open a new one if the pool has room."""
        while self._open >= self._most and not self.is_closing:
            if (conn := await self._turn()) is not None:
                return conn
        if self.is_closing:
            raise Closing("the pool is closing")
        self._open += 1
        try:
            return await self._connect()
        except BaseException:
            self._open -= 1
            self._offer(None)
            raise

    async def _turn(self) -> C | None:
        """Queue for a connection. Returns a connection, or `None` if there is room to open one."""
        turn: asyncio.Future[C | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the caller was cancelled just after it got the connection
                self._offer(turn.result())
            raise

    def _offer(self, conn: C | None) -> None:
        """Pass a connection, or with `None` the room for one, to the first caller in the queue."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(conn)
                return
        if conn is not None:
            self._idle.append(conn)

    def _drop(self, conn: C) -> None:
        conn.terminate()
        self._open -= 1
        self._offer(None)
