"""Tails: any number of readers follow the streams of executions, with one call for all that wait.

A reader asks for its next page when it has consumed the last one. So a slow reader holds one page, delays no other, and
finds every durable frame when it asks again. All use the connection that reads the event log.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Literal

from flowfabric import cursors
from flowfabric.app.subscriptions import EventLog
from flowfabric.engine import streams
from flowfabric.errors import FlowFabricError, InvalidCursor, InvalidLimit, ShuttingDown, StreamDisconnected
from flowfabric.ids import ExecutionId, shown
from flowfabric.model import Frame, FrameMode, FramePage, Superseded, Tail, Trimmed
from flowfabric.model.streams import SUPERSEDED
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.notify import Notification, Notifier

SHORTEST_PAUSE = 0.01
LONGEST_PAUSE = 1.0
PAGE = 500  # frames of one stream in one call
LONGEST_BLOCK = timedelta(seconds=30)

Attempts = Literal["current", "valid", "all"] | int


class _Reader:
    """A reader that waits for its next page; `is_news` says whether a page is what it waits for."""

    __slots__ = ("answer", "is_news", "tail")

    def __init__(self, tail: Tail, is_news: Callable[[FramePage], bool]) -> None:
        self.tail = tail
        self.is_news = is_news
        self.answer: asyncio.Future[FramePage] = asyncio.get_running_loop().create_future()


class Tails:
    """The readers of this process that wait for frames. A notification wakes those of one execution; all also poll."""

    def __init__(self, log: EventLog, notifier: Notifier, *, polls_only: bool) -> None:
        self._log = log
        self._notifier = notifier
        self._backoff = Backoff(SHORTEST_PAUSE if polls_only else LONGEST_PAUSE, LONGEST_PAUSE)
        self._waiting: defaultdict[str, set[_Reader]] = defaultdict(set)
        self._due: dict[_Reader, None] = {}  # in order, so that each has its turn
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._stop_listening: list[Callable[[], None]] = []
        self._closed = False

    async def close(self) -> None:
        """End every tail with `ShuttingDown`."""
        self._closed = True
        for stop in self._stop_listening:
            stop()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        for reader in self._all():
            self._fail(reader, _shutting_down())

    @property
    def waiting_count(self) -> int:
        """How many readers wait for frames."""
        return sum(map(len, self._waiting.values()))

    async def next_page(self, tail: Tail, is_news: Callable[[FramePage], bool]) -> FramePage:
        """Return a page as soon as it has frames or is news. Raises `ExecutionNotFound`, `StreamDisconnected`."""
        if self._closed:
            raise _shutting_down()
        key, reader = str(tail.execution_id), _Reader(tail, is_news)
        self._waiting[key].add(reader)  # before the first look, so that no notification falls between
        self._due[reader] = None
        self._start()
        try:
            return await reader.answer
        finally:
            self._due.pop(reader, None)
            self._waiting[key].discard(reader)
            if not self._waiting[key]:
                del self._waiting[key]

    async def tail_frames(self, tail: Tail, *, block: timedelta = timedelta(0), limit: int = 50) -> FramePage:
        """Return the frames after an id as soon as there is one, or the marks of a closed stream; empty after `block`.

        Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`.
        """
        if not timedelta(0) <= block <= LONGEST_BLOCK:
            raise InvalidLimit(f"block of {block} is invalid; use up to 30 s")
        page = await self._look(tail, limit)
        if page.frames or page.closed_reason is not None or not block:
            return page
        with suppress(TimeoutError):
            async with asyncio.timeout(block.total_seconds()):
                await self.next_page(tail, lambda page: page.closed_reason is not None)
        return await self._look(tail, limit)

    async def _look(self, tail: Tail, limit: int) -> FramePage:
        [page] = await self._log.call(partial(streams.tail_frames, tails=[tail], limit=limit), "")
        if isinstance(page, FlowFabricError):
            raise page
        return page

    def _start(self) -> None:
        if self._reading is None:
            both = (False, True)
            self._stop_listening = [self._notifier.listen(self._notified, streams=streams) for streams in both]
            self._reading = asyncio.create_task(self._read_for_ever(), name="tails: read")
        self._changed.set()

    def _notified(self, notification: Notification) -> None:
        names = [*notification.streams, *notification.ended]
        if names:
            readers = [reader for name in names for reader in self._waiting.get(name, ())]
        else:
            readers = [] if notification.lanes else self._all()  # without names: some may have been missed
        self._due.update(dict.fromkeys(readers))
        if readers:
            self._changed.set()

    async def _read_for_ever(self) -> None:
        while True:
            self._changed.clear()
            if self._due:
                due, self._due = [reader for reader in self._due if not reader.answer.done()], {}
                await self._read(due)
                continue
            try:
                async with asyncio.timeout(self._backoff.next() if self._waiting else None):
                    await self._changed.wait()
            except TimeoutError:
                self._due = dict.fromkeys(self._all())

    async def _read(self, due: Sequence[_Reader]) -> None:
        read = partial(streams.tail_frames, tails=[reader.tail for reader in due], limit=PAGE)
        try:
            pages = await self._log.call(read, "")
        except Exception as error:
            for reader in due:
                self._fail(reader, error)
            return
        for reader, page in zip(due, pages, strict=True):
            if isinstance(page, FlowFabricError):
                self._fail(reader, page)
            elif page.frames or reader.is_news(page):
                self._backoff.reset()
                if not reader.answer.done():
                    reader.answer.set_result(page)
            elif page.next is not None and not reader.answer.done():
                self._due[reader] = None  # its frames did not fit beside those of others

    def _all(self) -> list[_Reader]:
        return [reader for readers in self._waiting.values() for reader in readers]

    def _fail(self, reader: _Reader, error: Exception) -> None:
        if not reader.answer.done():
            reader.answer.set_exception(error)


class Follower:
    """One reader of an execution: where it is, and what it knows of the attempt that it reads."""

    def __init__(
        self,
        tails: Tails,
        log: EventLog,
        execution_id: ExecutionId,
        cursor: str | None,
        attempts: Attempts,
        *,
        best_effort: bool,
    ) -> None:
        self._tails = tails
        self._log = log
        self._execution_id = execution_id
        self._attempts = attempts
        self._best_effort = best_effort
        self._cursor = cursor
        self._attempt: int | None = None
        self._after = "0-0"
        if cursor:
            self._attempt, self._after = cursors.parse_stream_cursor(cursor)
        if not cursor and attempts != "current":
            self._attempt = attempts if isinstance(attempts, int) else 1
        self._known: tuple[object, ...] | None = None

    async def __aiter__(self) -> AsyncIterator[Frame | Superseded | Trimmed]:
        """Yield frames attempt by attempt, and a mark between two attempts, until the execution has ended.

        A mark also stands where frames are missing.
        """
        while True:
            page = await self._next_page()
            attempt = self._attempt = self._attempt or page.attempt or (1 if page.latest == 0 else None)
            follows = attempt is not None and page.latest > attempt
            last_id = await self._last_valid(attempt) if follows else None
            skips = follows and self._attempts == "valid"
            trimmed = None if page.trimmed_to is None else Trimmed(attempt=page.attempt, last_id=page.trimmed_to)
            if trimmed is not None and not page.frames:
                self._after = trimmed.last_id
                yield trimmed
            for frame in _without_void(page.frames, self._after) if self._attempts == "valid" else page.frames:
                if skips and not _is_valid(frame.id, last_id):
                    break
                if trimmed is not None and frame.mode is FrameMode.DURABLE:
                    yield trimmed
                    trimmed = None
                self._after = frame.id
                yield _mark(frame) if frame.type == SUPERSEDED else frame
            else:
                self._after = page.frames[-1].id if page.frames else self._after
                if page.next is not None or attempt is None:
                    self._known = None
                    continue
            if (page.has_ended and not follows) or self._is_only(page, follows=follows):
                return
            if attempt is not None and follows:
                # Not for an attempt that has put nothing out, nor if the reader has only seen what stays valid.
                if page.closed_reason is not None and not (skips and _is_valid(self._after, last_id)):
                    yield Superseded(attempt=attempt, by=attempt + 1, last_id=last_id)
                self._attempt, self._after, self._known = attempt + 1, "0-0", None

    async def _next_page(self) -> FramePage:
        tail = Tail(
            execution_id=self._execution_id, attempt=self._attempt, after=self._after, best_effort=self._best_effort
        )
        try:
            page = await self._tails.next_page(tail, partial(_differs, self._known))
        except StreamDisconnected as error:
            raise StreamDisconnected(error.message, cursor=f"{self._attempt or 1}:{self._after}") from error
        self._known = _state(page)
        if self._cursor and (self._attempt or 1) > max(page.latest, 1):
            raise InvalidCursor(
                f"cursor {shown(self._cursor)} is of attempt {self._attempt}, but the execution is in attempt "
                f"{page.latest}; use a cursor of this execution",
                cause="future_attempt",
            )
        return page

    def _is_only(self, page: FramePage, *, follows: bool) -> bool:
        """Whether the reader wants this attempt only, and it is over."""
        return isinstance(self._attempts, int) and (follows or page.has_ended or page.closed_reason is not None)

    async def _last_valid(self, attempt: int | None) -> str | None:
        find = partial(streams.find_valid_frames, execution_id=self._execution_id)
        return (await self._log.call(find, "")).get(attempt or 0)


def _differs(known: tuple[object, ...] | None, page: FramePage) -> bool:
    return _state(page) != known


def _state(page: FramePage) -> tuple[object, ...]:
    return page.latest, page.has_ended, page.closed_reason


def _is_valid(frame_id: str, last_id: str | None) -> bool:
    """Whether a frame stays valid, given the last one that does; `0-0` is before the first frame."""
    return cursors.parse_frame_cursor(frame_id) <= cursors.parse_frame_cursor(last_id or "0-0")


def _mark(frame: Frame) -> Superseded:
    """Read the mark of a run that was interrupted inside its attempt."""
    return Superseded(attempt=frame.attempt, by=frame.attempt, last_id=frame.data["last_id"], id=frame.id)


def _without_void(frames: Sequence[Frame], seen: str) -> Sequence[Frame]:
    """Leave out the frames that a mark among them voids, and the mark unless the reader has seen void ones before."""
    kept: list[Frame] = []
    for frame in frames:
        if frame.type == SUPERSEDED:
            mark = _mark(frame)
            kept = [old for old in kept if mark.keeps(old)]
            if _is_valid(seen, mark.last_id):
                continue
        kept.append(frame)
    return kept


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("this process is closing and reads no more frames; read on in another process")
