"""The screen of `ff top`: rates, lanes and workers above, stuck executions with their remedies below."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from flowfabric.cli.formatting import printable, short_duration
from flowfabric.cli.remedies import stuck_remedy
from flowfabric.model import LaneFrame, Overview, Stuck, WorkerFrame

HIGHEST_IN_LANE, HIGHEST_IN_WORKER = 10_000, 1_000  # the engine counts no further
STATES = {"active": "green", "paused": "yellow", "draining": "yellow"}


def whole(seen: Overview) -> RenderableType:
    """The whole overview, whatever its height."""
    return Group(_summary(seen, seen.lanes, seen.workers), _stuck(seen.stuck, seen))


def fitted(seen: Overview, screen: Console) -> RenderableType:
    """As much of the overview as fits the height of the screen; the rest is counted."""
    summary = _summary(seen, seen.lanes[: max(screen.height // 5, 3)], seen.workers[: max(screen.height // 8, 2)])
    left = screen.height - len(screen.render_lines(summary))
    shown = _stuck((), seen)
    for count in range(1, min(len(seen.stuck), left // 2) + 1):
        more = _stuck(seen.stuck[:count], seen)
        if len(screen.render_lines(more)) > left:
            break
        shown = more
    return Group(summary, shown)


def ago(at: datetime | None, now: datetime) -> str:
    """How long ago that was: 45s, 12m, 3h10m."""
    return "" if at is None else short_duration((now - at).total_seconds())


def _summary(seen: Overview, lanes: Sequence[LaneFrame], workers: Sequence[WorkerFrame]) -> RenderableType:
    return Group(_head(seen), "", _lanes(lanes, seen), "", _workers(workers, seen), "")


def _head(seen: Overview) -> Text:
    rates, ages = seen.rates, seen.ages
    numbers = [
        f"{seen.at:%Y-%m-%d %H:%M:%S} UTC",
        f"submitted {rates.submitted:,.1f}/s",
        f"claimed {rates.claimed:,.1f}/s",
        f"completed {rates.completed:,.1f}/s",
        f"failed {rates.failed:,.1f}/s",
        f"attempts failed {rates.attempts_failed:,.1f}/s",
    ]
    oldest = {
        "longest run": ago(ages.running_since, seen.at),
        "longest suspended": ago(ages.suspended_since, seen.at),
        "next due in": "" if ages.next_due_at is None else short_duration((ages.next_due_at - seen.at).total_seconds()),
    }
    lines = ["   ".join(numbers), "   ".join(f"{name} {value}" for name, value in oldest.items() if value)]
    return Text("\n".join(filter(None, lines)))


def _lanes(lanes: Sequence[LaneFrame], seen: Overview) -> RenderableType:
    if not seen.lanes:
        return "no lanes yet; the first submission to a lane creates it"
    made = _table(
        "lane", "state", *(f">{name}" for name in ("waiting", "oldest", "active", "delayed", "suspended", "held"))
    )
    for lane in lanes:
        counts = [
            _count(number, HIGHEST_IN_LANE) for number in (lane.active_count, lane.delayed_count, lane.suspended_count)
        ]
        made.add_row(
            _plain(lane.name),
            Text(lane.state, style=STATES.get(lane.state, "")),
            _count(lane.waiting_count, HIGHEST_IN_LANE),
            ago(lane.oldest_at, seen.at),
            *counts,
            _count(lane.held_count, HIGHEST_IN_LANE),
        )
    return _and_more(made, seen.lane_count - len(lanes), "lanes")


def _workers(workers: Sequence[WorkerFrame], seen: Overview) -> RenderableType:
    if not seen.workers:
        return "no workers; to start one: ff worker FILE.py:app"
    made = _table("instance", "worker", "lanes", "capabilities", ">running", ">last heartbeat", "")
    for worker in workers:
        made.add_row(
            _plain(worker.instance),
            _plain(worker.worker),
            _plain(", ".join(worker.lanes)),
            _plain(", ".join(worker.capabilities)),
            _count(worker.running_count, HIGHEST_IN_WORKER),
            ago(worker.beat_at, seen.at),
            Text("lost", style="bold red") if worker.is_lost else "",
        )
    return _and_more(made, seen.worker_count - len(workers), "workers")


def _stuck(shown: Sequence[Stuck], seen: Overview) -> RenderableType:
    if not seen.stuck:
        return Text("nothing is stuck", style="green")
    made = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "left"):
        made.add_column(justify=justify, overflow="fold")
    made.add_row(*(Text(heading, style="bold") for heading in ("LANE", "STUCK", "FOR", "REASON, AND WHAT TO DO")))
    for each in shown:
        reason = Text(printable(each.sentence))
        reason.append("\n" + printable(stuck_remedy(each)), style="cyan")
        made.add_row(_plain(each.lane), _count(each.amount, 1_000), ago(each.since, seen.at), reason)
    return _and_more(made, len(seen.stuck) - len(shown), "reasons; to see all: ff top --once")


def _table(*headings: str) -> Table:
    """A table with these headings; `>` before a heading aligns its column to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        right = heading.startswith(">")
        made.add_column(heading.lstrip(">").upper(), justify="right" if right else "left", overflow="fold")
    return made


def _plain(text: str) -> Text:
    """The text unchanged: rich would read square brackets as styles."""
    return Text(printable(text))


def _count(number: int, highest: int) -> str:
    return f"{highest:,}+" if number > highest else f"{number:,}"


def _and_more(made: Table, rest: int, what: str) -> RenderableType:
    return Group(made, Text(f"and {rest:,} more {what}", style="dim")) if rest > 0 else made
