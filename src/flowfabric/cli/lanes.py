"""`ff lanes`: where work queues, and the switch that stops it."""

from collections.abc import Callable

import click

from flowfabric.app import App
from flowfabric.cli.answers import answering
from flowfabric.cli.options import acting, paged
from flowfabric.engine import lanes as engine
from flowfabric.errors import LaneNotFound
from flowfabric.ids import shown
from flowfabric.model import Lane, Page

COLUMNS = ("lane=name", "state", "waiting=waiting_count", "delayed=delayed_count", "active=active_count",
           "suspended=suspended_count", "why", "by", "since", "oldest=oldest_at")  # fmt: skip

one_lane = click.argument("lane")
why = click.option("--why", help="What for; shown by `ff lanes show` and `ff executions explain`.")


def _says(state: str, and_then: str = "") -> Callable[[dict[str, object]], str]:
    """A lane and what became of it; what it was already is said so."""

    def says(done: dict[str, object]) -> str:
        outcome = f"{state} already" if done["outcome"] == "noop" else done["outcome"]
        return f"lane {done['lane']}: {outcome}" + and_then.format_map(done)

    return says


@click.group()
def lanes() -> None:
    """Where work queues, and the switch that stops it."""


@lanes.command("list")
@paged
@answering(*COLUMNS, none="no lanes yet; they appear with their first submission, or with `ff lanes register`")
async def list_lanes(app: App, limit: int, cursor: str | None) -> Page[Lane]:
    """List the lanes and how much is in them. A count of 10001 stands for more than 10000.

    \b
    Example:
      ff lanes list
    """
    async with app.database.connection() as conn:
        return await engine.list_lanes(conn, limit=limit, cursor=cursor)


@lanes.command("show")
@one_lane
@answering(*COLUMNS, "renewals kept=keep_renewals")
async def show_lane(app: App, lane: str) -> Lane:
    """Show one lane: its state, who changed it last and why, and how much is in it.

    \b
    Example:
      ff lanes show reports
    """
    cursor: str | None = lane[:-1]  # sorts before it, and not far
    async with app.database.connection() as conn:
        while cursor is not None:
            page = await engine.list_lanes(conn, cursor=cursor)
            if found := next((each for each in page.items if each.name == lane), None):
                return found
            cursor = page.next_cursor
    raise LaneNotFound(f"no lane {shown(lane)}")


@lanes.command("register")
@one_lane
@click.option("--keep-renewals/--drop-renewals", default=None, help="Whether renewals of leases stay in the log.")
@answering(says=_says("registered"))
async def register_lane(app: App, lane: str, keep_renewals: bool | None) -> dict[str, str]:
    """Make a lane before anything is submitted to it, or change how it keeps its history. Safe to repeat.

    \b
    Example:
      ff lanes register reports --keep-renewals
    """
    async with app.database.connection() as conn:
        return {"lane": lane, "outcome": await engine.configure_lane(conn, lane, keep_renewals=keep_renewals)}


@lanes.command("pause")
@one_lane
@why
@acting
@answering(says=_says("paused", "; `ff lanes resume {lane}` opens it"))
async def pause_lane(app: App, lane: str, by: str, why: str | None) -> dict[str, str]:
    """Stop claiming from a lane. What runs goes on; what is submitted waits. Safe to repeat.

    \b
    Example:
      ff lanes pause reports --why "the printer burns"
    """
    async with app.database.connection() as conn:
        return {"lane": lane, "outcome": await engine.pause_lane(conn, lane, by=by, why=why)}


@lanes.command("drain")
@one_lane
@why
@acting
@answering(says=_says("draining", "; {left_count} left to finish"))
async def drain_lane(app: App, lane: str, by: str, why: str | None) -> dict[str, object]:
    """Refuse new work for a lane and let it finish what it has. Repeat it to see how much is left.

    \b
    Example:
      ff lanes drain reports --why "moving to the new cluster"
    """
    async with app.database.connection() as conn:
        drained = await engine.drain_lane(conn, lane, by=by, why=why)
        return {"lane": lane, "outcome": drained.outcome, "left_count": drained.left_count}


@lanes.command("resume")
@one_lane
@why
@acting
@answering(says=_says("active"))
async def resume_lane(app: App, lane: str, by: str, why: str | None) -> dict[str, str]:
    """Open a lane again, whether it was paused or draining. Safe to repeat.

    \b
    Example:
      ff lanes resume reports
    """
    async with app.database.connection() as conn:
        outcome = await engine.resume_lane(conn, lane, by=by, why=why)
    await app.wake(lane)
    return {"lane": lane, "outcome": outcome}
