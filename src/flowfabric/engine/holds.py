"""Holds: an execution that is not claimed until an operator releases it, or one whose code has changed."""

from collections.abc import Sequence

import msgspec

from flowfabric import calls
from flowfabric.calls import Act
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId, check_text, kept_text
from flowfabric.model import ChangedCode, Fence, Held, HoldChange, Unheld
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


async def hold_changed(
    conn: Connection, fence: Fence, reason: str, *, steps: Sequence[str] = (), version: int | None = None
) -> Held:
    """Hold an execution whose code has changed: this run does not fit what earlier runs have saved.

    The journal is kept, and the attempt continues after `unhold`. `steps` are the saved names that do not fit;
    `version` is the version of the task that the code has now. Raises `LeaseLost`, `ExecutionNotActive`,
    `ExecutionNotFound`, `InvalidBody`.
    """
    change = ChangedCode(fence=fence, reason=reason, steps=steps, version=version)
    return calls.only(await hold_changed_many(conn, [change]))


async def hold_changed_many(
    conn: Connection, changes: Sequence[ChangedCode], *, wait: bool = True
) -> list[Held | FlowFabricError]:
    """Hold many executions whose code has changed, and return one result per item, in order.

    Without `wait`, an item whose execution another transaction has locked is refused with `RowLocked`, so that the
    other items do not wait for it.
    """
    return await calls.each_fenced(conn, "hold_changed", changes, _change, Held, wait=wait)


def _change(change: ChangedCode) -> Act:
    names = [check_text(name, "step name") for name in change.steps]
    return Act(
        change.fence,
        {
            "reasons": kept_text(str(change.reason)),
            "steps": calls.json_text(names, "steps"),
            "versions": calls.version(change.version),
        },
    )


def _act(execution_id: ExecutionId, by: str, reason: str | None) -> dict[str, object]:
    return {
        **calls.about(execution_id),
        "by": check_text(by, "by"),
        "reason": reason and kept_text(reason),
    }
