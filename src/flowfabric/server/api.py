"""The HTTP API as an ASGI app: it opens the app with the first request, guards the door, and answers by the table."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
from litestar import Litestar, MediaType, Request, Response
from litestar.datastructures import State
from litestar.enums import HttpMethod
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.handlers import HTTPRouteHandler

from flowfabric.app import App
from flowfabric.errors import (
    BodyTimedOut,
    BodyTooLarge,
    FlowFabricError,
    InvalidBody,
    MethodNotAllowed,
    RouteNotFound,
    ShuttingDown,
    UnsupportedMediaType,
)
from flowfabric.ids import shown
from flowfabric.server import answers, guard, openapi, refusals, requests, submissions
from flowfabric.server.callers import LOCAL
from flowfabric.server.following import ENDED, Following
from flowfabric.server.pace import Pace
from flowfabric.server.routes import Route, routes

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asked: TypeAlias = Request[Any, Any, Any]
Answer: TypeAlias = Response[bytes]

DEFAULT = Pace()
JSON, LINES = "application/json", "application/x-ndjson"
ROOM = 65_536  # bytes of a body beside its payload
MOST_BYTES = 8 * 1_048_576


class Api:
    """The HTTP API of an app.

    Requests for other hosts than `hosts` are refused; without them every host is allowed, because the server around
    this app has decided it. An app that is not open is opened by the first request, and closed at the end of the
    lifespan if the server has one.
    """

    def __init__(self, app: App, *, hosts: Collection[str] | None = None, pace: Pace = DEFAULT) -> None:
        self.app = app
        self.pace = pace
        self._hosts = hosts
        self._opening = asyncio.Lock()
        self._has_opened = False
        self.stopping = asyncio.Event()
        self.drop: Callable[[Any], None] = lambda _: None
        """Closes the connection of a client that does not take what it is sent; the server sets it, if it can."""
        self._framework = _framework(self)

    def stop(self) -> None:
        """Answer the requests that wait for something now, and report that this server is not ready."""
        self.stopping.set()

    @property
    def is_stopping(self) -> bool:
        """Whether the server is about to end."""
        return self.stopping.is_set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await self._live(receive, send)
            case "http":
                await self._serve(scope, receive, partial(_send, send))
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            guard.check(scope["headers"], self._hosts)
            if scope["path"].rpartition("/")[2] != "healthz":
                await self._open()
        except FlowFabricError as refused:
            await _refuse(refused, send)
            return
        below: Any = {**scope, "path": guard.own_path(scope), "root_path": ""}
        framework: Any = self._framework
        await framework(below, receive, send)

    async def _open(self) -> None:
        if self.app.is_open:
            return
        async with self._opening:
            if not self.app.is_open:
                await self.app.__aenter__()
                self._has_opened = True

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._open()
        except FlowFabricError as refused:
            await send({"type": "lifespan.startup.failed", "message": str(refused)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.stop()
        if self._has_opened:
            await self.app.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    async def until_gone(self, request: Asked, answering: Awaitable[Any]) -> Any:
        """Return the answer; stop working on it if the caller has gone or this server stops.

        Raises `ShuttingDown`.
        """
        work = asyncio.ensure_future(answering)
        others = [asyncio.ensure_future(each) for each in (_gone(request), self.stopping.wait())]
        try:
            await asyncio.wait([work, *others], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ShuttingDown("this server is stopping and no longer waits; ask again")
            return work.result()
        finally:
            for each in (work, *others):
                each.cancel()
            await asyncio.gather(work, *others, return_exceptions=True)


class _Ongoing(Response[bytes]):  # type: ignore[misc, unused-ignore] # the framework is in an extra
    """An answer that the framework passes on, and that sends itself."""

    def __init__(self, following: Following) -> None:
        super().__init__(b"")
        self._following = following

    def to_asgi_response(self, *args: Any, **kwargs: Any) -> Any:
        return self._following


async def _gone(request: Asked) -> None:
    """Return when the caller has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, message: Message) -> None:
    """Add the headers that every answer has."""
    if message["type"] == "http.response.start":
        message = {**message, "headers": [*message.get("headers", ()), *guard.HEADERS]}
    await send(message)


async def _refuse(refused: FlowFabricError, send: Send) -> None:
    named = {"content-type": JSON, **refusals.headers(refused)}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusals.encoded(refused)})


def most_bytes(app: App) -> int:
    """The largest body of a request: one payload, or many small ones."""
    return max(app.config.payload_limit + ROOM, MOST_BYTES)


def _framework(api: Api) -> Litestar:
    return Litestar(
        [_health(), _ready(api), _document(), *_handlers(api)],
        openapi_config=None,
        logging_config=None,
        request_max_body_size=most_bytes(api.app),
        state=State({"api": api}),
        exception_handlers={FlowFabricError: _refused, HTTPException: _refused_by_framework, Exception: _failed},
    )


def _handlers(api: Api) -> Iterator[HTTPRouteHandler]:
    """A handler for each path, with all its methods."""
    paths: dict[str, dict[str, Route]] = {}
    for route in routes():
        paths.setdefault(route.path, {})[route.operation.method] = route
    return (_handler(api, path, methods) for path, methods in paths.items())


def _handler(api: Api, path: str, methods: Mapping[str, Route]) -> HTTPRouteHandler:
    async def handle(request: Asked) -> Any:
        return await _handle(api, methods[request.method], request)

    return HTTPRouteHandler(path.replace("}", ":str}"), http_method=[HttpMethod(each) for each in methods])(handle)


