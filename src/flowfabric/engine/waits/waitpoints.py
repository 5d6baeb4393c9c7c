"""Waitpoints: named places where an execution can receive signals, each with a signed token."""

from datetime import timedelta

import msgspec

from flowfabric import calls
from flowfabric.ids import check_text
from flowfabric.model import CreatedWaitpoint, Fence, Swept
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def create_waitpoint(
    conn: Connection, fence: Fence, key: str, *, expires_in: timedelta = timedelta(days=1)
) -> CreatedWaitpoint:
    """Create a waitpoint before the suspension that will wait on it, so that its token can be given away first.

    While a waitpoint with that key is open, returns that one (`existing`). Raises `LeaseLost`, `ExecutionNotActive`,
    `ExecutionNotFound`, `InvalidName`, `InvalidTime`, `NoActiveKey`.
    """
    answer = await call.row(
        conn,
        "create_waitpoint",
        **calls.under(fence),
        key=check_text(key, "waitpoint key"),
        expires_in_ms=calls.span(expires_in, "expires_in"),
    )
    return msgspec.convert({**answer, "key": key}, CreatedWaitpoint)


async def close_waitpoints(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Close the pending waitpoints that have expired."""
    return await calls.sweep(conn, "close_waitpoints", limit, passing)
