"""Reservations: reserve an estimated amount of a budget, to be settled when the actual amount is known."""

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID, uuid4

from flowfabric import calls
from flowfabric.engine.budgets.amounts import amounts_text, named
from flowfabric.ids import check_text
from flowfabric.model import Fence, Reserved
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def reserve(
    conn: Connection,
    budget: str | UUID,
    estimate: Mapping[str, int],
    *,
    fence: Fence | None = None,
    ttl: timedelta = timedelta(hours=1),
    dedup_key: str | None = None,
    namespace: str = "default",
) -> Reserved:
    """Reserve an estimated amount of a budget until the reservation is settled, released or expires.

    Under a lease it ends with the attempt at the latest. Safe to repeat with a `dedup_key` while the reservation is
    open. Raises `BudgetNotFound`, `InvalidUsage`, `InvalidTime`, `InvalidBody`, `LeaseLost`, `ExecutionNotActive`,
    `ExecutionNotFound`.
    """
    with named(budget, namespace) as found_id:
        answer = await call.value(
            conn,
            "reserve",
            budget=found_id,
            estimate=amounts_text(estimate),
            reservation_id=uuid4(),
            ttl_ms=calls.span(ttl, "ttl"),
            dedup_key=dedup_key and check_text(dedup_key, "dedup_key"),
            **(calls.under(fence) if fence else {}),
        )
    return calls.read_answer(Reserved, answer)
