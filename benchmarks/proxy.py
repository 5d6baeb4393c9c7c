"""A TCP proxy in front of Postgres that can go silent: it stops forwarding, and closes nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: "Proxy", *, silent: bool) -> None:
        self._proxy = proxy
        self.silent = silent  # nothing is forwarded any more, in either direction
        self.said = b""
        """What the client has sent."""

    async def pump(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, answers: bool) -> None:
        """Forward in one direction until the connection is silent or closed; the end too is then not forwarded."""
        while True:
            data = await source.read(65_536)
            if not answers:
                self.said += data
            if answers and self._proxy.is_lost(data):
                self.silent = True
            if self.silent:
                await asyncio.Event().wait()
            if not data:
                to.close()
                return
            to.write(data)
            await to.drain()


class Proxy:
    """Connections to Postgres that a test can silence, one by one or all; new ones work unless `dead` is set."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        port = parts.port or int(options.get("port", ["5432"])[0])
        host = options.get("host", [parts.hostname or "127.0.0.1"])[0]
        self._upstream: Callable[[], Awaitable[Streams]] = (
            (lambda: asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}"))
            if host.startswith("/")
            else (lambda: asyncio.open_connection(host, port))
        )
        self._login = parts.netloc.rpartition("@")[0]
        self._name = parts.path
        self._losing: bytes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.links: list[Link] = []
        self.dead = False
        """Whether new connections are silent from the beginning."""

    def silence(self, *, but: bytes = b"\0never said") -> None:
        """Silence the connections that are open now, except those on which a client has sent these words."""
        for link in self.links:
            link.silent = link.silent or but not in link.said

    def lose(self, words: bytes) -> None:
        """Silence the connection on which the next answer with these words arrives, and do not forward the answer."""
        self._losing = words

    def is_lost(self, answer: bytes) -> bool:
        if self._losing is None or self._losing not in answer:
            return False
        self._losing = None
        return True

    @property
    def is_losing(self) -> bool:
        """Whether the answer to lose has not come yet."""
        return self._losing is not None

    async def run(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._login}@127.0.0.1:{port}{self._name}?sslmode=disable"
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = Link(self, silent=self.dead)
        self.links.append(link)
        there, back = await self._upstream()
        try:
            with suppress(OSError, asyncio.CancelledError):  # asyncio logs a handler that was cancelled
                await asyncio.gather(
                    link.pump(reader, back, answers=False),
                    link.pump(there, writer, answers=True),
                )
        finally:
            for end in (writer, back):
                end.transport.abort()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the server of this URL; `proxy.url` leads through it."""
    proxy = Proxy(url)
    server = await proxy.run()
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
