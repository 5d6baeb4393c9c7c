"""Replay: run an ended execution again."""

from datetime import datetime, timedelta

from flowfabric import calls
from flowfabric.ids import ExecutionId, check_text
from flowfabric.model import Moved, PublicState
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def replay(
    conn: Connection,
    execution_id: ExecutionId,
    *,
    by: str,
    deadline: timedelta | datetime | None = None,
    keep_steps: bool = True,
) -> Moved:
    """Run an ended execution again; attempt numbers continue, retries restart at 0, the old deadline is dropped.

    Saved steps and completed waits are not repeated, unless `keep_steps` is false: then the handler runs from the
    beginning. Raises `ExecutionNotFound`, `ExecutionNotTerminal`, `MaxReplaysExhausted`, `FlowAlreadyTerminal`,
    `LaneDraining`, `InvalidTime`, `InvalidBody`.
    """
    span, moment = calls.span_or_moment(deadline, "deadline")
    replayed = await call.row(
        conn,
        "replay",
        **calls.about(execution_id),
        by=check_text(by, "by"),
        deadline_ms=span,
        deadline_at=moment,
        keep_steps=keep_steps,
    )
    return Moved(public_state=PublicState(replayed["public_state"]), lanes=[replayed["lane"]])
