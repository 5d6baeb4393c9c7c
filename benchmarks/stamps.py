"""Stamps: when each handler started, in memory that all processes share.

So the start of a run is known without asking the measured engine. Imports nothing from FlowFabric, because the programs
that run peers use it too.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Self

VARIABLE = "BENCHMARK_STAMPS"
MOMENT = struct.Struct("d")


class Stamps:
    """A timestamp of the monotonic clock for each number; 0 if there is none yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._reached = 0

    @classmethod
    def make(cls, path: Path, count: int) -> Self:
        """Create a file with room for this many stamps, all empty."""
        path.write_bytes(bytes(MOMENT.size * count))
        return cls(path)

    @classmethod
    def inherited(cls) -> Self | None:
        """The stamps of the process that started this one, if it has any."""
        path = os.environ.get(VARIABLE)
        return cls(Path(path)) if path else None

    def __len__(self) -> int:
        return len(self._memory) // MOMENT.size

    def mark(self, number: int) -> None:
        """Record that this number starts now."""
        MOMENT.pack_into(self._memory, MOMENT.size * number, time.monotonic())

    def at(self, number: int) -> float:
        """When this number started, or 0."""
        moment: float = MOMENT.unpack_from(self._memory, MOMENT.size * number)[0]
        return moment

    def is_marked(self, number: int) -> bool:
        """Whether this number has started."""
        return self.at(number) > 0

    def reached(self) -> int:
        """How many numbers from 0 on have started without a gap."""
        while self._reached < len(self) and self.at(self._reached):
            self._reached += 1
        return self._reached

    def moments(self) -> list[float]:
        """All timestamps so far, in order."""
        return sorted(moment for (moment,) in MOMENT.iter_unpack(self._memory[:]) if moment)
