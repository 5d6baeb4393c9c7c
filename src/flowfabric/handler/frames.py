"""Frames: what a run puts out while it runs, in order, each frame with its number."""

import asyncio

from flowfabric import payloads
from flowfabric.handler.runtime import Runtime
from flowfabric.model import Appended, Claim, FrameToAppend
from flowfabric.model.streams import BINARY, JSON


class Frames:
    """The output of one run. Frames are numbered and appended one after the other, so that they keep their order."""

    def __init__(self, runtime: Runtime, claim: Claim) -> None:
        self._runtime = runtime
        self._claim = claim
        self._turn = asyncio.Lock()
        self._number = 0

    async def append(self, type: str, data: object, kind: str) -> str:  # noqa: A002
        """Append a frame and return its id."""
        payload, encoding = encoded(data)
        async with self._turn:
            self._number += 1
            frame = FrameToAppend(
                fence=self._claim.fence,
                payload=payload,
                kind=kind,
                type=type,
                encoding=encoding,
                number=self._number,
            )
            [answer] = await self._runtime.append_frames(self._claim, [frame])
        if isinstance(answer, Appended):
            return answer.frame_id or ""
        raise answer


def encoded(data: object) -> tuple[bytes, str]:
    """Return the payload of a frame and its encoding: bytes as they are, anything else as JSON."""
    return (data, BINARY) if isinstance(data, bytes) else (payloads.encode(data), JSON)
