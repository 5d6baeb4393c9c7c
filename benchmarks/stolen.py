"""Stolen time: how much processor time other virtual machines on the same host take."""

from pathlib import Path

STAT = Path("/proc/stat")
STEAL = 7  # its position after the word `cpu`; the guest times after it are included in the first two


def ticks(stat: str) -> tuple[int, int]:
    """The stolen and the total ticks since the machine started; (0, 0) if the system does not report them."""
    counts = [int(count) for count in stat.partition("\n")[0].split()[1:]]
    return (counts[STEAL], sum(counts[: STEAL + 1])) if len(counts) > STEAL else (0, 0)


class Stolen:
    """Measures from its creation on."""

    def __init__(self) -> None:
        self._before = self._now()

    def share(self) -> float:
        """The stolen share of all processor time since then."""
        stolen, total = (now - then for now, then in zip(self._now(), self._before, strict=True))
        return stolen / total if total else 0.0

    def _now(self) -> tuple[int, int]:
        return ticks(STAT.read_text()) if STAT.exists() else (0, 0)
