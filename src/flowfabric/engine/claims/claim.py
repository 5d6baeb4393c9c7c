"""Claiming: take executions under a lease."""

from collections.abc import Collection
from datetime import timedelta
from uuid import UUID, uuid4

import msgspec

from flowfabric import calls
from flowfabric.ids import ExecutionId, FlowId, check_filter, check_text
from flowfabric.model import Claim, CurrentAttempt, Fence, Input, Journal
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row


async def claim(
    conn: Connection,
    worker: str,
    *,
    instance: str,
    lanes: Collection[str],
    capabilities: Collection[str] = (),
    take: int = 1,
    lease: timedelta = timedelta(seconds=30),
    after_route: int = 0,
    namespace: str | None = None,
    partitions: Collection[int] | None = None,
    last: Claim | None = None,
    request: UUID | None = None,
    repeated: bool = False,
    wait: bool = True,
    slots: int | None = None,
) -> list[Claim]:
    """Take up to `take` executions under a lease; an empty list when nothing is open to this worker.

    Strict priority; at equal priority routes take turns, starting after `after_route` (pass the route served last);
    within a route the oldest execution first. With `last`, the last claim of this worker, a claim starts after it if
    only its route has work; leave it out now and then, because executions that committed late may lie before it.

    Give each claim a new `request`. If its reply is lost, repeat it with the same request and `repeated=True`: the
    instance gets the same leases again, without `journal` and `inputs`, or new ones if the first call took none.
    Without a repeat those leases expire and the executions are claimed again. Without `wait`, a quota that
    another transaction has locked admits nothing, instead of delaying the claim.

    With `slots`, the number of executions that can run at once, the others are claimed ahead, and no claim counts as
    the begin of a run: call `mark_begun_many` before you run a claim with `must_mark`. If a lease expires before that,
    no reclaim is counted. A claim with `alone` comes last; run it when nothing else runs. Raises `InvalidWorker`,
    `InvalidCapabilities`, `InvalidLane`, `InvalidLease`, `InvalidLimit`.
    """
    taken = await call.rows(
        conn,
        "claim",
        worker=check_text(worker, "worker"),
        instance=check_text(instance, "instance"),
        lanes=[check_text(lane, "lane") for lane in lanes],
        capabilities=calls.words(capabilities, "capability"),
        take=take,
        lease_ms=calls.span(lease, "lease"),
        after_route=after_route,
        namespace=check_filter(namespace, "namespace"),
        partitions=None if partitions is None else list(partitions),
        last_priority=None if last is None else last.priority,
        last_created=None if last is None else last.created_at,
        request=request or uuid4(),
        repeated=repeated,
        wait=wait,
        slots=slots,
    )
    return [read_claim(row) for row in taken]


def read_claim(row: Row) -> Claim:
    """Convert a row of SQL to a claim."""
    execution_id = ExecutionId(row["partition"], row["id"])
    claim = Claim(
        execution_id=execution_id,
        fence=Fence(
            execution_id=execution_id,
            lease_id=row["lease_id"],
            epoch=row["epoch"],
            attempt=row["attempt"],
            flow=row["flow"],
        ),
        task=row["task"],
        namespace=row["namespace"],
        lane=row["lane"],
        priority=row["priority"],
        version=row["version"],
        route=row["route"],
        created_at=row["created_at"],
        attempt=CurrentAttempt(number=row["attempt"], type=row["attempt_type"], started_at=row["attempt_started_at"]),
        expires_at=row["expires_at"],
        encoding=row["encoding"],
        payload=row["payload"],
        tags=msgspec.json.decode(row["tags"]) if row["tags"] else {},
        policy=msgspec.json.decode(row["policy"]) if row["policy"] else {},
        resumed=row["resumed"],
        journal=row["journal"] and call.read(Journal, row["journal"]),
        attempt_deadline=row["attempt_deadline"],
        deadline_at=row["deadline_at"],
        flow_id=row["flow"] and FlowId(row["partition"], row["flow"]),
        more_inputs=row["more_inputs"],
        must_mark=row["must_mark"],
        alone=row["alone"],
    )
    if row["input_names"] is None:
        return claim
    upstreams = (ExecutionId(row["partition"], upstream) for upstream in row["input_upstreams"])
    inputs = map(Input, row["inputs"], row["input_encodings"], upstreams)
    return claim.handed(dict(zip(row["input_names"], inputs, strict=True)))
