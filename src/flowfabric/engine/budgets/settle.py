"""Settle reservations: count the actual amount, or release the reservation."""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from flowfabric import calls
from flowfabric.engine.budgets.amounts import amounts_text, checked_step
from flowfabric.model import Fence, Released, Settled, Swept
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def settle(
    conn: Connection,
    reservation_id: UUID,
    actual: Mapping[str, int],
    *,
    fence: Fence | None = None,
    step: tuple[str, int] | None = None,
) -> Settled:
    """Settle a reservation with the actual amounts; reserved amounts that were not spent are free immediately.

    Amounts above the estimate count if they fit; otherwise the estimate counts as used and the rest as overrun. With
    `step`, the journal saves that the reservation was settled, also after a hard breach. Safe to repeat: returns
    `already_applied` with the first answer. Raises `ReservationNotFound`, `InvalidUsage`, `InvalidName`,
    `FenceRequired`, `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`, `TooManySteps`.
    """
    under = calls.under(fence) if fence else {}
    name, occurrence = checked_step(step) or (None, None)
    answer = await call.value(
        conn,
        "settle",
        reservation_id=reservation_id,
        actual=amounts_text(actual),
        step_name=name,
        step_occurrence=occurrence,
        **under,
    )
    return calls.read_answer(Settled, answer)


async def release(conn: Connection, reservation_id: UUID, *, fence: Fence | None = None) -> Released:
    """Release a reservation.

    Safe to repeat: returns `noop` if the reservation has ended. Raises `ReservationNotFound`, `FenceRequired`,
    `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`.
    """
    under = calls.under(fence) if fence else {}
    released = await call.row(conn, "release", reservation_id=reservation_id, **under)
    return Released(
        outcome=released["outcome"],
        amounts=msgspec.json.decode(released["amounts"], type=dict[str, int]),
        lanes=released["lanes"] or (),
    )


async def expire_reservations(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """End expired reservations, and delete those that ended a day ago."""
    return await calls.sweep(conn, "expire_reservations", limit, passing)
