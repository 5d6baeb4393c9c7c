"""The ledger: the amounts that each execution has spent of each budget in each period, and how to undo them."""

from uuid import UUID

import msgspec

from flowfabric import calls
from flowfabric.engine.budgets.amounts import named
from flowfabric.ids import ExecutionId, check_text
from flowfabric.model import Released, Spending
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def release_usage(
    conn: Connection, budget: str | UUID, execution_id: ExecutionId, *, by: str, namespace: str = "default"
) -> Released:
    """Undo what an execution has spent of a budget since the budget's last reset.

    Safe to repeat: the second call returns `noop`. Raises `BudgetNotFound`, `InvalidBody`.
    """
    with named(budget, namespace) as found_id:
        released = await call.row(
            conn, "release_usage", budget=found_id, by=check_text(by, "by"), **calls.about(execution_id)
        )
    return Released(
        outcome=released["outcome"],
        amounts=msgspec.json.decode(released["amounts"], type=dict[str, int]),
        lanes=released["lanes"] or (),
    )


async def list_spending(conn: Connection, execution_id: ExecutionId) -> list[Spending]:
    """List what an execution has spent, by budget and period. Raises `ExecutionNotFound`."""
    found = await call.rows(conn, "list_spending", **calls.about(execution_id))
    return [
        Spending(
            budget_id=row["budget_id"],
            name=row["name"],
            period=row["period"],
            spent=msgspec.json.decode(row["spent"], type=dict[str, int]),
        )
        for row in found
    ]
