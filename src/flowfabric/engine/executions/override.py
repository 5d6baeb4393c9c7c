"""Override: an operator completes or fails an execution without its lease."""

from typing import Literal

from flowfabric import calls
from flowfabric.ids import ExecutionId, check_text, read_execution_ids
from flowfabric.model import Moved, PublicState
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

RESULT_LIMIT = 1_048_576


async def override(
    conn: Connection,
    execution_id: ExecutionId,
    outcome: Literal["success", "failed"],
    *,
    reason: str,
    by: str,
    result: bytes | None = None,
    encoding: str = "json",
    result_limit: int = RESULT_LIMIT,
) -> Moved:
    """Complete an execution with a result, or fail it, without its lease: an act of an operator.

    Works in every unfinished state. A failure is final, whatever the retry policy says. A worker that runs the
    execution loses its lease, and its own outcome is refused. Safe to repeat: the same outcome and result return the
    same state. Raises `ExecutionNotFound`, `ExecutionEnded`, `InvalidBody`, `InvalidText`, `PayloadTooLarge`.
    """
    _, stored = calls.check_result(result, encoding, result_limit)
    overridden = await call.row(
        conn,
        "override",
        **calls.about(execution_id),
        outcome=check_text(outcome, "outcome"),
        reason=check_text(reason, "reason"),
        by=check_text(by, "by"),
        result=result,
        encoding=stored,
        result_limit=result_limit,
    )
    return Moved(
        public_state=PublicState(overridden["public_state"]),
        lanes=overridden["lanes"] or (),
        ended=read_execution_ids(overridden["ended"]),
    )
