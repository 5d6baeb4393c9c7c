"""Claims: the right to run an execution, and how it is shown."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model.journal import Journal
from flowfabric.model.waits import Resumed


class CurrentAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The attempt under way, or interrupted by a wait."""

    number: int
    type: str
    started_at: datetime


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The right to run an execution until a moment."""

    lease_id: UUID
    epoch: int
    worker: str
    instance: str
    expires_at: datetime


class Fence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a worker shows with every call it makes: the lease, and which claim and attempt it belongs to."""

    execution_id: ExecutionId
    lease_id: UUID
    epoch: int
    attempt: int
    flow: UUID | None = None
    """The flow it was in when it was claimed: whoever ends it takes that first, and is spared looking it up."""


class Input(msgspec.Struct, frozen=True, gc=False):
    """What an upstream handed on: its result, byte for byte."""

    result: bytes
    encoding: str = "json"


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An execution given to a worker, and all the worker needs to run it."""

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
    encoding: str = "json"
    payload: bytes | None = None
    tags: Mapping[str, str] = {}
    policy: Mapping[str, object] = {}
    resumed: bool = False
    """It goes on with the same attempt after a wait or a delay."""
    resumed_by: Resumed | None = None
    """What ended the wait it goes on from."""
    journal: Journal | None = None
    """What its handler has done before, where it may have run and all of that fits into the answer."""
    attempt_deadline: datetime | None = None
    deadline_at: datetime | None = None
    flow_id: FlowId | None = None
    inputs: Mapping[str, Input] = {}
    """The results of upstreams that were given a name; one called `payload` is the payload instead."""
    more_inputs: bool = False
    """Upstreams handed on more than has room in the answer: nothing of it is here, and `read_inputs` has all."""

    def handed(self, inputs: Mapping[str, Input]) -> "Claim":
        """The claim with all that upstreams handed on."""
        if not inputs and not self.more_inputs:
            return self
        others = {name: given for name, given in inputs.items() if name != "payload"}
        claim = msgspec.structs.replace(self, inputs=others, more_inputs=False)
        if (payload := inputs.get("payload")) is not None:
            claim = msgspec.structs.replace(claim, payload=payload.result, encoding=payload.encoding)
        return claim


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A signed promise of one execution to one worker; whoever holds the key may turn it into a lease."""

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
    """What a good grant says."""

    execution_id: ExecutionId
    worker: str
    instance: str
    expires_at: datetime


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that goes on."""

    expires_at: datetime


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """What revoking did: the lease that was taken away, or the cause why there was nothing to do."""

    outcome: Literal["revoked", "noop"]
    cause: str | None = None
    lease_id: UUID | None = None
    epoch: int | None = None
