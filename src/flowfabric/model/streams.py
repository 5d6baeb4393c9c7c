"""Streams: frames that an attempt puts out while it runs, and its summary."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

import msgspec

from flowfabric.ids import ExecutionId
from flowfabric.model.claims import Fence

JSON, BINARY = "json", "binary"
SUPERSEDED = "superseded"


class FrameKind(StrEnum):
    """What a frame is: text, an error text, an event of the handler's own, or data such as an image."""

    STDOUT = "stdout"
    STDERR = "stderr"
    EVENT = "event"
    BLOB = "blob"


class FrameMode(StrEnum):
    """How long a frame is kept, and what it means."""

    DURABLE = "durable"
    """Kept with the execution; of each attempt the last 10,000, unless the policy says otherwise."""
    SUMMARY = "summary"
    """A JSON merge patch of the attempt's summary. The summary is kept, and the last 64 patches."""
    BEST_EFFORT = "best_effort"
    """Gone after twice its `ttl`, and dropped first when there are too many."""


class FrameToAppend(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A frame to append to the stream of an attempt."""

    fence: Fence
    payload: bytes
    kind: str = "event"
    type: str | None = None
    """A word of your own, such as `tool_call`; defaults to the kind."""
    encoding: str = JSON
    correlation_id: str | None = None
    mode: str = "durable"
    ttl: timedelta | None = None
    """Only for best-effort frames; 30 seconds unless it is given."""
    number: int | None = None
    """Counts the frames of a run, from 1. A frame whose number is not above the last one is a `duplicate`."""


class Appended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a frame: its id, or that it was appended before."""

    outcome: Literal["appended", "duplicate"]
    frame_id: str | None = None
    """`<ms>-<seq>`; grows within an attempt. Missing for a duplicate."""
    frame_count: int | None = None
    """How many frames of the attempt have been appended so far, whether they are still kept or not."""
    summary_version: int | None = None
    """The version of the summary after this patch, from 1."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A frame as it is read."""

    id: str
    """`<ms>-<seq>`; grows within an attempt."""
    attempt: int
    kind: FrameKind
    type: str
    at: datetime
    payload: bytes
    encoding: str = JSON
    mode: FrameMode = FrameMode.DURABLE
    correlation_id: str | None = None
    summary_version: int | None = None

    @property
    def data(self) -> Any:
        """The payload, decoded if it is JSON; otherwise its bytes."""
        return msgspec.json.decode(self.payload) if self.encoding == JSON else self.payload

    @property
    def text(self) -> str | None:
        """The text of a frame that is text; `None` for other data."""
        data = self.data
        return data if isinstance(data, str) else None

    @property
    def cursor(self) -> str:
        """Where a reader continues after this frame: `<attempt>:<ms>-<seq>`."""
        return f"{self.attempt}:{self.id}"


class Superseded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A mark: what was put out after `last_id` is put out again, so forget it.

    It stands between two attempts, or inside one whose run was interrupted, as by a worker that stops. What comes up to
    `last_id` stays valid, because the step that it led to was saved.
    """

    attempt: int
    by: int
    """The attempt that puts it out again; the same one if its run was only interrupted."""
    last_id: str | None = None
    """The id of the last frame that stays valid; `None` if no frame does."""
    id: str = "0-0"
    """The id of the mark in the attempt `by`; `0-0` is before its first frame."""
    kind: Literal["superseded"] = "superseded"

    def keeps(self, frame: Frame) -> bool:
        """Whether a frame stays valid: one of another attempt, or up to `last_id`, or after this mark."""
        if frame.attempt != self.attempt or _place(frame.id) <= _place(self.last_id or "0-0"):
            return True
        return self.by == self.attempt and _place(frame.id) >= _place(self.id)

    @property
    def text(self) -> None:
        """`None`, because a mark has no text."""

    @property
    def cursor(self) -> str:
        """Where a reader continues after this mark."""
        return f"{self.by}:{self.id}"


class Trimmed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A mark where frames are missing: retention has deleted them before this reader came to them."""

    attempt: int
    last_id: str
    """Frames up to this id are missing."""
    kind: Literal["trimmed"] = "trimmed"

    @property
    def text(self) -> None:
        """`None`, because a mark has no text."""

    @property
    def cursor(self) -> str:
        """Where a reader continues after this mark."""
        return f"{self.attempt}:{self.last_id}"


class FramePage(msgspec.Struct, frozen=True, kw_only=True):
    """Frames of one attempt, and how its stream stands.

    A reader of the attempt can stop when `frames` is empty and `closed_reason` is set.
    """

    frames: Sequence[Frame]
    attempt: int
    """The attempt that was read; 0 if no attempt has begun."""
    latest: int
    """The current attempt of the execution, or its last one."""
    has_ended: bool
    """Whether the execution has ended."""
    closed_at: datetime | None = None
    closed_reason: str | None = None
    next: str | None = None
    """The id to read from next, if more frames follow."""
    trimmed_to: str | None = None
    """If durable frames that belong into this page have been deleted by retention: the id up to which."""


class Tail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What to read of one stream: the frames after an id."""

    execution_id: ExecutionId
    attempt: int | None = None
    """The current attempt, unless it is given."""
    after: str = "0-0"
    best_effort: bool = True
    """Whether best-effort frames are read too."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an execution is, as its handler has said with `ctx.progress`."""

    percent: float
    """From 0 to 100."""
    message: str | None = None
    attempt: int
    updated_at: datetime


def _place(frame_id: str) -> tuple[int, ...]:
    return tuple(map(int, frame_id.split("-")))


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of an attempt: a JSON document that its patches have made."""

    document: Mapping[str, Any]
    version: int
    """How many patches were applied."""
    attempt: int
    first_at: datetime
    updated_at: datetime
