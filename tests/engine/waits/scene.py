"""Fixtures of the tests of waits: suspended executions, and signals to them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from flowfabric.engine import waits
from flowfabric.ids import ExecutionId
from flowfabric.model import BoundWaitpoint, Claim, Signal, SignalToSend, Suspended, Suspension
from flowfabric.postgres.driver import Connection
from tests.given import Given

APPROVE = {"kind": "single", "waitpoint": "w", "name": "approve"}
ANY = {"kind": "single", "waitpoint": "w"}
OPERATOR_ONLY = {"kind": "operator_only"}


def approvals(approvers: int = 1, waitpoint: str = "w") -> dict[str, object]:
    """The condition of an approval, as `ctx.approval` builds it."""
    authenticated = {"source_type": "operator"} if approvers > 1 else {}
    yes = {"kind": "count", "n": approvers, "of": "distinct_sources", "name": "approve", "waitpoints": [waitpoint]}
    no = {"kind": "single", "waitpoint": waitpoint, "name": "reject"}
    return {"kind": "any_of", "members": [{**yes, **authenticated}, {**no, **authenticated}]}


class Waiting(NamedTuple):
    """A suspended execution, with the tokens of its waitpoints."""

    claim: Claim
    answer: Suspended

    @property
    def execution_id(self) -> ExecutionId:
        return self.claim.execution_id

    def point(self, key: str = "w") -> BoundWaitpoint:
        return next(point for point in self.answer.waitpoints if point.key == key)

    async def signals(self, conn: Connection) -> list[Signal]:
        """The signals that ended the wait."""
        return await waits.read_signals(conn, self.execution_id, self.answer.suspension_id)

    def signal(self, name: str = "approve", key: str = "w", **options: Any) -> SignalToSend:
        """A signal to one of its waitpoints."""
        point = self.point(key)
        token = options.pop("token", point.token)
        return to(self.execution_id, point.id, token, name, **options)


def to(
    execution_id: ExecutionId, waitpoint_id: UUID, token: str, name: str = "approve", **options: Any
) -> SignalToSend:
    """A signal to a waitpoint."""
    return SignalToSend(execution_id=execution_id, waitpoint_id=waitpoint_id, token=token, name=name, **options)


def wish(
    condition: Mapping[str, object] = APPROVE, waitpoints: Sequence[str | tuple[str, UUID]] = ("w",), **options: Any
) -> Suspension:
    """A request to suspend; by default until `approve` arrives on the waitpoint `w`."""
    return Suspension(condition=condition, waitpoints=waitpoints, **options)


async def waiting(
    given: Given,
    condition: Mapping[str, object] = APPROVE,
    waitpoints: Sequence[str | tuple[str, UUID]] = ("w",),
    *,
    submitted: Mapping[str, Any] | None = None,
    **options: Any,
) -> Waiting:
    """An execution that has just suspended."""
    claim = await given.claimed(**(submitted or {}))
    answer = await waits.suspend(given.conn, claim.fence, wish(condition, waitpoints, **options))
    assert answer.outcome == "suspended"
    return Waiting(claim, answer)


async def state(conn: Connection, execution_id: ExecutionId) -> str:
    """Its phase, or its outcome if it has ended, as stored."""
    found: str = await conn.fetchval(
        "select coalesce((select t.phase::text from flowfabric.tickets t where t.partition = $1 and t.id = $2), "
        "(select e.outcome::text from flowfabric.executions e where e.partition = $1 and e.id = $2))",
        execution_id.partition,
        execution_id.uuid,
    )
    return found
