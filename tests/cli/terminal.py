"""A terminal for commands that refresh their screen."""

import asyncio
import contextlib
import os
import pty
import re
import sys


class Terminal:
    """A terminal that runs a command of `ff`."""

    def __init__(self) -> None:
        self.outside, self.inside = pty.openpty()
        self.seen = ""
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.outside, self._read)

    async def run(self, url: str, *arguments: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric.cli", *arguments),
            env=os.environ | {"FLOWFABRIC_URL": url, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
            stdin=self.inside,
            stdout=self.inside,
            stderr=self.inside,
            preexec_fn=self._take,
        )

    @property
    def text(self) -> str:
        """What it has shown, without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)

    async def shows(self, text: str) -> None:
        """Wait until a text appears."""
        async with asyncio.timeout(20):
            while text not in self.text:
                assert self.process.returncode is None, self.seen
                self._more.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._more.wait(), 1)

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        asyncio.get_running_loop().remove_reader(self.outside)
        os.close(self.outside)
        os.close(self.inside)

    def _read(self) -> None:
        self.seen += os.read(self.outside, 65_536).decode(errors="replace")
        self._more.set()

    @staticmethod
    def _take() -> None:
        """Become the foreground session, which receives ctrl-c."""
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))
