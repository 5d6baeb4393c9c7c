"""Several processes of one command: started, started again when they die, and stopped together."""

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

log = logging.getLogger("flowfabric.cli")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LONG_LIFE = 60.0  # seconds after which a death is no longer one of a row


def supervise(count: int, arguments: Sequence[str]) -> int:
    """Run so many processes of `ff` until told to stop, and return the exit code: 0 when all of them ended well."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return asyncio.run(Processes(arguments).run(count))


class Processes:
    """Children that run the same command."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._children: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()

    async def run(self, count: int) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        codes = await asyncio.gather(*(self._keep() for _ in range(count)))
        return int(any(codes))

    def _signalled(self) -> None:
        """Pass it on; a child that hears it twice ends at once."""
        self._stopping.set()
        for child in self._children:
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)

    async def _keep(self) -> int:
        """Keep one child running until told to stop, and return its exit code then."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            code = await self._live()
            if self._stopping.is_set():
                return code
            pause = FIRST_PAUSE if time.monotonic() - began > LONG_LIFE else min(pause * 2, LONGEST_PAUSE)
            log.warning("a worker process ended with %d; the next starts in %g s", code, pause)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                continue
            return 0

    async def _live(self) -> int:
        # A session of its own: ctrl-c reaches it through us, once. The pipe ends with us, however we end.
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
