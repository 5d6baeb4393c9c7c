"""Define budgets: create, change and read them."""

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

import msgspec

from flowfabric import calls, ids
from flowfabric.engine.budgets.amounts import amounts_text, named
from flowfabric.errors import InvalidBudget
from flowfabric.ids import check_filter, check_text
from flowfabric.model import Budget, ChangedBudget, CreatedBudget, Page
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def create_budget(
    conn: Connection,
    name: str,
    *,
    hard_limits: Mapping[str, int] | None = None,
    soft_limits: Mapping[str, int] | None = None,
    mode: str = "strict",
    on_hard_limit: str = "refuse",
    on_soft_limit: str = "warn",
    reset_interval: timedelta | None = None,
    scope_type: str | None = None,
    scope_id: str | None = None,
    namespace: str = "default",
    by: str | None = None,
    partitions: int = 32,
) -> CreatedBudget:
    """Create a budget; safe to repeat with the same definition.

    A dimension without a limit is counted but not limited. Raises `InvalidName`, `InvalidNamespace`, `InvalidBudget`,
    `InvalidBody`, and `BudgetAlreadyExists` if a budget with this name has another definition.
    """
    created_id = ids.budget_id(namespace, name)
    outcome = await call.value(
        conn,
        "create_budget",
        partition=ids.named_partition(created_id, partitions),
        id=created_id,
        namespace=namespace,
        name=name,
        hard_limits=_limits(hard_limits or {}, "hard_limits"),
        soft_limits=_limits(soft_limits or {}, "soft_limits"),
        mode=check_text(mode, "mode"),
        on_hard_limit=check_text(on_hard_limit, "on_hard_limit"),
        on_soft_limit=check_text(on_soft_limit, "on_soft_limit"),
        reset_interval_ms=calls.span(reset_interval, "reset_interval"),
        scope_type=scope_type and check_text(scope_type, "scope_type"),
        scope_id=scope_id and check_text(scope_id, "scope_id"),
        by=by and check_text(by, "by"),
    )
    return CreatedBudget(outcome=outcome, budget_id=created_id)


async def change_budget(
    conn: Connection,
    budget: str | UUID,
    *,
    by: str,
    hard_limits: Mapping[str, int] | None = None,
    soft_limits: Mapping[str, int] | None = None,
    mode: str | None = None,
    on_hard_limit: str | None = None,
    on_soft_limit: str | None = None,
    reset_interval: timedelta | None = None,
    scope_type: str | None = None,
    scope_id: str | None = None,
    namespace: str = "default",
) -> ChangedBudget:
    """Change the definition of a budget; omitted fields keep their values. Safe to repeat.

    New limits replace all previous limits. A new interval counts from now, and an interval of zero ends the resets. A
    raised limit unblocks work immediately, a lowered limit blocks it. Raises `BudgetNotFound`, `InvalidBudget`,
    `InvalidBody`.
    """
    words = {
        "mode": mode,
        "on_hard_limit": on_hard_limit,
        "on_soft_limit": on_soft_limit,
        "scope_type": scope_type or None,
        "scope_id": scope_id or None,
    }
    changes: dict[str, object] = {field: word and check_text(word, field) for field, word in words.items()}
    for field, limits in (("hard_limits", hard_limits), ("soft_limits", soft_limits)):
        if limits is not None:
            changes[field] = msgspec.Raw(_limits(limits, field).encode())
    changes["reset_interval_ms"] = calls.span(reset_interval, "reset_interval")
    sent = msgspec.json.encode(changes).decode()
    with named(budget, namespace) as found_id:
        changed = await call.row(conn, "change_budget", id=found_id, changes=sent, by=check_text(by, "by"))
    return ChangedBudget(lanes=changed["lanes"] or ())


async def describe_budget(conn: Connection, budget: str | UUID, *, namespace: str = "default") -> Budget:
    """Describe a budget, by name or id: its limits and its usage. Raises `BudgetNotFound`."""
    with named(budget, namespace) as found_id:
        return call.read(Budget, await call.value(conn, "describe_budget", id=found_id))


async def list_budgets(
    conn: Connection, *, namespace: str = "default", cursor: str | None = None, limit: int = 50
) -> Page[Budget]:
    """List the budgets of a namespace by name. Raises `InvalidLimit`."""
    found = await call.rows(
        conn,
        "list_budgets",
        namespace=check_filter(namespace, "namespace"),
        after=check_text(cursor or "", "cursor"),
        take=call.take(limit),
    )
    return call.page([call.read(Budget, row["budget"]) for row in found], limit, lambda budget: budget.name)


def _limits(limits: Mapping[str, int], field: str) -> str:
    return amounts_text(limits, InvalidBudget, field=field)
