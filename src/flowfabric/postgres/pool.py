"""The pool: a few connections that a process opens as it needs them and lends out, one caller each.

Lending and taking back touch a list: no task, no timer and no round trip for a caller that need not wait.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class Lendable(Protocol):
    """What the pool asks of a connection."""

    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self) -> None: ...


C = TypeVar("C", bound=Lendable)


class Closing(ConnectionError):
    """The pool lends no more."""


class Pool(Generic[C]):
    """Up to `most` connections. The one that came back last is lent first, so that those not needed stay idle."""

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
        """How many are lent."""
        return len(self._lent)

    async def borrow(self, seconds: float) -> C:
        """A connection, as soon as there is one.

        Raises `TimeoutError` after so many seconds, and what connecting raises.
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
        """Take a connection back. One that is closed, or has a transaction open, is not lent again."""
        self._lent.discard(conn)
        if not self._lent:
            self._all_back.set()
        if self.is_closing or conn.is_closed() or conn.is_in_transaction():
            self._drop(conn)
        else:
            self._hand_on(conn)

    async def close(self) -> None:
        """Lend no more, and close the connections when all are back. Cancelled, it closes those in use as well."""
        self.is_closing = True
        while self._waiting:
            self._hand_on(None)
        try:
            while self._lent:
                self._all_back.clear()
                await self._all_back.wait()
            while self._idle:
                await self._idle.pop().close()
        finally:
            for conn in (*self._lent, *self._idle):
                conn.terminate()

    def _take_idle(self) -> C | None:
        while self._idle:
            conn = self._idle.pop()
            if not conn.is_closed():  # by the server, meanwhile
                return conn
            self._open -= 1
        return None

    async def _wait(self) -> C:
        """One that comes back, or a new one where there is room."""
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
            self._hand_on(None)
            raise

    async def _turn(self) -> C | None:
        """What whoever gives something back hands on: a connection, or nothing but the room for one."""
        turn: asyncio.Future[C | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was handed to a caller that has just given up
                self._hand_on(turn.result())
            raise

    def _hand_on(self, conn: C | None) -> None:
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
        self._hand_on(None)
