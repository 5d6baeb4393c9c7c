"""Spans: when each run of an execution began and ended, and whether two runs of the same execution overlapped.

Every run appends a line to a file that all worker processes share.
"""

import os
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

VARIABLE = "BENCHMARK_SPANS"


class Span(NamedTuple):
    """One run of an execution, on the monotonic clock of the machine."""

    execution: str
    began: float
    ended: float
    is_whole: bool
    """Whether the handler returned; otherwise it was cancelled."""


def write(span: Span) -> None:
    """Append a span to the file of the process that started this one, if it has one."""
    if path := os.environ.get(VARIABLE):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, msgspec.json.encode(span) + b"\n")
        os.close(handle)


def read(path: Path) -> list[Span]:
    """All spans so far."""
    return [msgspec.json.decode(line, type=Span) for line in path.read_bytes().splitlines()]


def overlapping(spans: list[Span]) -> list[tuple[Span, Span]]:
    """Pairs of runs of which the second began before the first had ended."""
    runs: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.began):
        runs[span.execution].append(span)
    return [
        (earlier, later)
        for several in runs.values()
        for earlier, later in pairwise(several)
        if later.began < earlier.ended
    ]