async def _handle(api: Api, route: Route, request: Asked) -> Any:
    """Read a request, run its operation and write the answer."""
    path = {each.name: requests.unquoted(request.path_params[each.name], each.name) for each in route.in_path}
    caller = {"by": LOCAL.name} if route.names_actor else {}
    if route.is_followed and request.headers.get("last-event-id") == ENDED:
        return Response(b"", status_code=204)
    if route.is_read:
        given = _query(request, route)
    else:
        body, media = await _body(request, api.pace.body)
        if route.takes_body and (media == LINES or body.lstrip()[:1] == b"["):
            return _answer(await _submit_many(api.app, request, body, media))
        given = requests.decode(body, route.request)
        given = _with_key(request, given) if route.takes_body else given
    answering = route.run(api.app, {**route.arguments(path, given), **caller})
    may_wait = route.is_followed or any(each.name == "wait" for each in route.parameters)
    answer = await (api.until_gone(request, answering) if may_wait else answering)
    if route.is_followed:
        return _Ongoing(Following(answer, api.pace, api.stopping, api.drop))
    return _answer(answer, route.wrapper)


def _query(request: Asked, route: Route) -> msgspec.Struct:
    lists = {each.wire_name for each in route.parameters if "list[" in str(each.kind)}
    found = requests.query(request.scope["query_string"], lists)
    last = request.headers.get("last-event-id")
    if route.is_followed and last:  # a client that connects again sends the query of its first request too
        found["cursor"] = last
    return requests.from_value(found, route.request)


async def _body(request: Asked, within: float) -> tuple[bytes, str]:
    """The body and its media type. Raises `UnsupportedMediaType`, `BodyTooLarge`, `BodyTimedOut`."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        async with asyncio.timeout(within):
            body = await request.body()
    except TimeoutError:
        raise BodyTimedOut(f"the body did not arrive within {within:g} s; send it again") from None
    if media not in (JSON, LINES) and (body or media):
        raise UnsupportedMediaType(
            f"content type {shown(media)} is not supported; use {JSON}, which `curl --json` sends", media_type=media
        )
    return body, media


def _with_key(request: Asked, given: Any) -> Any:
    """The submission with the key of the header. Raises `InvalidBody` if the body has another one."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return given
    if given.key not in (None, key):
        raise InvalidBody("the header Idempotency-Key and the field key differ; send one of them", field="key")
    return msgspec.structs.replace(given, key=key)


async def _submit_many(app: App, request: Asked, body: bytes, media: str) -> Sequence[Any]:
    if "idempotency-key" in request.headers:
        raise InvalidBody("the header Idempotency-Key is for one submission; give each of many its key", field="key")
    items: Sequence[Any] = (
        [line for line in body.splitlines() if line.strip()]
        if media == LINES
        else requests.decode(body, list[msgspec.Raw])
    )
    answered = await submissions.submit_many(app, items, by=LOCAL.name)
    return [refusals.refusal(each) if isinstance(each, FlowFabricError) else each for each in answered]


def _answer(answer: Any, wrapper: str = "items") -> Answer:
    return Response(answers.encode(answer, wrapper), media_type=MediaType.JSON, status_code=200)


def _health() -> HTTPRouteHandler:
    async def healthz() -> Answer:
        return _answer({"status": "ok"})

    return HTTPRouteHandler("/healthz", http_method="GET")(healthz)


def _ready(api: Api) -> HTTPRouteHandler:
    async def readyz() -> Answer:
        if api.is_stopping:
            raise ShuttingDown("this server is stopping; use another one")
        await api.app.now()
        return _answer({"status": "ready"})

    return HTTPRouteHandler("/readyz", http_method="GET")(readyz)


def _document() -> HTTPRouteHandler:
    async def document() -> Answer:
        return Response(openapi.text(), media_type=MediaType.JSON, status_code=200)

    return HTTPRouteHandler("/v1/openapi.json", http_method="GET")(document)


def _refused(_: Asked, error: FlowFabricError) -> Answer:
    return Response(
        refusals.encoded(error), media_type=MediaType.JSON, status_code=error.status, headers=refusals.headers(error)
    )


def _refused_by_framework(request: Asked, error: HTTPException) -> Answer:
    """What the framework refuses, in the same shape."""
    asked = f"{request.method} {shown(request.scope['path'])}"
    if isinstance(error, NotFoundException):
        return _refused(request, RouteNotFound(f"{asked} does not exist; GET /v1/openapi.json lists what does"))
    if isinstance(error, MethodNotAllowedException):
        allowed = (error.headers or {}).get("allow", "")
        answer = _refused(request, MethodNotAllowed(f"{asked} is not allowed; use {allowed}", allowed=allowed))
        answer.headers["allow"] = allowed
        return answer
    if error.status_code == 413:
        limit = most_bytes(request.app.state.api.app)
        return _refused(request, BodyTooLarge(f"the body has more than {limit:,} bytes; send less", limit=limit))
    if error.status_code < 500:
        return _refused(request, InvalidBody(error.detail))
    return _failed(request, error)


def _failed(request: Asked, error: Exception) -> Answer:
    body = refusals.unexpected(error, f"{request.method} {shown(request.scope['path'])}")
    return Response(body, media_type=MediaType.JSON, status_code=500)
