"""Resets: start a new period of a budget, on schedule or by an operator."""

from uuid import UUID

from flowfabric import calls
from flowfabric.engine.budgets.amounts import named
from flowfabric.ids import check_text
from flowfabric.model import ResetBudget, Swept
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def reset_budget(conn: Connection, budget: str | UUID, *, by: str, namespace: str = "default") -> ResetBudget:
    """Start a new period: the used amounts are cleared; counters and reservations are kept.

    The next automatic reset is a whole interval away. Raises `BudgetNotFound`, `InvalidBody`.
    """
    with named(budget, namespace) as found_id:
        found = await call.row(conn, "reset_budget", id=found_id, by=check_text(by, "by"))
    return ResetBudget(next_reset_at=found["next_reset_at"], lanes=found["lanes"] or ())


async def reset_budgets(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Store the resets that are due; they take effect at their due time, stored or not."""
    return await calls.sweep(conn, "reset_budgets", limit, passing)
