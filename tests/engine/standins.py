"""Claims, registrations and ends written directly into the tables, without a worker."""

from datetime import timedelta
from uuid import uuid4

from flowfabric.ids import ExecutionId
from flowfabric.model import Fence
from tests.given import Given

CLAIM = """
update flowfabric.tickets t
set phase = 'active', eligibility = 'eligible_now', reason = 'none', attempt_state = 'running_attempt',
    attempt = t.attempt + 1, attempt_type = 'initial', attempt_started_at = c.now,
    started_at = coalesce(t.started_at, c.now), epoch = t.epoch + 1, attempt_epoch = t.epoch + 1,
    lease_id = $3, worker = $4, instance = $4 || '-1', expires_at = c.now + $5
from (select flowfabric.clock() as now offset 0) c
where t.partition = $1 and t.id = $2
returning t.lease_id, t.epoch, t.attempt
"""

END = """
with gone as (delete from flowfabric.tickets t where t.partition = $1 and t.id = $2 returning t.*)
update flowfabric.executions e
set outcome = $3::text::flowfabric.outcome, result = $4, failure = $5::text::jsonb, started_at = g.started_at,
    ended_at = flowfabric.clock(), priority = g.priority, attempt = g.attempt, epoch = g.epoch, retries = g.retries,
    reclaims = g.reclaims, replays = g.replays
from gone g where e.partition = g.partition and e.id = g.id
"""

REGISTER = """
insert into flowfabric.workers (
    instance, worker, namespace, lanes, capabilities, ttl, registered_at, beat_at, expires_at)
select $1 || '-1', $1, $2, $3, $4, $5, c.now, c.now, c.now + $5 from (select flowfabric.clock() as now offset 0) c
"""


async def claimed(given: Given, execution_id: ExecutionId, *, worker: str = "pool", seconds: int = 30) -> Fence:
    """Give a worker a lease on an execution."""
    [row] = await given.rows(
        CLAIM, execution_id.partition, execution_id.uuid, uuid4(), worker, timedelta(seconds=seconds)
    )
    return Fence(execution_id=execution_id, lease_id=row["lease_id"], epoch=row["epoch"], attempt=row["attempt"])


async def ended(
    given: Given, execution_id: ExecutionId, outcome: str, *, result: bytes | None = None, failure: str | None = None
) -> None:
    """End an execution."""
    await given.rows(END, execution_id.partition, execution_id.uuid, outcome, result, failure)


async def registered(
    given: Given,
    worker: str,
    *capabilities: str,
    lane: str = "default",
    namespace: str | None = None,
    seconds: int = 30,
) -> None:
    """Register a live worker."""
    await given.rows(REGISTER, worker, namespace, [lane], sorted(capabilities), timedelta(seconds=seconds))


async def stored(given: Given, execution_id: ExecutionId, assignments: str) -> None:
    """Set columns of a ticket, for states that no operation leads to."""
    await given.rows(
        f"update flowfabric.tickets set {assignments} where partition = $1 and id = $2",
        execution_id.partition,
        execution_id.uuid,
    )
