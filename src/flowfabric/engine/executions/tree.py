"""Trees: an execution with its children, their children, and so on."""

import msgspec

from flowfabric import calls
from flowfabric.ids import ExecutionId
from flowfabric.model import ExecutionTree, Summary
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def read_tree(
    conn: Connection, execution_id: ExecutionId, *, per_parent: int = 20, limit: int = 200
) -> ExecutionTree:
    """Return an execution with its children, their children, and so on, down to 20 levels.

    An execution with more than `per_parent` children has the failed ones first, then the unfinished ones; all are
    counted by state. The tree has at most `limit` executions. Raises `ExecutionNotFound`, `InvalidLimit`.
    """
    found = await call.rows(
        conn, "read_tree", **calls.about(execution_id), per_parent=call.take(per_parent), take=call.take(limit)
    )
    below: dict[int, list[ExecutionTree]] = {}
    for row in reversed(found):  # children come after their parents
        tree = ExecutionTree(
            execution=call.read(Summary, row["summary"]),
            child_count=row["child_count"],
            child_states=msgspec.json.decode(row["child_states"] or "{}"),
            children=below.pop(row["number"], [])[::-1],
        )
        below.setdefault(row["above"], []).append(tree)
    [root] = below[0]
    return root
