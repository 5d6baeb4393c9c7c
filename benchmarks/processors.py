"""Processor time: what the workers and the Postgres server of a measurement use, however busy the machine is.

Imports nothing from FlowFabric, because the programs that run peers use it too.
"""

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
PARENT, WAITED_FOR = 1, slice(13, 15)  # positions in `stat` behind the name: user and system time of ended children


def parent(pid: int) -> int:
    """The process that started this one; 0 if that is not known."""
    return int((_stat(pid) or ["", "0"])[PARENT])


def seconds(*roots: int) -> float:
    """The processor time so far of these processes and of all that they have started, but not of this process itself.

    It is 0 on a system without /proc.
    """
    return sum(map(_of_one, {pid for root in roots for pid in _family(root)} - {os.getpid()}))


def _family(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for directory in PROC.glob("[0-9]*"):
        children.setdefault(parent(int(directory.name)), []).append(int(directory.name))
    found = [root]
    while found:
        yield (pid := found.pop())
        found += children.get(pid, [])


def _of_one(pid: int) -> float:
    """The time of a process and its threads, to the nanosecond, and of its children that have ended."""
    own = sum(int((_read(task / "schedstat") or "0").split()[0]) for task in PROC.glob(f"{pid}/task/*"))
    return own / 1e9 + sum(map(int, (_stat(pid) or [])[WAITED_FOR])) / TICKS


def _stat(pid: int) -> list[str] | None:
    """The fields behind the name of the program; `None` if the process has ended."""
    text = _read(PROC / str(pid) / "stat")
    return text.rpartition(")")[2].split() if text else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
