"""Children: what a handler holds of an execution that it has submitted."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from flowfabric import payloads
from flowfabric.blocking import Wrapped
from flowfabric.errors import ChildFailed
from flowfabric.handler.waits import Waiting
from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model import Failure, Signal

R = TypeVar("R")


class Child(Wrapped, Generic[R]):
    """An execution that a handler has submitted."""

    def __init__(
        self, execution_id: ExecutionId, returns: Any, wait: Callable[[ExecutionId, Any], Waiting[Any]]
    ) -> None:
        self.execution_id = execution_id
        self._returns = returns
        self._wait = wait

    def __repr__(self) -> str:
        return f"<child {self.execution_id}>"

    def result(self) -> Waiting[R]:
        """What it returned. Waits for its end like any wait: the run steps aside, and many are waited for together.

        When awaited, raises `ChildFailed` if it failed, was cancelled or expired.
        """
        return self._wait(self.execution_id, self._returns)


def child_id(
    parent: ExecutionId, name: str, occurrence: int, generation: int, partitions: int, beside: FlowId | None = None
) -> ExecutionId:
    """The id that follows from a place in the journal of a parent, for the first, second, … child asked for there.

    It is in the partition of the flow that it joins, if there is one.

    A second one is asked for when the place was forgotten by a replay, or the id of the first is somebody else's.
    """
    hashed = f"child\0{parent}\0{name}\0{occurrence}\0{generation}"
    digest = bytearray(hashlib.sha256(hashed.encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    uuid = UUID(bytes=bytes(digest))
    return ExecutionId.of(uuid, partitions) if beside is None else ExecutionId(beside.partition, uuid)


def may_be_child(execution_id: ExecutionId) -> bool:
    """Whether an id may be a child's: it is made of a digest, as only a few others are."""
    return execution_id.uuid.version == 8


def read_end(child: ExecutionId, signals: Sequence[Signal], returns: Any) -> Any:
    """What the signal that told of a child's end says: its result. Raises `ChildFailed`."""
    told = next((signal for signal in signals if signal.category == "child"), None)
    if told is None:
        raise ChildFailed(f"{child}: an operator let the run go on before it had ended", child, "unfinished")
    if told.name == "completed":
        return payloads.decode(told.payload, returns)
    if told.name == "removed":
        raise ChildFailed(f"{child}: its record was removed before its end was asked for", child, told.name)
    failure = msgspec.json.decode(told.payload, type=Failure) if told.payload else None
    reason = failure.reason if failure is not None else None
    raise ChildFailed(f"{child} {told.name}: {reason or 'no reason given'}", child, told.name, failure)
