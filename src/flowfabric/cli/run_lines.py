"""The lines of `ff dev`: what each run does, as it happens."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import assert_never
from uuid import UUID

from rich.text import Text

from flowfabric.cli import formatting
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, Suspension, Wish
from flowfabric.worker.run import Changed, Completed, Failed, Lost, Outcome, Postponed, Suspended

MOST_LINES = 50  # per second; the runs beyond that are counted
LONGEST = 300  # characters of a result or a reason
STYLES = {"completed": "green", "failed": "red", "held": "red", "stopped": "yellow", "waits": "yellow"}
STOPPED = "it was cancelled, waits for a budget, lost its lease, or this worker stops"


class RunLines:
    """Prints a line for every change of a run, at most 50 per second; with `as_json` a document for each."""

    def __init__(self, show: Callable[[Text], None], document: Callable[[object], None] | None = None) -> None:
        self._show = show
        self._document = document
        self._began: dict[UUID, float] = {}
        self._second = 0.0
        self._printed = 0
        self._left_out: Counter[str] = Counter()

    def started(self, claim: Claim) -> None:
        """A run begins."""
        self._began[claim.fence.lease_id] = time.monotonic()
        attempt = f"(attempt {claim.attempt.number})" if claim.attempt.number > 1 else ""
        self._tell(claim, "resumed" if claim.resumed else "started", attempt)

    def ended(self, claim: Claim, outcome: Outcome) -> None:
        """A run has ended; a failure is printed when the engine has answered what follows."""
        if isinstance(outcome, Failed):
            return
        took = self._took(claim)
        match outcome:
            case Completed(result):
                self._tell(claim, "completed", f"in {_words(took)}: {formatting.cell(result)}", took, result=result)
            case Suspended(wishes):
                self._tell(claim, "waits", _awaited(wishes), took, waits=_awaited(wishes))
            case Postponed(delay, reason):
                self._tell(claim, "postponed", f"for {formatting.lasting(delay)}: {reason}", took, reason=reason)
            case Changed(reason):
                self._tell(claim, "held", f"because its code has changed: {reason}", took, reason=reason)
            case Lost():
                self._tell(claim, "stopped", f"after {_words(took)}: {STOPPED}", took)
            case _:
                assert_never(outcome)

    def failed(self, claim: Claim, reason: str, again_at: datetime | None) -> None:
        """A run has failed: the execution runs again then, or has failed for good."""
        took = self._took(claim)
        then = f"; it runs again at {again_at.astimezone():%H:%M:%S}" if again_at else ""
        said = f"after {_words(took)} with {_cut(reason)}{then}"
        self._tell(claim, "failed", said, took, reason=reason, runs_again_at=again_at)

    def _took(self, claim: Claim) -> float:
        now = time.monotonic()
        return now - self._began.pop(claim.fence.lease_id, now)

    def _tell(self, claim: Claim, what: str, more: str, took: float | None = None, **fields: object) -> None:
        at = datetime.now(UTC)
        if self._document is not None:
            about = {"at": at, "event": what, "execution_id": claim.execution_id, "task": claim.task}
            spent = {} if took is None else {"seconds": round(took, 3)}
            self._document({**about, "attempt": claim.attempt.number, **spent, **fields})
        elif self._has_room():
            name = formatting.printable(f"{claim.task} {claim.execution_id}")
            line = Text(f"{at.astimezone():%H:%M:%S} {name} ").append(what, style=STYLES.get(what, ""))
            self._show(line.append(" ".join(["", *filter(None, [_cut(formatting.printable(more))])])))
        else:
            self._left_out[what] += 1

    def _has_room(self) -> bool:
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._printed = now, 0
        self._printed += 1
        if self._printed == MOST_LINES + 1:
            asyncio.get_running_loop().call_later(self._second + 1 - now, self._count)
        return self._printed <= MOST_LINES

    def _count(self) -> None:
        """Print how many lines were left out in this second."""
        left_out, self._left_out = self._left_out, Counter()
        counts = ", ".join(f"{count:,} {what}" for what, count in left_out.most_common())
        if counts:
            self._show(Text(f"{datetime.now(UTC).astimezone():%H:%M:%S} and more than fit here: {counts}", style="dim"))


def _awaited(wishes: Sequence[Sequence[Wish]]) -> str:
    """What a run waits for, at most three things by name, and until when it sleeps."""
    asked = [wish for choice in wishes for wish in choice]
    children = [str(wish.what) for wish in asked if isinstance(wish.what, ExecutionId)]
    named = [_named(wish.name, wish.what) for wish in asked if isinstance(wish.what, Suspension)]
    if children:
        named.insert(0, f"child {children[0]}" if len(children) == 1 else f"{len(children):,} children")
    more = f" and {len(named) - 3:,} more" if len(named) > 3 else ""
    until = min((wish.what for wish in asked if isinstance(wish.what, datetime)), default=None)
    what = [f"for {', '.join(named[:3])}{more}"] if named else []
    return " ".join([*what, *([f"until {until.astimezone():%Y-%m-%d %H:%M:%S}"] if until else [])])


def _named(name: str, wish: Suspension) -> str:
    return f"{'approval' if wish.reason_code == 'waiting_for_approval' else 'signal'} {name!r}"


def _words(seconds: float) -> str:
    return formatting.lasting(timedelta(seconds=seconds))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
