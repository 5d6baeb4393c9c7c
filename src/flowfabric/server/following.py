"""Following over HTTP: server-sent events for the log, and for one execution's events and frames.

    id: AgAAAAAAAAAq
    data: {"event_id": 42, "kind": "execution_completed", …}

The id is the cursor: a client that connects again sends it as `Last-Event-ID` and misses nothing. An item is read when
the one before it has been sent, so a slow client holds one page of the log or of a stream, and delays no other.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Literal

from flowfabric import cursors
from flowfabric.app import App
from flowfabric.engine.events import timeline
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId
from flowfabric.model import Event, EventFilter, Frame, Superseded, Trimmed
from flowfabric.server import answers, refusals
from flowfabric.server.pace import Pace

Message = MutableMapping[str, Any]
Item = Event | Frame | Superseded | Trimmed

ENDED = "end"
"""The id of the last item: a client that connects again with it is answered that nothing follows."""

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


async def follow_log(app: App, *, cursor: str = "", filter: EventFilter = EventFilter()) -> AsyncIterator[Event]:  # noqa: A002, B008
    """Follow the event log: every event that matches the filter, from a cursor, or from now on.

    Raises `InvalidCursor`, `CursorExpired`, and `InvalidBody` for an unknown event kind.
    """
    return await app.log.subscribe(cursor, filter)


async def follow_events(
    app: App, execution_id: str | ExecutionId, *, cursor: str | None = None
) -> AsyncIterator[Event]:
    """Follow the events of one execution, past and new, until it has ended.

    Raises `ExecutionNotFound`, `InvalidCursor`, `CursorExpired`.
    """
    execution = app.execution(execution_id)
    ended = (await app.executions.get_result(execution_id)).outcome is not None
    if cursor is None:
        return execution.events()
    rest = await app.events.read(cursor, timeline(execution.execution_id), limit=1)
    return _nothing() if ended and not rest.events else execution.events(cursor)


async def follow_frames(
    app: App,
    execution_id: str | ExecutionId,
    *,
    cursor: str | None = None,
    attempts: Literal["current", "valid", "all"] = "current",
) -> AsyncIterator[Frame | Superseded | Trimmed]:
    """Follow what an execution puts out, past and new, until it has ended.

    Starts with the current attempt, or with the first one for `all`, and for `valid`, which leaves out what another
    attempt has replaced. Raises `ExecutionNotFound`, `InvalidCursor`.
    """
    if cursor is not None:
        cursors.parse_stream_cursor(cursor)
    await app.executions.get_result(execution_id)
    return app.execution(execution_id).frames(cursor, attempts=attempts)


async def _nothing() -> AsyncIterator[Event]:
    for event in list[Event]():
        yield event


class Following:
    """An ASGI app that sends items until they end, its client leaves or the server stops."""

    def __init__(
        self, items: AsyncIterator[Any], pace: Pace, stopping: asyncio.Event, drop: Callable[[Any], None]
    ) -> None:
        self._items = items
        self._pace = pace
        self._stopping = stopping
        self._drop = drop

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        others = [asyncio.ensure_future(each) for each in (_gone(receive), self._stopping.wait())]
        try:
            await self._taken(send({"type": "http.response.start", "status": 200, "headers": HEADERS}))
            async for text in _texts(self._items, others, self._pace.heartbeat):
                await self._taken(send({"type": "http.response.body", "body": text, "more_body": True}))
            await self._taken(send({"type": "http.response.body", "body": b""}))
        except TimeoutError:
            self._drop(scope.get("client"))
        finally:
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _taken(self, sending: Awaitable[None]) -> None:
        """Wait until the client has taken what was sent before. Raises `TimeoutError` for a client that does not."""
        async with asyncio.timeout(self._pace.taken):
            await sending


async def _texts(
    items: AsyncIterator[Any], others: Sequence[asyncio.Future[Any]], heartbeat: float
) -> AsyncIterator[bytes]:
    """The lines to send: items, heartbeats between them, and how it ended."""
    yield b"retry: 1000\n\n"
    following = asyncio.ensure_future(anext(items))
    try:
        while True:
            await asyncio.wait([following, *others], timeout=heartbeat, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                yield _text(following.result())
                following = asyncio.ensure_future(anext(items))
            elif any(each.done() for each in others):
                return
            else:
                yield b": \n\n"
    except StopAsyncIteration:
        yield b"id: end\nevent: end\ndata: {}\n\n"
    except FlowFabricError as refused:
        yield b"event: error\ndata: " + refusals.encoded(refused) + b"\n\n"
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        if hasattr(items, "aclose"):
            await items.aclose()


def _text(item: Item) -> bytes:
    name = b"" if isinstance(item, Event | Frame) else f"event: {item.kind}\n".encode()
    return b"id: %s\n%bdata: %b\n\n" % (item.cursor.encode(), name, answers.encode(item))


async def _gone(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
