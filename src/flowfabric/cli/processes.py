"""Several worker processes: start them, restart one that dies, and stop them together."""

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from flowfabric.cli.logs import configure_logging
from flowfabric.postgres.backoff import Backoff

log = logging.getLogger("flowfabric.cli")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LONG_LIFE = 60.0  # seconds: a process that lived longer is restarted after the first pause again


def supervise(count: int, arguments: Sequence[str]) -> int:
    """Run `count` processes of `ff` until a signal stops them. Returns 0 if all of them exited with 0, else 1."""
    configure_logging()
    return asyncio.run(Processes(arguments).run(count))


class Processes:
    """Child processes that run the same command."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._children: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()

    async def run(self, count: int) -> int:
        """Run `count` children until a signal stops them."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        codes = await asyncio.gather(*(self._keep_running() for _ in range(count)))
        return int(any(codes))

    def _signalled(self) -> None:
        """Pass the signal to the children; a child that receives it twice exits immediately."""
        self._stopping.set()
        for child in self._children:
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)

    async def _keep_running(self) -> int:
        """Restart one child until a signal stops it, and return its last exit code."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            began = time.monotonic()
            code = await self._run_child()
            if self._stopping.is_set():
                return code
            if time.monotonic() - began > LONG_LIFE:
                backoff.reset()
            pause = backoff.next()
            log.warning("a worker process exited with code %d; starting a new one in %g s", code, pause)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                continue
            return 0

    async def _run_child(self) -> int:
        # A session of its own, so that ctrl-c reaches the child only once, through us. The pipe closes when we
        # exit, however we exit, and the child stops then.
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric.cli", *self._arguments),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._children.add(child)
        if self._stopping.is_set():
            child.send_signal(signal.SIGTERM)
        try:
            return await child.wait()
        finally:
            self._children.discard(child)
