"""Resuming: a suspended execution becomes runnable again, by a signal, an operator, a timeout or a budget."""

from datetime import timedelta
from uuid import uuid4

from flowfabric import calls
from flowfabric.ids import ExecutionId, check_text, kept_text
from flowfabric.model import Delivered, Moved, PublicState
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def resume(
    conn: Connection,
    execution_id: ExecutionId,
    *,
    by: str,
    note: str | None = None,
    delay: timedelta | None = None,
) -> Moved:
    """Resume a suspended execution on behalf of an operator, regardless of what it waits for.

    The event log keeps the first 4,096 bytes of the note. Raises `ExecutionNotFound`, `ExecutionNotSuspended`,
    `InvalidTime`, `InvalidBody`.
    """
    answer = await call.row(
        conn,
        "resume",
        **calls.about(execution_id),
        by=check_text(by, "by"),
        note=None if note is None else kept_text(note),
        delay_ms=calls.span(delay, "delay"),
    )
    return Moved(public_state=PublicState(answer["public_state"]), lanes=[answer["lane"]])


async def deliver_approval(
    conn: Connection,
    execution_id: ExecutionId,
    waitpoint: str,
    decision: str,
    *,
    by: str,
    lane: str | None = None,
    suffix: str | None = None,
    payload: bytes | None = None,
    encoding: str = "json",
    digest: bytes | None = None,
    note: str | None = None,
) -> Delivered:
    """Deliver the decision of a person whom the deployment has authenticated; no token is needed.

    `waitpoint` is a key or an id, `decision` is `approve`, `reject` or another name. A bound request requires the
    `digest` of its `about`. Each person counts once; a repeated call returns `duplicate`. Raises `ExecutionNotFound`,
    `WaitpointNotFound`, `WrongLane`, `InvalidSignal`, `PayloadTooLarge`, `TargetNotSignalable`, `WaitpointClosed`,
    `SignalLimitExceeded`, `ApprovalDigestMismatch`.
    """
    answer = await call.row(
        conn,
        "deliver_approval",
        **calls.about(execution_id),
        waitpoint=check_text(waitpoint, "waitpoint"),
        signal_name=check_text(decision, "decision"),
        by=check_text(by, "by"),
        signal_id=uuid4(),
        lane=lane and check_text(lane, "lane"),
        suffix=suffix and check_text(suffix, "suffix"),
        payload=payload,
        encoding=check_text(encoding, "encoding"),
        digest=digest,
        note=None if note is None else kept_text(note),
    )
    return Delivered(
        outcome=answer["outcome"], signal_id=answer["accepted_id"], effect=answer["effect"], lane=answer["woken"]
    )
