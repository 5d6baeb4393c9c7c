"""`ff lanes`: lanes (queues), and pausing, draining and resuming them."""

from collections.abc import Callable
from datetime import timedelta

import click

from flowfabric.app import App
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.options import by_option, duration, paged, reason_option
from flowfabric.cli.output import prints
from flowfabric.model import Lane, Page

COLUMNS = ("lane=name", "state", "waiting=waiting_count", "delayed=delayed_count", "active=active_count",
           "suspended=suspended_count", "reason", "by", "since", "oldest=oldest_at")  # fmt: skip

lane_argument = click.argument("lane")


def _outcome(state: str, and_then: str = "") -> Callable[[dict[str, object]], str]:
    """The lane and its new state, or that it was in this state already."""

    def sentence(done: dict[str, object]) -> str:
        outcomes = {"noop": f"already {state}", "registered": "created"}
        outcome = outcomes.get(str(done["outcome"]), done["outcome"])
        return f"lane {done['lane']}: {outcome}" + and_then.format_map(done)

    return sentence


@click.group(cls=CommandGroup)
def lanes() -> None:
    """List, describe, configure, pause, drain and resume lanes (queues)."""


@lanes.command("list")
@paged
@prints(*COLUMNS, empty="no lanes yet; the first submission to a lane creates it, and so does: ff lanes configure LANE")
async def list_lanes(app: App, limit: int, cursor: str | None) -> Page[Lane]:
    """List the lanes, and how many executions each one has. A count of 10001 means more than 10000.

    \b
    Example:
      ff lanes list
    """
    return await app.lanes.list(limit=limit, cursor=cursor)


@lanes.command("describe")
@lane_argument
@prints(*COLUMNS, "keeps renewals=keep_renewals", "frames of a stream=stream_retention_maxlen",
        "frames kept for=stream_retention")  # fmt: skip
async def describe_lane(app: App, lane: str) -> Lane:
    """Describe a lane: its state, who changed it last and why, and how many executions it has.

    \b
    Example:
      ff lanes describe reports
    """
    return await app.lanes.describe(lane)


@lanes.command("configure")
@lane_argument
@click.option("--keep-renewals/--drop-renewals", default=None,
              help="Record every lease renewal in the event log, or none.")  # fmt: skip
@click.option("--stream-retention-maxlen", type=int, metavar="FRAMES",
              help="Keep the last 1 to 100,000 durable frames of each stream, unless the policy of the execution says "
                   "otherwise; 10,000 by default.")  # fmt: skip
@click.option("--stream-retention", type=duration, metavar="DURATION",
              help="Delete the frames of a stream this long (2h) after it is closed, before its execution is "
                   "removed; 0s keeps them as long as the execution.")  # fmt: skip
@prints(sentence=_outcome("configured like this"))
async def configure_lane(
    app: App,
    lane: str,
    keep_renewals: bool | None,
    stream_retention_maxlen: int | None,
    stream_retention: timedelta | None,
) -> dict[str, str]:
    """Create a lane before the first submission to it, or change its options. Safe to repeat.

    \b
    Example:
      ff lanes configure reports --keep-renewals
      ff lanes configure agents --stream-retention 2h
    """
    outcome = await app.lanes.configure(
        lane,
        keep_renewals=keep_renewals,
        stream_retention_maxlen=stream_retention_maxlen,
        stream_retention=stream_retention,
    )
    return {"lane": lane, "outcome": outcome}


@lanes.command("pause")
@lane_argument
@reason_option
@by_option
@prints(sentence=_outcome("paused", "; to resume it: ff lanes resume {lane}"))
async def pause_lane(app: App, lane: str, by: str, reason: str | None) -> dict[str, str]:
    """Stop workers from claiming executions of a lane. Running executions continue, new ones wait. Safe to repeat.

    \b
    Example:
      ff lanes pause reports --reason "the printer is down"
    """
    return {"lane": lane, "outcome": await app.lanes.pause(lane, by=by, reason=reason)}


@lanes.command("drain")
@lane_argument
@reason_option
@by_option
@prints(sentence=_outcome("draining", "; executions left to finish: {left_count}"))
async def drain_lane(app: App, lane: str, by: str, reason: str | None) -> dict[str, object]:
    """Refuse new executions in a lane and finish those it has. Repeat it to see how many are left.

    \b
    Example:
      ff lanes drain reports --reason "moving to the new cluster"
    """
    drained = await app.lanes.drain(lane, by=by, reason=reason)
    return {"lane": lane, "outcome": drained.outcome, "left_count": drained.left_count}


@lanes.command("resume")
@lane_argument
@reason_option
@by_option
@prints(sentence=_outcome("active"))
async def resume_lane(app: App, lane: str, by: str, reason: str | None) -> dict[str, str]:
    """Open a paused or draining lane again. Safe to repeat.

    \b
    Example:
      ff lanes resume reports
    """
    outcome = await app.lanes.resume(lane, by=by, reason=reason)
    return {"lane": lane, "outcome": outcome}
