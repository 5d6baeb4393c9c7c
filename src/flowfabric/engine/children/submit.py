"""Submit children: executions that a handler submits, each saved at its place in the journal of its parent."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from flowfabric import calls
from flowfabric.calls import submissions
from flowfabric.calls.submissions import PAYLOAD_LIMIT, Item
from flowfabric.errors import FlowFabricError, InvalidBody
from flowfabric.ids import ExecutionId, check_text, expect_id
from flowfabric.model import ChildToSubmit, FoundChild
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


class _Child(NamedTuple):
    """A child that is checked and ready to be sent."""

    asked: ChildToSubmit
    item: Item


async def submit_children(
    conn: Connection,
    asked: Sequence[ChildToSubmit],
    *,
    payload_limit: int = PAYLOAD_LIMIT,
    wait: bool = True,
) -> list[FoundChild | FlowFabricError]:
    """Submit children of running executions, and return per item a child or its refusal, in order.

    Safe to repeat: a place in the journal that already has its child returns `saved` with its id. The refusals are
    `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`, `InvalidName`, `TooManySteps`, and what `submit` raises.
    Without `wait`, raises `RowLocked` if another transaction keeps a row locked that the call needs.
    """
    texts: dict[int, str] = {}

    def prepare(child: ChildToSubmit) -> _Child:
        expect_id(ExecutionId, child.fence.execution_id, "execution id of the fence")
        expect_id(ExecutionId, child.execution_id, "execution id")
        check_text(child.name, "the name of a step")
        calls.expect(int, child.occurrence, "occurrence")
        if child.map is not None and not 1 <= calls.expect(int, child.map.max_running, "max_running") < 1 << 31:
            raise InvalidBody(f"max_running {child.map.max_running} is invalid; use 1 or more", field="max_running")
        submission = replace(child.submission, execution_id=child.execution_id)
        return _Child(child, submissions.prepare(submission, texts, iter(()), payload_limit))

    async def send(sent: Sequence[_Child]) -> list[FoundChild | FlowFabricError]:
        return await _send(conn, [child.asked for child in sent], [child.item for child in sent], payload_limit, wait)

    return await calls.each(asked, prepare, send, lambda child: child.item.weight)


async def _send(
    conn: Connection, asked: Sequence[ChildToSubmit], items: Sequence[Item], payload_limit: int, wait: bool
) -> list[FoundChild | FlowFabricError]:
    fences = calls.fence_columns([child.fence for child in asked])
    is_mapped = any(child.map is not None for child in asked)
    answered = await call.rows(
        conn,
        "submit_children",
        parent_partitions=fences.pop("partitions"),
        parents=fences.pop("ids"),
        **fences,
        parent_flows=None if wait else calls.flows_of([child.fence for child in asked]),
        names=[child.name for child in asked],
        occurrences=[child.occurrence for child in asked],
        endings=[child.on_parent_end for child in asked],
        **submissions.arguments(items),
        payload_limit=payload_limit,
        wait=wait,
        maps=[child.map and child.map.id for child in asked] if is_mapped else None,
        max_running=[child.map and child.map.max_running for child in asked] if is_mapped else None,
    )
    return calls.read_answers(answered, FoundChild)
