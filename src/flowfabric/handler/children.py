"""Children: the handles, ids and results of executions submitted by a handler."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from flowfabric import payloads
from flowfabric.errors import ChildFailed
from flowfabric.handler.waits import Waiting
from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model import Failure, Signal

R = TypeVar("R")


class Child(Generic[R]):
    """The handle of an execution submitted by a handler."""

    def __init__(
        self, execution_id: ExecutionId, returns: Any, wait: Callable[[ExecutionId, Any], Waiting[Any]]
    ) -> None:
        self.execution_id = execution_id
        self._returns = returns
        self._wait = wait

    def __repr__(self) -> str:
        return f"<child {self.execution_id}>"

    def result(self) -> Waiting[R]:
        """Wait for the end of the child and return its result; the run suspends meanwhile, as in any wait.

        When awaited, raises `ChildFailed` if the child failed, was cancelled or expired.
        """
        return self._wait(self.execution_id, self._returns)


def child_id(
    parent: ExecutionId, name: str, occurrence: int, generation: int, beside: FlowId | None = None
) -> ExecutionId:
    """Derive the id of a child from its place in the parent's journal, and a generation from 0.

    The next generation is needed if a replay has discarded the place, or if the id already belongs to another
    execution. The child is stored in the partition of the flow that it joins, if any.
    """
    hashed = f"child\0{parent.wire}\0{name}\0{occurrence}\0{generation}"
    return ExecutionId.derived(hashlib.sha256(hashed.encode()).digest(), beside=beside)


def read_end(child: ExecutionId, signals: Sequence[Signal], returns: Any) -> Any:
    """Read the result of a child from the signal of its end. Raises `ChildFailed`."""
    end = next((signal for signal in signals if signal.category == "child"), None)
    if end is None:
        raise ChildFailed(f"child {child} has not ended: an operator resumed the parent before", child, "unfinished")
    if end.name == "completed":
        return payloads.read_result(end.payload, returns, f"child {child}")
    if end.name == "removed":
        raise ChildFailed(f"child {child} was removed by retention before the parent waited for it", child, end.name)
    failure = msgspec.json.decode(end.payload, type=Failure) if end.payload else None
    reason = failure.reason if failure is not None else None
    raise ChildFailed(f"child {child} {end.name}: {reason or 'no reason given'}", child, end.name, failure)
