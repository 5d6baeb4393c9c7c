"""Children: executions that a handler submits, and how parent and child learn of each other's end."""

from collections.abc import Sequence

from flowfabric import calls
from flowfabric.calls import Act
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId, check_text, expect_id
from flowfabric.model import ChildToSubmit, FoundChild, Swept
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def find_children(
    conn: Connection, asked: Sequence[ChildToSubmit], *, wait: bool = True
) -> list[FoundChild | FlowFabricError]:
    """Look up the children that handlers are about to submit, and lock the parents.

    Call it in a transaction: submit and adopt the `new` children in the same one. Returns per item a child or its
    refusal: `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`, `InvalidName`, `TooManySteps`. Without `wait`, this
    and every later call of the transaction raises `RowLocked` if another transaction keeps a row locked that it needs.
    """
    return await calls.each_fenced(conn, "find_children", asked, _act, FoundChild, ends=True, wait=wait)


async def adopt_children(conn: Connection, submitted: Sequence[ChildToSubmit]) -> int:
    """Link executions to the parents that submitted them, in the transaction that submitted them."""
    for child in submitted:
        expect_id(ExecutionId, child.fence.execution_id, "execution id of the fence")
        expect_id(ExecutionId, child.execution_id, "execution id")
    return int(
        await call.value(
            conn,
            "adopt_children",
            partitions=[child.fence.execution_id.partition for child in submitted],
            ids=[child.fence.execution_id.uuid for child in submitted],
            names=[child.name for child in submitted],
            occurrences=[child.occurrence for child in submitted],
            child_partitions=[child.execution_id.partition for child in submitted],
            children=[child.execution_id.uuid for child in submitted],
            endings=[child.on_parent_end for child in submitted],
        )
    )


async def deliver_child_ends(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Notify parents that children have ended, and cancel children whose parent ended but did not complete."""
    return await calls.sweep(conn, "deliver_child_ends", limit, passing)


def _act(child: ChildToSubmit) -> Act:
    values = {
        "names": check_text(child.name, "the name of a step"),
        "occurrences": child.occurrence,
        "child_partitions": expect_id(ExecutionId, child.execution_id, "execution id").partition,
        "children": child.execution_id.uuid,
    }
    return Act(child.fence, values)
