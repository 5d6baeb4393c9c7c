"""`ff quotas`: how often, and how many at once."""

from datetime import datetime
from typing import Any

import click
import msgspec

from flowfabric.app import App
from flowfabric.cli import tables
from flowfabric.cli.answers import answering, listed
from flowfabric.cli.bars import bar, until_ms
from flowfabric.cli.frames import span as narrow
from flowfabric.cli.options import F, acting, given, of_namespace, paged
from flowfabric.engine import quotas as engine
from flowfabric.engine.clock import clock
from flowfabric.model import Page, Quota

OF_MANY = ("quota", "in its window=window_bar", "started", "of=window_limit", "within", "running=running_bar",
           "at once", "most", "room", "room in=room_in")  # fmt: skip
OF_ONE = ("quota", "namespace", "id", "created", "in its window=window_bar", "started", "of=window_limit", "within",
          "running=running_bar", "at once", "most", "room", "room in=room_in", "room at=room_at")  # fmt: skip

one_quota = click.argument("quota")


class QuotaNow(Quota, frozen=True, kw_only=True):
    """A quota, and how long it is until a full window has room again."""

    room_in_ms: int | None = None


def limiting(command: F) -> F:
    """The limits of a quota."""
    for option in (
        click.option("--max-concurrent", type=int, metavar="N", help="So many run at once."),
        click.option("--window-seconds", type=int, metavar="N", help="How long the window is; 60 if never given."),
        click.option(
            "--max-requests-per-window", type=int, metavar="N", help="So many begin within any window of that length."
        ),
    ):
        command = option(command)
    return command


def _done(done: dict[str, Any]) -> str:
    return f"quota {done['quota']}: {done['outcome']}"


@click.group()
def quotas() -> None:
    """How often, and how many at once."""


@quotas.command("list")
@of_namespace
@paged
@answering(shows=lambda page: _list(page))
async def list_quotas(app: App, namespace: str, limit: int, cursor: str | None) -> Page[QuotaNow]:
    """List the quotas of a namespace, how much of each is used (#), and when a full one has room again.

    \b
    Example:
      ff quotas list
    """
    async with app.database.connection() as conn:
        now = await clock(conn)
        page = await engine.list_quotas(conn, namespace=namespace, limit=limit, cursor=cursor)
    return Page([_now(quota, now) for quota in page.items], page.next_cursor)


@quotas.command("show")
@one_quota
@of_namespace
@answering(shows=lambda quota: tables.card(OF_ONE, _line(quota)))
async def show_quota(app: App, quota: str, namespace: str) -> QuotaNow:
    """Show one quota, by its name or id: its limits, what of them is used, and the room that leaves.

    \b
    Example:
      ff quotas show model
    """
    async with app.database.connection() as conn:
        now = await clock(conn)
        return _now(await engine.describe_quota(conn, quota, namespace=namespace), now)


@quotas.command("create")
@one_quota
@limiting
@of_namespace
@acting
@answering(says=_done)
async def create_quota(app: App, quota: str, namespace: str, by: str, **options: int | None) -> dict[str, Any]:
    """Make a quota, with one limit or both. Safe to repeat with the same ones.

    \b
    Example:
      ff quotas create model --max-requests-per-window 500 --window-seconds 60 --max-concurrent 20
    """
    partitions = app.config.quota_partitions
    async with app.database.connection() as conn:
        made = await engine.create_quota(
            conn, quota, namespace=namespace, by=by, partitions=partitions, **given(options)
        )
    return {"quota": quota, "outcome": made.outcome, "quota_id": made.quota_id}


@quotas.command("change")
@one_quota
@limiting
@of_namespace
@acting
@answering(says=_done)
async def change_quota(app: App, quota: str, namespace: str, by: str, **options: int | None) -> dict[str, Any]:
    """Change the limits of a quota; what is not given stays. What runs goes on. Safe to repeat.

    A quota that stands in the code of an app is changed back when that app starts.

    \b
    Example:
      ff quotas change model --max-concurrent 5
    """
    limits = given(options)
    if not limits:
        raise click.UsageError("there is nothing to change; give a limit, such as --max-concurrent 5")
    async with app.database.connection() as conn:
        changed = await engine.change_quota(conn, quota, namespace=namespace, by=by, **limits)
    app.notifier.send(lanes=changed.lanes)
    return {"quota": quota, "outcome": changed.outcome, "lanes": changed.lanes}


def _now(quota: Quota, now: datetime) -> QuotaNow:
    return QuotaNow(**msgspec.structs.asdict(quota), room_in_ms=until_ms(quota.next_room_at, now))


def _list(page: Page[QuotaNow]) -> str:
    none = "no quotas here; `ff quotas create` makes one, and so does App(quotas=...)"
    return listed(OF_MANY, [_line(quota) for quota in page.items], page, none)


def _line(quota: QuotaNow) -> dict[str, Any]:
    per_window = quota.max_requests_per_window
    return {
        "quota": quota.name,
        "namespace": quota.namespace,
        "id": quota.quota_id,
        "created": quota.created_at,
        "window_bar": bar(quota.in_window, per_window),
        "started": None if per_window is None else f"{quota.in_window:,}",
        "window_limit": None if per_window is None else f"{per_window:,}",
        "within": None if per_window is None else f"{quota.window_seconds}s",
        "running_bar": bar(quota.held_count, quota.max_concurrent),
        "at once": f"{quota.held_count:,}",
        "most": None if quota.max_concurrent is None else f"{quota.max_concurrent:,}",
        "room": f"{quota.room:,}",
        "room_in": None if quota.room_in_ms is None else narrow(quota.room_in_ms / 1_000),
        "room_at": quota.next_room_at,
    }
