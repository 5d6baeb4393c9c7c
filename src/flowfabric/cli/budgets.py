"""`ff budgets`: how much may be spent, and what was."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from flowfabric.app import App
from flowfabric.cli import tables, texts
from flowfabric.cli.answers import answering, listed
from flowfabric.cli.bars import bar, until_ms
from flowfabric.cli.frames import span as narrow
from flowfabric.cli.options import F, acting, given, of_namespace, one_execution, paged, span
from flowfabric.engine import budgets as engine
from flowfabric.engine.clock import clock
from flowfabric.ids import parse_execution_id, shown
from flowfabric.model import Budget, Page

OF_ONE = ("budget=name", "namespace", "id=budget_id", "mode", "at the hard limit=on_hard_limit",
          "at the soft limit=on_soft_limit", "scope=scope_type", "scope id=scope_id", "created=created_at",
          "resets=next_reset_at", "that is in=resets_in", "hard breaches=breach_count",
          "soft breaches=soft_breach_count", "last breach=last_breach.at", "in=last_breach.dimension",
          "suspended by it=waiting_count")  # fmt: skip
OF_DIMENSION = ("dimension", "of its hard limit=bar", "used", "reserved", "hard limit=hard_limit",
                "soft limit=soft_limit", "overrun", "left")  # fmt: skip
OF_MANY = ("budget", "dimension", "of its hard limit=bar", "used", "reserved", "hard limit=hard_limit", "state",
           "resets in=resets_in", "suspended")  # fmt: skip

one_budget = click.argument("budget")


class BudgetNow(Budget, frozen=True, kw_only=True):
    """A budget, and how long it is until it begins anew."""

    resets_in_ms: int | None = None


def limit(text: str) -> tuple[str, int | None]:
    """A limit of one dimension: tokens=1000000; tokens=none for no limit."""
    dimension, equals, amount = text.partition("=")
    try:
        return dimension, None if equals and amount == "none" else int(amount)
    except ValueError:
        raise click.BadParameter(
            f"{shown(text)} is no limit; write dimension=number, such as tokens=1000000, or tokens=none"
        ) from None


def _once_each(
    _ctx: click.Context, _param: click.Parameter, given: Sequence[tuple[str, int | None]]
) -> Mapping[str, int | None] | None:
    limits = dict(given)
    if len(limits) < len(given):
        raise click.BadParameter("a dimension is given twice; give each one limit")
    return limits or None


def defining(command: F) -> F:
    """What a budget allows, and what it does at its limits."""
    for option in (
        click.option("--scope-id", help="Which one of those."),
        click.option("--scope-type", help="What it is for, in your own words: team."),
        click.option("--reset-interval", type=span, metavar="SPAN", help="Begin anew every so often: 1d; 0s is never."),
        click.option("--on-soft-limit", type=click.Choice(["warn", "ignore"]), help="Told, or only counted."),
        click.option(
            "--on-hard-limit",
            type=click.Choice(["refuse", "fail", "cancel", "suspend"]),
            help="What happens to the execution that would pass it.",
        ),
        click.option(
            "--mode", type=click.Choice(["strict", "observe"]), help="Whether limits hold, or are only watched."
        ),
        click.option("--soft-limit", "soft_limits", multiple=True, type=limit, callback=_once_each,
                     metavar="DIMENSION=N", help="Where to be told; may be repeated."),
        click.option("--hard-limit", "hard_limits", multiple=True, type=limit, callback=_once_each,
                     metavar="DIMENSION=N", help="What may be spent at most; may be repeated."),
    ):  # fmt: skip
        command = option(command)
    return command


def _done(done: dict[str, Any]) -> str:
    return f"budget {done['budget']}: {done['outcome']}"


@click.group()
def budgets() -> None:
    """How much may be spent, and what was."""


@budgets.command("list")
@of_namespace
@paged
@answering(shows=lambda page: _list(page))
async def list_budgets(app: App, namespace: str, limit: int, cursor: str | None) -> Page[BudgetNow]:
    """List the budgets of a namespace, a line for each dimension: used (#), reserved (=) and free (.) of its limit.

    \b
    Example:
      ff budgets list
    """
    async with app.database.connection() as conn:
        now = await clock(conn)
        page = await engine.list_budgets(conn, namespace=namespace, limit=limit, cursor=cursor)
    return Page([_now(budget, now) for budget in page.items], page.next_cursor)


@budgets.command("show")
@one_budget
@of_namespace
@answering(shows=lambda budget: _card(budget))
async def show_budget(app: App, budget: str, namespace: str) -> BudgetNow:
    """Show one budget, by its name or id: what it allows, what was spent, how often that was too much.

    \b
    Example:
      ff budgets show team-a
    """
    async with app.database.connection() as conn:
        now = await clock(conn)
        return _now(await engine.describe_budget(conn, budget, namespace=namespace), now)


@budgets.command("create")
@one_budget
@defining
@of_namespace
@acting
@answering(says=_done)
async def create_budget(app: App, budget: str, namespace: str, by: str, **options: Any) -> dict[str, Any]:
    """Make a budget. Safe to repeat with the same options. A dimension without a limit is counted and not limited.

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
    partitions = app.config.budget_partitions
    async with app.database.connection() as conn:
        made = await engine.create_budget(conn, budget, namespace=namespace, by=by, partitions=partitions, **wanted)
    return {"budget": budget, "outcome": made.outcome, "budget_id": made.budget_id}


@budgets.command("change")
@one_budget
@defining
@of_namespace
@acting
@answering(says=_done)
async def change_budget(app: App, budget: str, namespace: str, by: str, **options: Any) -> dict[str, Any]:
    """Change what a budget allows; what is not given stays. A raised limit lets work go on at once.

    --hard-limit and --soft-limit change the dimensions they name; tokens=none takes a limit away. A budget that stands
    in the code of an app is changed back when that app starts.

    \b
    Example:
      ff budgets change team-a --hard-limit tokens=2000000
    """
    wanted = given(options)
    if not wanted:
        raise click.UsageError("there is nothing to change; give a limit, such as --hard-limit tokens=2000000")
    async with app.database.connection() as conn:
        there = await engine.describe_budget(conn, budget, namespace=namespace)
        for field in {"hard_limits", "soft_limits"} & wanted.keys():
            wanted[field] = _changed(getattr(there, field), wanted[field])
        changed = await engine.change_budget(conn, budget, namespace=namespace, by=by, **wanted)
    app.notifier.send(lanes=changed.lanes)
    return {"budget": budget, "outcome": changed.outcome, "lanes": changed.lanes}


@budgets.command("reset")
@one_budget
@of_namespace
@acting
@answering(says=_done)
async def reset_budget(app: App, budget: str, namespace: str, by: str) -> dict[str, Any]:
    """Begin anew: nothing is used. What is reserved stays so; the next reset by itself is a whole interval away.

    \b
    Example:
      ff budgets reset team-a
    """
    async with app.database.connection() as conn:
        done = await engine.reset_budget(conn, budget, namespace=namespace, by=by)
    app.notifier.send(lanes=done.lanes)
    return {"budget": budget, "outcome": done.outcome, "next_reset_at": done.next_reset_at, "lanes": done.lanes}


@budgets.command("release")
@one_budget
@one_execution
@of_namespace
@acting
@answering(says=lambda done: f"{_done(done)} {texts.cell(done['amounts'])}".rstrip())
async def release_usage(app: App, budget: str, execution: str, namespace: str, by: str) -> dict[str, Any]:
    """Take back what an execution has spent of a budget since its last reset. Safe to repeat.

    \b
    Example:
      ff budgets release team-a '{fp:7}:550e8400-e29b-41d4-a716-446655440000'
    """
    execution_id = parse_execution_id(execution, app.config.execution_partitions)
    async with app.database.connection() as conn:
        done = await engine.release_usage(conn, budget, execution_id, namespace=namespace, by=by)
    app.notifier.send(lanes=done.lanes)
    return {"budget": budget, "outcome": done.outcome, "amounts": done.amounts, "lanes": done.lanes}


def _now(budget: Budget, now: datetime) -> BudgetNow:
    return BudgetNow(**msgspec.structs.asdict(budget), resets_in_ms=until_ms(budget.next_reset_at, now))


def _list(page: Page[BudgetNow]) -> str:
    lines = [line for budget in page.items for line in _lines(budget)]
    none = "no budgets here; `ff budgets create` makes one, and so does App(budgets=...)"
    return listed(OF_MANY, lines, page, none)


def _card(budget: BudgetNow) -> str:
    spent = [line for line in _lines(budget) if line["dimension"]]
    shown = {**msgspec.structs.asdict(budget), "resets_in": _resets_in(budget)}
    parts = [tables.card(OF_ONE, shown)]
    if spent:
        parts += ["", tables.table(OF_DIMENSION, spent)]
    return "\n".join(parts)


def _lines(budget: BudgetNow) -> Iterator[dict[str, Any]]:
    """A line for each dimension that has a limit or an amount; one line for a budget that has none."""
    dimensions = {**budget.hard_limits, **budget.soft_limits, **budget.used, **budget.reserved, **budget.overrun}
    for dimension in sorted(dimensions) or [""]:
        used, reserved = budget.used.get(dimension, 0), budget.reserved.get(dimension, 0)
        limit = budget.hard_limits.get(dimension)
        yield {
            "budget": budget.name,
            "dimension": dimension,
            "bar": bar(used, limit, reserved),
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
    return None if budget.resets_in_ms is None else narrow(budget.resets_in_ms / 1_000)


def _number(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _changed(there: Mapping[str, int], given: Mapping[str, int | None]) -> dict[str, int]:
    """Limits with some of them changed, or taken away."""
    return {dimension: n for dimension, n in {**there, **given}.items() if n is not None}
