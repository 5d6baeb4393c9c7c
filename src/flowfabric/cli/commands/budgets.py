"""`ff budgets`: limits on what executions may spend, and what they have spent."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from flowfabric.app import App
from flowfabric.cli import formatting, resolve, tables
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.options import F, by_option, decorated, duration, execution_argument, given, namespace_option, paged
from flowfabric.cli.output import page_table, prints
from flowfabric.ids import shown
from flowfabric.model import Budget, Page

CARD = ("budget=name", "namespace", "id=budget_id", "mode", "on hard limit=on_hard_limit",
        "on soft limit=on_soft_limit", "scope type=scope_type", "scope id=scope_id", "created=created_at",
        "resets at=next_reset_at", "resets in=resets_in", "hard breaches=breach_count",
        "soft breaches=soft_breach_count", "last breach=last_breach.at", "breached dimension=last_breach.dimension",
        "executions suspended=waiting_count")  # fmt: skip
DIMENSIONS = ("dimension", "usage=bar", "used", "reserved", "hard limit=hard_limit", "soft limit=soft_limit", "overrun",
              "left")  # fmt: skip
COLUMNS = ("budget", "dimension", "usage=bar", "used", "reserved", "hard limit=hard_limit", "state",
           "resets in=resets_in", "suspended")  # fmt: skip

budget_argument = click.argument("budget")


class BudgetNow(Budget, frozen=True, kw_only=True):
    """A budget, and how many milliseconds are left until its next reset."""

    resets_in_ms: int | None = None


def limit(text: str) -> tuple[str, int | None]:
    """Parse the limit of a dimension: tokens=1000000, or tokens=none for no limit."""
    dimension, equals, amount = text.partition("=")
    try:
        return dimension, None if equals and amount == "none" else int(amount)
    except ValueError:
        raise click.BadParameter(
            f"{shown(text)} is invalid; use DIMENSION=NUMBER, such as tokens=1000000, or tokens=none"
        ) from None


def _once_each(
    _ctx: click.Context, _param: click.Parameter, given: Sequence[tuple[str, int | None]]
) -> Mapping[str, int | None] | None:
    limits = dict(given)
    if len(limits) < len(given):
        raise click.BadParameter("the same dimension is limited twice; use each dimension once")
    return limits or None


def budget_options(command: F) -> F:
    """The options that create and change share."""
    options = (
        click.option("--hard-limit", "hard_limits", multiple=True, type=limit, callback=_once_each,
                     metavar="DIMENSION=N", help="Most that may be spent, such as tokens=1000000. Repeatable."),
        click.option("--soft-limit", "soft_limits", multiple=True, type=limit, callback=_once_each,
                     metavar="DIMENSION=N", help="Warn above this, such as tokens=800000. Repeatable."),
        click.option("--mode", type=click.Choice(["strict", "observe"]),
                     help="Enforce the limits, or only record when they are exceeded."),
        click.option("--on-hard-limit", type=click.Choice(["refuse", "fail", "cancel", "suspend"]),
                     help="What to do with usage that would exceed a hard limit: refuse the usage, or fail, cancel or "
                          "suspend the execution."),
        click.option("--on-soft-limit", type=click.Choice(["warn", "ignore"]),
                     help="When a soft limit is exceeded: emit a warning event, or only count the usage."),
        click.option("--reset-interval", type=duration, metavar="DURATION",
                     help="Reset the usage to zero this often, such as 1d; 0s means never."),
        click.option("--scope-type", help="Label: what the budget is for, such as team."),
        click.option("--scope-id", help="Label: which one of that type, such as research."),
    )  # fmt: skip
    return decorated(command, options)


def _outcome(done: dict[str, Any]) -> str:
    return f"budget {done['budget']}: {done['outcome']}"


def _released(done: dict[str, Any]) -> str:
    if done["outcome"] == "noop":
        return f"budget {done['budget']}: nothing to release: the execution has used nothing of it since its last reset"
    return f"{_outcome(done)} {formatting.cell(done['amounts'])}".rstrip()


@click.group(cls=CommandGroup)
def budgets() -> None:
    """Limit what executions may spend (tokens, cost, time), and see what they have spent."""


@budgets.command("list")
@namespace_option("budgets")
@paged
@prints(layout=lambda page: _list(page))
async def list_budgets(app: App, namespace: str, limit: int, cursor: str | None) -> Page[BudgetNow]:
    """List the budgets of a namespace, one line per dimension.

    The bar shows what is used (#), reserved (=) and free (.) of the hard limit.

    \b
    Example:
      ff budgets list
    """
    now = await app.now()
    page = await app.budgets.list(namespace=namespace, limit=limit, cursor=cursor)
    return Page([_now(budget, now) for budget in page.items], page.next_cursor)


@budgets.command("describe")
@budget_argument
@namespace_option("budget")
@prints(layout=lambda budget: _card(budget))
async def describe_budget(app: App, budget: str, namespace: str) -> BudgetNow:
    """Describe a budget, by its name or id: its limits, its usage, and how often a limit was exceeded.

    \b
    Example:
      ff budgets describe team-a
    """
    now = await app.now()
    return _now(await app.budgets.describe(budget, namespace=namespace), now)


@budgets.command("create")
@budget_argument
@budget_options
@namespace_option("budget")
@by_option
@prints(sentence=_outcome)
async def create_budget(app: App, budget: str, namespace: str, by: str, **options: Any) -> dict[str, Any]:
    """Create a budget. Safe to repeat with the same options.

    A dimension without a limit is counted but not limited.

    \b
    Example:
      ff budgets create team-a --hard-limit tokens=1000000 --soft-limit tokens=800000 --reset-interval 1d
      ff budgets create team-b --hard-limit cost_micros=5000000 --on-hard-limit suspend
    """
    wanted = given(options)
    for field in ("hard_limits", "soft_limits"):
        wanted[field] = _changed({}, wanted.get(field, {}))
    if not wanted.get("reset_interval"):
        wanted.pop("reset_interval", None)
    made = await app.budgets.create(budget, namespace=namespace, by=by, **wanted)
    return {"budget": budget, "outcome": made.outcome, "budget_id": made.budget_id}


@budgets.command("change")
@budget_argument
@budget_options
@namespace_option("budget")
@by_option
@prints(sentence=_outcome)
async def change_budget(app: App, budget: str, namespace: str, by: str, **options: Any) -> dict[str, Any]:
    """Change a budget; options that are not given stay as they are. A raised limit releases waiting executions at once.

    --hard-limit and --soft-limit change only the dimensions they name; tokens=none removes a limit. If a budget is
    declared in the code of an app, the app changes it back when it starts.

    \b
    Example:
      ff budgets change team-a --hard-limit tokens=2000000
    """
    wanted = given(options)
    if not wanted:
        raise click.UsageError("nothing to change; use at least one option, such as --hard-limit tokens=2000000")
    current = await app.budgets.describe(budget, namespace=namespace)
    for field in {"hard_limits", "soft_limits"} & wanted.keys():
        wanted[field] = _changed(getattr(current, field), wanted[field])
    changed = await app.budgets.change(budget, namespace=namespace, by=by, **wanted)
    return {"budget": budget, "outcome": changed.outcome, "lanes": changed.lanes}


@budgets.command("reset")
@budget_argument
@namespace_option("budget")
@by_option
@prints(sentence=_outcome)
async def reset_budget(app: App, budget: str, namespace: str, by: str) -> dict[str, Any]:
    """Set the usage of a budget to zero. Reservations stay; the next automatic reset is a full interval from now.

    \b
    Example:
      ff budgets reset team-a
    """
    done = await app.budgets.reset(budget, namespace=namespace, by=by)
    return {"budget": budget, "outcome": done.outcome, "next_reset_at": done.next_reset_at, "lanes": done.lanes}


@budgets.command("release")
@budget_argument
@execution_argument
@namespace_option("budget")
@by_option
@prints(sentence=_released)
async def release_usage(app: App, budget: str, execution: str, namespace: str, by: str) -> dict[str, Any]:
    """Subtract from a budget what an execution has used of it since the last reset. Safe to repeat.

    \b
    Example:
      ff budgets release team-a 019df237
    """
    execution_id = await resolve.execution_id(app, execution)
    done = await app.budgets.release_usage(budget, execution_id, namespace=namespace, by=by)
    return {"budget": budget, "outcome": done.outcome, "amounts": done.amounts, "lanes": done.lanes}


def _now(budget: Budget, now: datetime) -> BudgetNow:
    return BudgetNow(
        **msgspec.structs.asdict(budget), resets_in_ms=formatting.milliseconds_until(budget.next_reset_at, now)
    )


def _list(page: Page[BudgetNow]) -> str:
    lines = [line for budget in page.items for line in _lines(budget)]
    empty = "no budgets in this namespace; to create one: ff budgets create BUDGET, or App(budgets=...)"
    return page_table(COLUMNS, lines, page, empty)


def _card(budget: BudgetNow) -> str:
    dimensions = [line for line in _lines(budget) if line["dimension"]]
    values = {**msgspec.structs.asdict(budget), "resets_in": _resets_in(budget)}
    parts = [tables.card(CARD, values)]
    if dimensions:
        parts += ["", tables.table(DIMENSIONS, dimensions)]
    return "\n".join(parts)


def _lines(budget: BudgetNow) -> Iterator[dict[str, Any]]:
    """A line for each dimension with a limit or some usage; one line for a budget without any."""
    dimensions = {**budget.hard_limits, **budget.soft_limits, **budget.used, **budget.reserved, **budget.overrun}
    for dimension in sorted(dimensions) or [""]:
        used, reserved = budget.used.get(dimension, 0), budget.reserved.get(dimension, 0)
        limit = budget.hard_limits.get(dimension)
        yield {
            "budget": budget.name,
            "dimension": dimension,
            "bar": formatting.usage_bar(used, limit, reserved),
            "used": f"{used:,}",
            "reserved": _number(reserved or None),
            "hard_limit": _number(limit),
            "soft_limit": _number(budget.soft_limits.get(dimension)),
            "overrun": _number(budget.overrun.get(dimension)),
            "left": _number(None if limit is None else max(limit - used - reserved, 0)),
            "state": _state(budget, limit, used + reserved),
            "resets_in": _resets_in(budget),
            "suspended": budget.waiting_count or None,
        }


def _state(budget: Budget, limit: int | None, spent: int) -> str | None:
    if budget.mode == "observe":
        return "observed"
    return "full" if limit is not None and spent >= limit else None


def _resets_in(budget: BudgetNow) -> str | None:
    return None if budget.resets_in_ms is None else formatting.short_duration(budget.resets_in_ms / 1_000)


def _number(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _changed(current: Mapping[str, int], given: Mapping[str, int | None]) -> dict[str, int]:
    """The limits after a change; `None` removes one."""
    return {dimension: n for dimension, n in {**current, **given}.items() if n is not None}
