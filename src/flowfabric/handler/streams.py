"""Streams: text and bytes that a handler writes piece by piece, such as the tokens of a model."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Self

from flowfabric.errors import InvalidFrame
from flowfabric.handler.frames import FRAME_LIMIT, Answer, Output, Pending

PIECE = 10_000  # characters: a character has at most 6 bytes as JSON


class OutputStream:
    """Text and bytes that a handler writes piece by piece: `async with ctx.stream("answer") as out`.

    The first piece is sent at once. Those that are written while a call is in flight share the next frame.
    """

    def __init__(
        self,
        output: Output,
        name: str,
        kind: str = "stdout",
        mode: str = "durable",
        ttl: timedelta | None = None,
        correlation_id: str | None = None,
    ) -> None:
        if mode == "summary":
            raise InvalidFrame("mode summary is invalid for a stream; use ctx.append_frame with a patch", field="mode")
        self.name = name
        self._output = output
        self._kind = kind
        self._mode = mode
        self._ttl = ttl
        self._correlation_id = correlation_id
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<output stream {self.name}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            await self.flush()
        # Otherwise the end of the run, or of the step, waits until it is committed.

    async def write(self, data: str | bytes) -> None:
        """Write a piece; it waits only if readers would otherwise be far behind: too much has not been sent yet.

        Long pieces are divided. Raises the error of an earlier piece that was refused, once; the stream can be used on.
        """
        self._raise_refused()
        for piece in pieces(data):
            frame = Pending(
                self.name,
                piece,
                kind=self._kind,
                mode=self._mode,
                ttl=self._ttl,
                correlation_id=self._correlation_id,
                source=self,
                answered=self._answered,
            )
            await self._output.send(frame)

    async def flush(self) -> None:
        """Return when everything that was written is committed. Raises the error of a piece that was refused."""
        await self._output.flush()
        self._raise_refused()

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, Exception):
            self._error = answer

    def _raise_refused(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def pieces(data: str | bytes) -> Iterator[str | bytes]:
    """Divide text or bytes so that each piece fits into a frame. Raises `TypeError` for other data."""
    if not isinstance(data, str | bytes | bytearray | memoryview):
        raise TypeError(f"a stream takes text or bytes, not {type(data).__name__}; use ctx.append_frame for other data")
    size = PIECE if isinstance(data, str) else FRAME_LIMIT
    for start in range(0, len(data), size):
        yield data[start : start + size]
