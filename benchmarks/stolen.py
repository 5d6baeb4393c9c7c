"""Stolen time: how much of the processors other machines on the same host take."""

from pathlib import Path

STAT = Path("/proc/stat")
STEAL = 7  # its place behind the word `cpu`; guest times, which come behind it, are told in the first two already


def ticks(stat: str) -> tuple[int, int]:
    """What was stolen since the machine started, and how much time there was; nothing of nothing where none is told."""
    counts = [int(count) for count in stat.partition("\n")[0].split()[1:]]
    return (counts[STEAL], sum(counts[: STEAL + 1])) if len(counts) > STEAL else (0, 0)


class Stolen:
    """Watches from when it is made."""

    def __init__(self) -> None:
        self._before = self._now()

    def share(self) -> float:
        """What has been stolen since, as a part of all time of all processors."""
        stolen, total = (now - then for now, then in zip(self._now(), self._before, strict=True))
        return stolen / total if total else 0.0

    def _now(self) -> tuple[int, int]:
        return ticks(STAT.read_text()) if STAT.exists() else (0, 0)
