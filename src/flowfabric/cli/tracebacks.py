"""Tracebacks for people: our own frames are folded into one line, and control characters are escaped."""

import re
from collections.abc import Iterator, Sequence

from flowfabric.cli import formatting
from flowfabric.model import Attempt

_FRAME = re.compile(r'(?P<margin>[ |]*)File "(?P<path>[^"]*)", line \d+')
_OURS = re.compile(r"[/\\](site-packages|dist-packages|src)[/\\]flowfabric[/\\]")


def folded(traceback: str) -> str:
    """The traceback without our own frames, whose number is given instead; what a frame shows goes with it."""
    shown: list[str] = []
    margin, ours, count = "", False, 0
    for line in traceback.splitlines():
        frame = _FRAME.match(line)
        if frame:
            margin, ours = frame["margin"], bool(_OURS.search(frame["path"]))
        elif not line.startswith(f"{margin} "):  # the lines of a frame are indented more deeply than the frame
            ours = False
        if ours:
            count += frame is not None
            continue
        shown += [*_count(margin, count), line]
        count = 0
    return formatting.printable("\n".join([*shown, *_count(margin, count)]), lines=True)


def of_attempts(attempts: Sequence[Attempt]) -> str:
    """The folded tracebacks of attempts; one that is the same as the previous one is only named."""
    return "\n\n".join(_of_attempts(attempts))


def _of_attempts(attempts: Sequence[Attempt]) -> Iterator[str]:
    before: Attempt | None = None
    for attempt in attempts:
        traceback = attempt.failure and attempt.failure.traceback
        if not traceback:
            continue
        if before is not None and before.failure is not None and before.failure.traceback == traceback:
            yield f"attempt {attempt.number}: the same traceback as attempt {before.number}"
        else:
            yield f"attempt {attempt.number}:\n{folded(traceback)}"
            before = attempt


def _count(margin: str, count: int) -> list[str]:
    return [f"{margin}… {count} {'frame' if count == 1 else 'frames'} of flowfabric"] if count else []
