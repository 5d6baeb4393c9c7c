"""Frames for tests, and short ways to append and read them."""

from typing import Any

from flowfabric.engine import streams
from flowfabric.ids import ExecutionId
from flowfabric.model import Appended, Claim, FrameToAppend
from flowfabric.postgres.driver import Connection


def frame(claim: Claim, payload: bytes = b'"x"', **more: Any) -> FrameToAppend:
    """A frame of the attempt that was claimed."""
    return FrameToAppend(fence=claim.fence, payload=payload, **more)


def patch(claim: Claim, payload: bytes, **more: Any) -> FrameToAppend:
    """A patch of the summary of the attempt that was claimed."""
    return frame(claim, payload, mode="summary", **more)


async def appended(conn: Connection, claim: Claim, *payloads: bytes, **more: Any) -> list[str]:
    """Append frames in one call and return their ids."""
    answers = await streams.append_frames(conn, [frame(claim, payload, **more) for payload in payloads])
    return [str(answer.frame_id) for answer in answers if isinstance(answer, Appended)]


async def payloads(conn: Connection, execution_id: ExecutionId, **more: Any) -> list[bytes]:
    """The payloads of the frames that are kept."""
    return [found.payload for found in (await streams.read_frames(conn, execution_id, **more)).frames]
