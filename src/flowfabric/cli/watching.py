"""Watching: a screen that refreshes until a key, a signal or an end; lines for each change if there is no terminal."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from flowfabric.cli import tables
from flowfabric.cli.formatting import printable
from flowfabric.errors import Unavailable

REFRESH_SECONDS = 1.0


async def refresh(read: Callable[[Console], Awaitable[RenderableType]], ended: Callable[[], bool] = bool) -> None:
    """Refresh the screen until it has ended, or a key or a signal ends it, even while a query is slow."""
    quit_event = asyncio.Event()
    with _quit_on_key(quit_event), Live(console=tables.console(), screen=True, auto_refresh=False) as screen:
        quitting = asyncio.ensure_future(quit_event.wait())
        while not (quit_event.is_set() or ended()):
            reading = asyncio.ensure_future(_available(read, screen.console))
            await asyncio.wait((reading, quitting), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                screen.update(reading.result(), refresh=True)
                await asyncio.wait((quitting,), timeout=0 if ended() else REFRESH_SECONDS)
            reading.cancel()


class Watching(NamedTuple):
    """How a value is watched: what must differ for a new line, and when there is nothing more to see."""

    state: Callable[[Any], object]
    ended: Callable[[Any], bool] = bool


async def watch(
    read: Callable[[], Awaitable[Any]],
    text: Callable[[Any], str],
    how: Watching,
    *,
    show: Callable[[object], None],
    as_lines: bool,
) -> None:
    """Show a value until it has ended: on a screen, and once more after it; or `as_lines`, whenever it has changed."""
    seen: list[Any] = []

    async def once() -> Any:
        seen[:] = [await read()]
        return seen[0]

    async def screen(console: Console) -> RenderableType:
        return _fitted(text(await once()), console.height)

    if not as_lines:
        await refresh(screen, lambda: bool(seen) and how.ended(seen[0]))
        if seen:
            show(seen[0])
        return
    quit_event, last = asyncio.Event(), None
    with _quit_on_key(quit_event):
        while not quit_event.is_set():
            with contextlib.suppress(Unavailable):  # it says so when it starts, and continues when it is back
                value = await once()
                if (state := how.state(value)) != last:
                    last = state
                    show(value)
                if how.ended(value):
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(quit_event.wait(), REFRESH_SECONDS)


async def _available(read: Callable[[Console], Awaitable[RenderableType]], screen: Console) -> RenderableType:
    """What is read, or why the database is unreachable."""
    try:
        return await read(screen)
    except Unavailable as unavailable:
        return Text(f"{printable(str(unavailable))}\nretrying; press q to quit")


def _fitted(text: str, height: int) -> Text:
    """As many lines as fit the screen; the rest is counted."""
    lines = text.splitlines()
    if len(lines) > height:
        lines[height - 1 :] = [f"and {len(lines) - height + 1:,} more lines; press q to quit"]
    return Text.from_ansi("\n".join(lines))


@contextlib.contextmanager
def _quit_on_key(quit_event: asyncio.Event) -> Iterator[None]:
    """Set the event on q, ctrl-c or SIGTERM. Restores the terminal afterwards."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, quit_event.set)
    typed = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = None if typed is None else termios.tcgetattr(typed)

    def read() -> None:
        assert typed is not None
        if {b"q", b"Q", b"\x03", b""} & {os.read(typed, 1)}:
            quit_event.set()

    try:
        if typed is not None:
            tty.setcbreak(typed)
            loop.add_reader(typed, read)
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        if typed is not None and before is not None:
            loop.remove_reader(typed)
            termios.tcsetattr(typed, termios.TCSADRAIN, before)
