"""Holds: an operator keeps a single execution from being claimed, and releases it."""

import msgspec

from flowfabric import calls
from flowfabric.ids import ExecutionId, check_text, kept_text
from flowfabric.model import HoldChange, Unheld
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def hold(conn: Connection, execution_id: ExecutionId, *, by: str, reason: str | None = None) -> HoldChange:
    """Hold an execution: keep it from being claimed until `unhold`.

    Safe to repeat: returns `NOOP` if it is already held. Raises `ExecutionNotFound`, `ExecutionEnded`, `InvalidBody`,
    and `ExecutionNotRunnable` if the execution is active or suspended.
    """
    return HoldChange(await call.value(conn, "hold", **_act(execution_id, by, reason)))


async def unhold(conn: Connection, execution_id: ExecutionId, *, by: str, reason: str | None = None) -> Unheld:
    """Release a held execution to the state it would have without the hold, such as waiting or delayed.

    Safe to repeat: returns `NOOP` if it is not held. Raises the same errors as `hold`.
    """
    return msgspec.convert(dict(await call.row(conn, "unhold", **_act(execution_id, by, reason))), Unheld)


def _act(execution_id: ExecutionId, by: str, reason: str | None) -> dict[str, object]:
    return {
        **calls.about(execution_id),
        "by": check_text(by, "by"),
        "reason": reason and kept_text(reason),
    }
