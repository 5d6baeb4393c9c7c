"""Operations of the namespaces of an app that take other arguments than those of the engine."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from flowfabric.app import encoding
from flowfabric.app.executions import Execution
from flowfabric.app.operations import encoded, notify, to_execution_id
from flowfabric.engine import budgets, executions, lanes
from flowfabric.ids import ExecutionId
from flowfabric.model import Delivered, LaneChange, Moved, Usage, UsageReport

if TYPE_CHECKING:
    from flowfabric.app import App


async def cancel(
    app: "App", execution_id: str | ExecutionId, *, by: str | None = None, reason: str | None = None
) -> Moved:
    """Cancel an execution; a worker that is running it is notified and cancels the handler.

    Safe to repeat. Raises `ExecutionNotFound`, `ExecutionEnded` for any other outcome, `InvalidBody`.
    """
    asked = to_execution_id(execution_id)
    moved = await app.database.run(lambda conn: executions.cancel(conn, asked, reason=reason, by=by), repeat=True)
    notify(app, moved, asked)
    return moved


async def override(
    app: "App",
    execution_id: str | ExecutionId,
    outcome: Literal["success", "failed"],
    *,
    reason: str,
    by: str,
    result: object = None,
) -> Moved:
    """Complete an execution with a result, or fail it, without its lease: an act of an operator.

    Works in every unfinished state. A failure is final, whatever the retry policy says. A worker that runs the
    execution loses its lease, and its own outcome is refused. Safe to repeat: the same outcome and result return the
    same state. Raises `ExecutionNotFound`, `ExecutionEnded`, `InvalidBody`, `InvalidText`, `PayloadTooLarge`.
    """
    asked, plain = to_execution_id(execution_id), encoded(result)
    moved = await app.database.run(
        lambda conn: encoding.override(conn, app, asked, outcome, reason=reason, by=by, result=plain), repeat=True
    )
    notify(app, moved, asked)
    return moved


async def resume_lane(app: "App", name: str, *, by: str, reason: str | None = None) -> LaneChange:
    """Resume a paused or draining lane.

    Safe to repeat: returns `NOOP` if the lane is already active. Raises `LaneNotFound`, `InvalidBody`.
    """
    change = await app.database.run(lambda conn: lanes.resume_lane(conn, name, by=by, reason=reason), repeat=True)
    app.notify(lanes=[name])
    return change


async def report_usage(
    app: "App",
    budget: str | UUID,
    amounts: Mapping[str, int],
    *,
    dedup_key: str | None = None,
    namespace: str = "default",
) -> Usage:
    """Count used amounts outside of any execution, in all dimensions or in none.

    A breach is a return value, not an error. Safe to repeat with a `dedup_key`. Raises `BudgetNotFound`,
    `InvalidUsage`, `InvalidBody`.
    """
    report = UsageReport(budget=str(budget), amounts=amounts, dedup_key=dedup_key, namespace=namespace)
    return await app.database.run(lambda conn: budgets.report_usage(conn, report), repeat=dedup_key is not None)


async def approve(
    app: "App",
    execution_id: str | ExecutionId,
    waitpoint: str,
    *,
    by: str,
    subject: object = None,
    note: str | None = None,
) -> Delivered:
    """Approve, as a person whom you have authenticated (`by`); each person counts once.

    `subject` is what the person was shown. Raises `ApprovalDigestMismatch` if the handler asks about another subject,
    `ExecutionNotFound`, `WaitpointNotFound`, `TargetNotSignalable`, `WaitpointClosed`.
    """
    return await _execution(app, execution_id).approve(waitpoint, by=by, subject=subject, note=note)


async def reject(
    app: "App",
    execution_id: str | ExecutionId,
    waitpoint: str,
    *,
    by: str,
    subject: object = None,
    note: str | None = None,
) -> Delivered:
    """Reject, as a person whom you have authenticated (`by`); one rejection is enough. Raises as `approve` does."""
    return await _execution(app, execution_id).reject(waitpoint, by=by, subject=subject, note=note)


async def signal(
    app: "App",
    execution_id: str | ExecutionId,
    waitpoint: str,
    payload: object = None,
    *,
    token: str,
    name: str | None = None,
    source: str = "unknown",
) -> Delivered:
    """Send a signal to the waitpoint with this key, with the waitpoint's token; `name` defaults to the key.

    Raises the errors of `deliver_signal`, such as `InvalidToken`, also if no waitpoint has this key.
    """
    return await _execution(app, execution_id).signal(waitpoint, payload, token=token, name=name, source=source)


def _execution(app: "App", execution_id: str | ExecutionId) -> Execution[Any]:
    return app.execution(execution_id)
