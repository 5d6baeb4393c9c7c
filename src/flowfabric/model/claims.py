"""Claims: the right to run an execution, and the fence that proves it."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID, uuid4

import msgspec

from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model.journal import Journal


class CurrentAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The attempt that is running, or interrupted by a wait."""

    number: int
    type: str
    started_at: datetime


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The right to run an execution until `expires_at`."""

    lease_id: UUID
    epoch: int
    worker: str
    instance: str
    expires_at: datetime


class Fence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a worker sends with every call: the lease, and the epoch and attempt it belongs to."""

    execution_id: ExecutionId
    lease_id: UUID
    epoch: int
    attempt: int
    flow: UUID | None = None
    """Its flow at claim time. Ending the execution locks the flow first; this saves the lookup."""


class Input(msgspec.Struct, frozen=True, gc=False):
    """The result that an upstream execution passes on, byte for byte."""

    result: bytes
    encoding: str = "json"
    upstream: ExecutionId | None = None
    """The execution whose result it is."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An execution claimed by a worker, with everything the worker needs to run it."""

    execution_id: ExecutionId
    fence: Fence
    task: str
    namespace: str
    lane: str
    priority: int
    route: int
    created_at: datetime
    attempt: CurrentAttempt
    expires_at: datetime
    version: int | None = None
    """The version of the task under which it first started; run it with that one."""
    encoding: str = "json"
    payload: bytes | None = None
    passed_by: ExecutionId | None = None
    """The upstream execution whose result is the payload, if one passes it."""
    tags: Mapping[str, str] = {}
    policy: Mapping[str, object] = {}
    resumed: bool = False
    """It resumes the same attempt after a wait or a delay."""
    journal: Journal | None = None
    """Its saved steps and completed waits, if it may have run before and they fit into the answer."""
    attempt_deadline: datetime | None = None
    deadline_at: datetime | None = None
    flow_id: FlowId | None = None
    inputs: Mapping[str, Input] = {}
    """The results of upstreams, by name; the one named `payload` replaces the payload instead."""
    more_inputs: bool = False
    """The inputs do not fit into the answer: `inputs` is empty, and `read_inputs` returns all of them."""
    must_mark: bool = False
    """Call `mark_begun_many` before the handler: an earlier lease expired, or the execution must not lose any.

    For the first run of a task that has versions, call it in any case.
    """
    alone: bool = False
    """It may have ended two workers before, so it should run when nothing else does."""

    def handed(self, inputs: Mapping[str, Input]) -> "Claim":
        """Return the claim with the inputs that upstreams pass on."""
        if not inputs and not self.more_inputs:
            return self
        others = {name: given for name, given in inputs.items() if name != "payload"}
        claim = msgspec.structs.replace(self, inputs=others, more_inputs=False)
        if (payload := inputs.get("payload")) is not None:
            claim = msgspec.structs.replace(
                claim, payload=payload.result, encoding=payload.encoding, passed_by=payload.upstream
            )
        return claim


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """Free slots of a worker that a call may fill with claims: what `claim` needs to know about the worker."""

    worker: str
    instance: str
    lanes: Collection[str]
    capabilities: Collection[str] = ()
    namespace: str | None = None
    lease: timedelta = timedelta(seconds=30)
    after_route: int = 0
    free: int = 1
    request: UUID = msgspec.field(default_factory=uuid4)
    """Identifies the claim, so that it can be repeated after a lost reply; each call needs another one."""
    repeated: bool = False
    """The call may have been made before, and claimed."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A signed claim on one execution for one worker; `grant_key` can be turned into a lease."""

    execution_id: ExecutionId
    partition_key: str
    grant_key: str
    expires_at: datetime
    route: int

    def __repr__(self) -> str:
        return f"Grant(execution_id={str(self.execution_id)!r}, expires_at={self.expires_at})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("execution_id", str(self.execution_id)), ("expires_at", self.expires_at)]


class VerifiedGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a valid grant."""

    execution_id: ExecutionId
    worker: str
    instance: str
    expires_at: datetime


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a renewal: when the lease expires."""

    expires_at: datetime
    outcome: Literal["renewed", "locked"] = "renewed"
    """`locked`: another transaction has locked the execution, so the lease was not extended; ask again soon."""


class Begin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The begin of a run, and for the first run of a task that has versions, the version that runs."""

    fence: Fence
    version: int | None = None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a recorded begin of a run."""

    outcome: Literal["begun"] = "begun"
    version: int | None = None
    """The version of its task that the execution keeps."""


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `revoke`: the revoked lease, or the cause why there was nothing to do."""

    outcome: Literal["revoked", "noop"]
    cause: str | None = None
    lease_id: UUID | None = None
    epoch: int | None = None
