"""`ff dev --reload`: run the worker in a child process, and start it again when the code changes."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path

import watchfiles

from flowfabric.cli.errors import CommandError
from flowfabric.cli.formatting import printable
from flowfabric.cli.logs import configure_logging

log = logging.getLogger("flowfabric.cli")

PATIENCE = 5.0  # seconds beyond the drain time; a child that needs longer is blocked, and is killed
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotWatch(CommandError):
    """The directories of the code cannot be watched."""

    def __init__(self, message: str) -> None:
        super().__init__("cannot_watch", message)


def reload_on_change(directories: Sequence[Path], arguments: Sequence[str], *, drain: float) -> int:
    """Run `ff` with these arguments, and again after each change below these directories, until a signal ends it.

    Returns the exit code of the last child.
    """
    configure_logging()
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    return asyncio.run(Reloading(directories, arguments, drain=drain).run())


class Reloading:
    """A child process that is replaced when a Python file changes.

    The old child ends before the new one starts: it drains, and hands back what does not end in time. If the code
    cannot be loaded, the child says why and exits, and the next change starts another one.
    """

    def __init__(self, directories: Sequence[Path], arguments: Sequence[str], *, drain: float) -> None:
        self._directories = directories
        self._arguments = arguments
        self._drain = drain
        self._child: asyncio.subprocess.Process | None = None
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal comes, and return the exit code of the last child."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        watching = asyncio.create_task(self._watch())
        try:
            return await self._keep_running(watching)
        finally:
            self._stopping.set()
            watching.cancel()
            if self._child is not None and self._child.returncode is None:
                self._child.kill()

    async def _keep_running(self, watching: asyncio.Task[None]) -> int:
        code = 0
        while not self._stopping.is_set():
            self._changed.clear()
            code = await self._run_child(watching)
            if watching.done():
                watching.result()
            if not self._changed.is_set() and not self._stopping.is_set():
                log.warning("the worker has exited with code %d; it starts again when a Python file changes", code)
                await self._first(watching, self._changed.wait(), self._stopping.wait())
        return code

    async def _run_child(self, watching: asyncio.Task[None]) -> int:
        # A session of its own, so that ctrl-c reaches the child only through us. The pipe closes when we exit, however
        # we exit, and the child stops then.
        child = self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric.cli", *self._arguments),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        await self._first(watching, child.wait(), self._changed.wait(), self._stopping.wait())
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.terminate()
            if not self._stopping.is_set():  # a second signal ends it, and needs no help
                await self._end(child)
        return await child.wait()

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """Wait until the child has drained, and kill it if its handlers block it."""
        try:
            await asyncio.wait_for(child.wait(), self._drain + PATIENCE)
        except TimeoutError:
            log.warning("the worker does not end; killing it. What it ran is reclaimed by the next one")
            with suppress(ProcessLookupError):
                child.kill()

    def _signalled(self) -> None:
        """Pass the signal to the child; one that receives it twice exits immediately."""
        if self._stopping.is_set() and self._child is not None and self._child.returncode is None:
            self._child.terminate()
        self._stopping.set()

    async def _watch(self) -> None:
        watched = watchfiles.awatch(
            *self._directories, watch_filter=watchfiles.PythonFilter(), stop_event=self._stopping, recursive=True
        )
        try:
            async for changes in watched:
                log.info("changed: %s; starting the worker again", _names({path for _, path in changes}))
                self._changed.set()
        except OSError as error:
            raise CannotWatch(
                f"could not watch {', '.join(map(str, self._directories))}: {error}; use --reload-dir to watch a "
                "smaller directory, or set WATCHFILES_FORCE_POLLING=1"
            ) from None

    async def _first(self, watching: asyncio.Task[None], *waits: Coroutine[None, None, object]) -> None:
        """Wait until the first of these is done, or watching has failed."""
        tasks = [asyncio.create_task(wait) for wait in waits]
        await asyncio.wait([watching, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


def _names(paths: Collection[str]) -> str:
    """The first three of these files, relative to the working directory."""
    names = sorted(map(os.path.relpath, paths))
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return printable(", ".join(names[:3])) + more
