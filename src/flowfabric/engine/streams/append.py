"""Frames: append the output of running attempts to their streams."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

from flowfabric import calls
from flowfabric.errors import FlowFabricError, InvalidFrame, PayloadTooLarge
from flowfabric.ids import ExecutionId, check_text, expect_id, shown
from flowfabric.model import Appended, Fence, FrameToAppend
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

T = TypeVar("T")

FRAME_LIMIT = 65_536
LONGEST_TTL = timedelta(days=1)


async def append_frame(conn: Connection, frame: FrameToAppend) -> Appended:
    """Append a frame to the stream of a running attempt.

    Without a number, a repeated call appends again. Raises `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`,
    `InvalidFrame`, `InvalidPatch`, `InvalidText`, `PayloadTooLarge`.
    """
    return calls.only(await append_frames(conn, [frame]))


async def append_frames(
    conn: Connection, frames: Sequence[FrameToAppend], *, wait: bool = True
) -> list[Appended | FlowFabricError]:
    """Append many frames, those of one attempt in their order, and return one result per frame.

    Without `wait`, a frame whose execution another transaction has locked is refused with `RowLocked`, so that the
    other frames do not wait for it.
    """

    async def send(checked: Sequence[FrameToAppend]) -> list[Appended | FlowFabricError]:
        return await _send(conn, checked, wait=wait)

    return await calls.each(frames, _checked, send, lambda frame: len(frame.payload))


async def _send(conn: Connection, frames: Sequence[FrameToAppend], *, wait: bool) -> list[Appended | FlowFabricError]:
    fences: dict[Fence, int] = {}
    fences_of = [fences.setdefault(frame.fence, len(fences) + 1) for frame in frames]
    answered = await call.rows(
        conn,
        "append_frames",
        **calls.fence_columns(list(fences)),
        payloads=[frame.payload for frame in frames],
        fences_of=fences_of,
        numbers=_column([frame.number for frame in frames]),
        kinds=_column([_unless("event", frame.kind) for frame in frames]),
        types=_column([frame.type for frame in frames]),
        encodings=_column([_unless("json", frame.encoding) for frame in frames]),
        correlation_ids=_column([frame.correlation_id for frame in frames]),
        modes=_column([_unless("durable", frame.mode) for frame in frames]),
        ttls_ms=_column([None if frame.ttl is None else calls.span(frame.ttl, "ttl") for frame in frames]),
        wait=wait,
    )
    return calls.read_answers(answered, Appended)


def _checked(frame: FrameToAppend) -> FrameToAppend:
    """Check what would make Postgres refuse the whole batch; SQL checks the rest."""
    expect_id(ExecutionId, frame.fence.execution_id, "execution id of the fence")
    if _expect(bytes, frame.payload, "payload") is None:
        raise InvalidFrame("the payload is missing; use bytes, which may be empty", field="payload")
    if len(frame.payload) > calls.MOST_BYTES:
        raise PayloadTooLarge(
            f"the frame has {len(frame.payload):,} bytes, more than the limit of {FRAME_LIMIT:,}; "
            "store it elsewhere and pass a reference",
            limit=FRAME_LIMIT,
        )
    for field in ("kind", "type", "encoding", "correlation_id", "mode"):
        if (given := _expect(str, getattr(frame, field), field)) is not None:
            check_text(given, field)
    number, ttl = (_expect(int, frame.number, "number"), _expect(timedelta, frame.ttl, "ttl"))
    if abs(number or 0) >= 1 << 63:
        raise InvalidFrame(f"number {number} is invalid; use a whole number from 1", field="number")
    if abs(ttl or timedelta()) > 2 * LONGEST_TTL:
        raise InvalidFrame(f"ttl {ttl} is invalid; use up to a day", field="ttl_ms")
    return frame


def _expect(kind: type[T], given: object, field: str) -> T | None:
    if given is None or isinstance(given, kind):
        return given
    raise InvalidFrame(f"{field} {shown(str(given))} is invalid; use a value of type {kind.__name__}", field=field)


def _unless(default: str, given: str) -> str | None:
    return None if given == default else str(given)


def _column(values: list[T | None]) -> list[T | None] | None:
    """Return a column, or `None` if no frame uses it."""
    return values if values.count(None) < len(values) else None
