"""`ff quotas`: rate limits and concurrency limits."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
import msgspec

from flowfabric.app import App
from flowfabric.cli import formatting, tables
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.options import F, by_option, decorated, default_of, given, namespace_option, paged
from flowfabric.cli.output import page_table, prints
from flowfabric.model import Page, Quota

LIMITS = ("started in window=window_bar", "started", "max per window=window_limit", "window",
          "running at once=running_bar", "running", "max running=running_limit", "free", "free in=free_in")  # fmt: skip
COLUMNS = ("quota", *LIMITS)
CARD = ("quota", "namespace", "id", "created", *LIMITS, "free at=free_at")

quota_argument = click.argument("quota")


class QuotaNow(Quota, frozen=True, kw_only=True):
    """A quota, and how many milliseconds are left until a full window has room again."""

    room_in_ms: int | None = None


def limit_options(*, creating: bool) -> Callable[[F], F]:
    """The limits of a quota, to create or to change it."""
    options = (
        click.option("--max-requests-per-window", type=int, metavar="N",
                     help="At most this many executions start within any window of --window-seconds."),
        click.option("--window-seconds", type=int, metavar="N",
                     help=f"Length of the window in seconds.{default_of('60', creating=creating)}"),
        click.option("--max-concurrent", type=int, metavar="N", help="At most this many executions run at once."),
    )  # fmt: skip
    return lambda command: decorated(command, options)


def _outcome(done: dict[str, Any]) -> str:
    return f"quota {done['quota']}: {done['outcome']}"


@click.group(cls=CommandGroup)
def quotas() -> None:
    """Limit how often executions start and how many run at once."""


@quotas.command("list")
@namespace_option("quotas")
@paged
@prints(layout=lambda page: _list(page))
async def list_quotas(app: App, namespace: str, limit: int, cursor: str | None) -> Page[QuotaNow]:
    """List the quotas of a namespace, how much of each one is used (#), and when a full one has room again.

    \b
    Example:
      ff quotas list
    """
    now = await app.now()
    page = await app.quotas.list(namespace=namespace, limit=limit, cursor=cursor)
    return Page([_now(quota, now) for quota in page.items], page.next_cursor)


@quotas.command("describe")
@quota_argument
@namespace_option("quota")
@prints(layout=lambda quota: tables.card(CARD, _line(quota)))
async def describe_quota(app: App, quota: str, namespace: str) -> QuotaNow:
    """Describe a quota, by its name or id: its limits, how much of them is used, and how much is free.

    \b
    Example:
      ff quotas describe model
    """
    now = await app.now()
    return _now(await app.quotas.describe(quota, namespace=namespace), now)


@quotas.command("create")
@quota_argument
@limit_options(creating=True)
@namespace_option("quota")
@by_option
@prints(sentence=_outcome)
async def create_quota(app: App, quota: str, namespace: str, by: str, **options: int | None) -> dict[str, Any]:
    """Create a quota: a rate limit, a concurrency limit, or both. Safe to repeat with the same options.

    \b
    Example:
      ff quotas create model --max-requests-per-window 500 --window-seconds 60 --max-concurrent 20
    """
    made = await app.quotas.create(quota, namespace=namespace, by=by, **given(options))
    return {"quota": quota, "outcome": made.outcome, "quota_id": made.quota_id}


@quotas.command("change")
@quota_argument
@limit_options(creating=False)
@namespace_option("quota")
@by_option
@prints(sentence=_outcome)
async def change_quota(app: App, quota: str, namespace: str, by: str, **options: int | None) -> dict[str, Any]:
    """Change a quota; options that are not given stay as they are. Running executions continue. Safe to repeat.

    If a quota is declared in the code of an app, the app changes it back when it starts.

    \b
    Example:
      ff quotas change model --max-concurrent 5
    """
    limits = given(options)
    if not limits:
        raise click.UsageError("nothing to change; use at least one option, such as --max-concurrent 5")
    changed = await app.quotas.change(quota, namespace=namespace, by=by, **limits)
    return {"quota": quota, "outcome": changed.outcome, "lanes": changed.lanes}


def _now(quota: Quota, now: datetime) -> QuotaNow:
    return QuotaNow(**msgspec.structs.asdict(quota), room_in_ms=formatting.milliseconds_until(quota.next_room_at, now))


def _list(page: Page[QuotaNow]) -> str:
    empty = "no quotas in this namespace; to create one: ff quotas create QUOTA, or App(quotas=...)"
    return page_table(COLUMNS, [_line(quota) for quota in page.items], page, empty)


def _line(quota: QuotaNow) -> dict[str, Any]:
    per_window = quota.max_requests_per_window
    return {
        "quota": quota.name,
        "namespace": quota.namespace,
        "id": quota.quota_id,
        "created": quota.created_at,
        "window_bar": formatting.usage_bar(quota.in_window, per_window),
        "started": None if per_window is None else f"{quota.in_window:,}",
        "window_limit": None if per_window is None else f"{per_window:,}",
        "window": None if per_window is None else f"{quota.window_seconds}s",
        "running_bar": formatting.usage_bar(quota.held_count, quota.max_concurrent),
        "running": f"{quota.held_count:,}",
        "running_limit": None if quota.max_concurrent is None else f"{quota.max_concurrent:,}",
        "free": f"{quota.room:,}",
        "free_in": None if quota.room_in_ms is None else formatting.short_duration(quota.room_in_ms / 1_000),
        "free_at": quota.next_room_at,
    }
