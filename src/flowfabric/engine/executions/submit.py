"""Submit: create executions, one or many, also inside the caller's transaction."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter

from flowfabric import calls, ids
from flowfabric.calls import submissions
from flowfabric.calls.submissions import PAYLOAD_LIMIT, Item
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId
from flowfabric.model import Submission, Submitted
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def submit(conn: Connection, submission: Submission, *, payload_limit: int = PAYLOAD_LIMIT) -> Submitted:
    """Create an execution. Joins the transaction that is open on `conn`.

    Safe to repeat with an `execution_id` or a `key`: returns `DUPLICATE` with the first execution's id. Raises errors
    of the families `Invalid`, `NotFound` and `Conflict`.
    """
    return calls.only(await submit_many(conn, [submission], payload_limit=payload_limit))


async def submit_many(
    conn: Connection,
    asked: Sequence[Submission],
    *,
    payload_limit: int = PAYLOAD_LIMIT,
    counted_from: datetime | None = None,
    minted: Iterable[ExecutionId] | None = None,
    wait: bool = True,
) -> list[Submitted | FlowFabricError]:
    """Create many executions, as if one after the other, and return one result per item, in order.

    A refused item does not affect the others. One statement carries up to 1,000 items or 8 MiB; outside a transaction
    each statement commits separately. `counted_from` is the first item's `created_at`, by default now. `minted`
    provides an id for each item without one: a call with the same ids can be repeated. Without `wait`, a statement
    raises `RowLocked` if another transaction keeps a row locked that it needs, such as an idempotency key.
    """
    texts: dict[int, str] = {}
    fresh = iter(minted or ids.mint_execution_ids(sum(each.execution_id is None for each in asked)))
    return await calls.each(
        asked,
        lambda submission: submissions.prepare(submission, texts, fresh, payload_limit),
        lambda items: _send(conn, items, payload_limit=payload_limit, counted_from=counted_from, wait=wait),
        attrgetter("weight"),
    )


async def _send(conn: Connection, items: Sequence[Item], **arguments: object) -> list[Submitted | FlowFabricError]:
    answered = await call.rows(conn, "submit", **submissions.arguments(items), **arguments)
    return submissions.answers(answered, items)
