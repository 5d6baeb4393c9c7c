"""Answers in tests: decides on approvals and sends signals in place of people and services."""

from flowfabric import payloads
from flowfabric.calls import about
from flowfabric.engine import executions, waits
from flowfabric.errors import WaitpointNotFound
from flowfabric.ids import ExecutionId, shown
from flowfabric.model import Delivered, SignalToSend
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def decide(
    conn: Connection, execution_id: ExecutionId, decision: str, title: str | None, *, by: str, note: str | None
) -> Delivered:
    """Decide on the approval that an execution waits for, about its subject. Raises `WaitpointNotFound`."""
    found = await executions.describe(conn, execution_id)
    if found.suspension is None or found.suspension.reason_code != "waiting_for_approval":
        raise WaitpointNotFound(f"execution {execution_id} does not wait for an approval: {found.explanation.sentence}")
    digest = found.suspension.about_digest
    return await waits.deliver_approval(
        conn,
        execution_id,
        title or found.suspension.waitpoint_keys[0],
        decision,
        by=by,
        digest=bytes.fromhex(digest) if digest else None,
        payload=None if note is None else payloads.encode(note),
        note=note,
    )


async def signal(conn: Connection, execution_id: ExecutionId, name: str, payload: object, *, source: str) -> Delivered:
    """Send a signal to the open waitpoint of that name, with its token. Raises `WaitpointNotFound`."""
    found = await call.rows(conn, "open_waitpoint", **about(execution_id), key=name)
    if not found:
        explained = (await executions.describe(conn, execution_id)).explanation
        raise WaitpointNotFound(f"execution {execution_id} has no open waitpoint {shown(name)}: {explained.sentence}")
    [point] = found
    wanted = SignalToSend(
        execution_id=execution_id,
        waitpoint_id=point["waitpoint_id"],
        token=point["token"],
        name=name,
        source_identity=source,
        payload=None if payload is None else payloads.encode(payload),
    )
    return await waits.deliver_signal(conn, wanted)
