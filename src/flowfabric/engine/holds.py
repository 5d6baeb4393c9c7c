"""Operator: holding single executions back, and letting them go."""

import msgspec

from flowfabric.ids import ExecutionId, check_text, kept_text
from flowfabric.model import HoldChange, Unheld
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def hold(conn: Connection, execution_id: ExecutionId, *, by: str, why: str | None = None) -> HoldChange:
    """Keep an execution from being claimed until `unhold`.

    Safe to repeat: a held one answers `NOOP`. Raises `ExecutionNotFound`, `ExecutionEnded`, `InvalidBody`, and
    `ExecutionNotRunnable` for one that is active or suspended.
    """
    return HoldChange(await call.value(conn, "hold", **_act(execution_id, by, why)))


async def unhold(conn: Connection, execution_id: ExecutionId, *, by: str, why: str | None = None) -> Unheld:
    """Let a held execution be what it would be without the hold: waiting, or delayed while its time is ahead.

    Safe to repeat: one that is not held answers `NOOP`. Raises as `hold` does.
    """
    return msgspec.convert(dict(await call.row(conn, "unhold", **_act(execution_id, by, why))), Unheld)


def _act(execution_id: ExecutionId, by: str, why: str | None) -> dict[str, object]:
    return {
        "partition": execution_id.partition,
        "id": execution_id.uuid,
        "by": check_text(by, "by"),
        "why": why and kept_text(why),
    }
