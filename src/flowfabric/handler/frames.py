"""Output: the frames of one run, appended in order; those that wait for a call in flight go together in the next."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from datetime import timedelta

from flowfabric import durations, payloads
from flowfabric.errors import (
    ExecutionNotFound,
    Fenced,
    FlowFabricError,
    InvalidBody,
    InvalidFrame,
    PayloadTooLarge,
    ShuttingDown,
)
from flowfabric.handler.journal import Place, step_running
from flowfabric.handler.repeats import Repeats
from flowfabric.handler.runtime import Runtime
from flowfabric.handler.waits import Leaving
from flowfabric.ids import shown
from flowfabric.model import Appended, Claim, FrameToAppend, JournalEntry
from flowfabric.model.streams import BINARY, JSON, SUPERSEDED

log = logging.getLogger("flowfabric.handler")

FRAME_LIMIT = 65_536
MOST_BYTES = 4 * FRAME_LIMIT  # that wait for a call in flight; then writers wait
MOST_FRAMES = 1_000

GONE = (Fenced, ExecutionNotFound, ShuttingDown)
"""Errors after which no frame of the run will be accepted."""

Answer = Appended | Exception


class Pending:
    """A frame that has not been sent; until then, more of the same source may be added to it."""

    __slots__ = ("_parts", "answered", "correlation_id", "encoding", "kind", "mode", "size", "source", "ttl", "type")

    def __init__(
        self,
        type: str,  # noqa: A002
        data: object,
        *,
        kind: str,
        mode: str = "durable",
        ttl: timedelta | None = None,
        correlation_id: str | None = None,
        source: object = None,
        answered: Callable[[Answer], None] | None = None,
    ) -> None:
        payload, self.encoding = _encoded(type, data)
        if type == SUPERSEDED:
            raise InvalidFrame(f"type {type} is reserved; use another one", field="type")
        self.type = type
        self.kind = kind
        self.mode = mode
        self.ttl = ttl
        self.correlation_id = correlation_id
        self.source = source
        self.answered = answered
        self.size = len(payload)
        self._parts = [payload]

    @property
    def payload(self) -> bytes:
        """The payload, with all that was added."""
        if self.encoding == JSON and len(self._parts) > 1:
            return b'"' + b"".join(part[1:-1] for part in self._parts) + b'"'
        return b"".join(self._parts)

    def add(self, other: "Pending") -> bool:
        """Add the next frame if it is text or bytes of the same source, and fits; return whether it was added."""
        same = self.source is not None and self.source is other.source and self.encoding == other.encoding
        if not same or self.size + other.size > FRAME_LIMIT:
            return False
        self._parts.append(other.payload)
        self.size += other.size
        return True


class Progress(Pending):
    """A report of progress that has not been sent; a newer one replaces it, but keeps its message unless it has one."""

    __slots__ = ("_patch",)

    def __init__(self, percent: float, message: str | None) -> None:
        if not 0 <= percent <= 100:
            raise ValueError(f"progress {percent} is invalid; use a percentage from 0 to 100")
        self._patch = {"progress": percent} if message is None else {"progress": percent, "message": message}
        super().__init__("progress", self._patch, kind="event", mode="summary")

    @property
    def payload(self) -> bytes:
        return payloads.encode(self._patch)

    def add(self, other: Pending) -> bool:
        if isinstance(other, Progress):
            self._patch |= other._patch
        return isinstance(other, Progress)


class Output:
    """The frames of one run. A run has one call in flight, so that its frames keep their order."""

    def __init__(self, runtime: Runtime, claim: Claim, journal: Sequence[JournalEntry], leaving: Leaving) -> None:
        self._runtime = runtime
        self._claim = claim
        self._leaving = leaving
        self._repeats = Repeats(journal) if journal else None
        self._waiting: deque[Pending] = deque()
        self._bytes = 0  # of the waiting frames
        self._number = 0
        self._put = self._answered = 0
        self._sending: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._refusal: Exception | None = None
        self._closed = False

    def drops(self) -> bool:
        """Whether what is appended now is dropped: an earlier run has appended it, or the run has been unwound."""
        if self._closed or self._leaving.left:
            return True
        return self._repeats is not None and step_running.get() is None and self._repeats.is_repeating

    def pass_entry(self, place: Place) -> None:
        """Note that the current asyncio task got what is saved at a place of the journal."""
        if self._repeats is not None and place.entry is not None:
            self._repeats.pass_entry(place.entry)

    def saved(self) -> None:
        """Note that the current asyncio task has saved something in the journal."""
        if self._repeats is not None:
            self._repeats.turn_new()

    def leave_out(self, place: Place) -> None:
        """Note that no task will get what is saved at this place, because another wait completed first."""
        if self._repeats is not None and place.entry is not None:
            self._repeats.leave_out(place.entry)

    async def append(self, frame: Pending) -> Appended | None:
        """Append a frame and return when it is committed; `None` if it is dropped."""
        if self.drops():
            return None
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        frame.answered = lambda it: None if answer.done() else answer.set_result(it)
        await self.have_room()
        if self.drops():
            return None
        self.put(frame)
        answered = await answer
        if isinstance(answered, Exception):
            raise answered
        return answered

    async def send(self, frame: Pending) -> None:
        """Append a frame and return before it is committed; the event loop has a turn."""
        if self.drops():
            return
        await self.have_room()
        self.put(frame)
        await asyncio.sleep(0)

    @property
    def has_room(self) -> bool:
        """Whether there is room for another frame."""
        return self._bytes < MOST_BYTES and len(self._waiting) < MOST_FRAMES

    async def have_room(self) -> None:
        """Return when there is room for another frame. Raises the error after which the run may append no more."""
        while self._refusal is None and not self.has_room:
            await self._moved.wait()
        if self._refusal is not None:
            raise self._refusal

    def put(self, frame: Pending) -> None:
        """Send a frame after those that wait; add it to the last of them if that is of the same source."""
        if self._refusal is not None:
            return
        if self._waiting and self._waiting[-1].add(frame):
            self._bytes += frame.size
            return
        self._waiting.append(frame)
        self._bytes += frame.size
        self._put += 1
        if self._sending is None:
            # In a context of its own, because that of the handler says which handler logs.
            self._sending = asyncio.create_task(self._send(), name="frames", context=Variables())

    async def flush(self) -> None:
        """Return when every frame put so far is committed or refused."""
        target = self._put
        while self._answered < target:
            await self._moved.wait()

    def close(self) -> None:
        """Drop what is appended from now on, because the handler was unwound or has ended."""
        self._closed = True

    async def _send(self) -> None:
        try:
            while self._waiting:
                frames = list(self._waiting)
                self._waiting.clear()
                self._bytes = 0
                self._move()
                answers = await self._append(frames)
                for frame, answer in zip(frames, answers, strict=True):
                    self._answer(frame, answer)
                self._move()
        finally:
            self._sending = None

    async def _append(self, frames: Sequence[Pending]) -> Sequence[Answer]:
        try:
            return await self._runtime.append_frames(self._claim, [self._numbered(frame) for frame in frames])
        except Exception as error:
            if not isinstance(error, FlowFabricError):
                log.exception(
                    "could not append %d frames of %s; they are dropped", len(frames), self._claim.execution_id
                )
            return [error] * len(frames)

    def _numbered(self, frame: Pending) -> FrameToAppend:
        self._number += 1
        return FrameToAppend(
            fence=self._claim.fence,
            payload=frame.payload,
            kind=frame.kind,
            type=frame.type,
            encoding=frame.encoding,
            correlation_id=frame.correlation_id,
            mode=frame.mode,
            ttl=frame.ttl,
            number=self._number,
        )

    def _answer(self, frame: Pending, answer: Answer) -> None:
        self._answered += 1
        if isinstance(answer, GONE):
            self._refusal = answer
            self._drop(answer)
        if frame.answered is not None:
            frame.answered(answer)

    def _drop(self, error: Exception) -> None:
        """Refuse the frames that wait: the run may append no more."""
        dropped, self._waiting = self._waiting, deque()
        self._bytes = 0
        self._answered += len(dropped)
        for frame in dropped:
            if frame.answered is not None:
                frame.answered(error)

    def _move(self) -> None:
        """Wake all that wait for room or for answers."""
        self._moved.set()
        self._moved = asyncio.Event()


def _encoded(type: str, data: object) -> tuple[bytes, str]:  # noqa: A002
    """Return the payload of a frame and its encoding: bytes as they are, anything else as JSON.

    Raises `InvalidFrame` and `PayloadTooLarge`, before anything is sent.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        payload, encoding = bytes(data), BINARY
    else:
        try:
            payload, encoding = payloads.encode(data), JSON
        except InvalidBody as refused:
            raise InvalidFrame(f"the data of frame {shown(type)} {refused.message}", field="payload") from None
    if len(payload) > FRAME_LIMIT:
        raise PayloadTooLarge(
            f"frame {shown(type)} has {len(payload):,} bytes, more than the limit of {FRAME_LIMIT:,}; write long text "
            "and data with ctx.stream, which divides them, or store them elsewhere and append a reference",
            limit=FRAME_LIMIT,
        )
    return payload, encoding


def read_ttl(ttl: str | timedelta | None) -> timedelta | None:
    """Read how long a frame matters."""
    return None if ttl is None else durations.read_duration(ttl)
