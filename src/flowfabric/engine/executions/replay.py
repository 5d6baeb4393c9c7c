"""Replay: run an execution again that has ended, or that is held because its code has changed."""

import difflib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from flowfabric import calls
from flowfabric.errors import StepNotFound
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
    from_step: str | None = None,
    from_occurrence: int = 1,
    from_scratch: bool = False,
) -> Moved:
    """Run an ended execution again; attempt numbers continue, retries restart at 0, the old deadline is dropped.

    Saved steps and completed waits are not repeated, unless they were saved from `from_step` on, or `from_scratch` is
    true: those are forgotten and run again. An execution that is held because its code has changed continues in its
    attempt; it needs one of the two. Raises `ExecutionNotFound`, `ExecutionNotTerminal`, `MaxReplaysExhausted`,
    `FlowAlreadyTerminal`, `LaneDraining`, `StepNotFound`, `InvalidTime`, `InvalidBody`.
    """
    span, moment = calls.span_or_moment(deadline, "deadline")
    try:
        replayed = await call.row(
            conn,
            "replay",
            **calls.about(execution_id),
            by=check_text(by, "by"),
            deadline_ms=span,
            deadline_at=moment,
            from_step=from_step and check_text(from_step, "from_step"),
            from_occurrence=calls.expect(int, from_occurrence, "from_occurrence"),
            from_scratch=from_scratch,
        )
    except StepNotFound as refused:
        raise _with_nearest(refused, from_step or "") from None
    return Moved(public_state=PublicState(replayed["public_state"]), lanes=[replayed["lane"]])


def _with_nearest(refused: StepNotFound, name: str) -> StepNotFound:
    """Add the saved name that is most similar to the one asked for."""
    similar = difflib.get_close_matches(name, cast(Sequence[str], refused.fields["names"]), 1)
    hint = f"; use {similar[0]}" if similar and similar[0] != name else ""
    return StepNotFound(f"{refused.message}{hint}", **refused.fields)
