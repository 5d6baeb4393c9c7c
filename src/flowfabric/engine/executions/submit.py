"""Submitting: one piece of work or thousands, in a transaction of our own or of the caller's."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter

import msgspec

from flowfabric import calls, ids
from flowfabric.calls import submissions
from flowfabric.calls.submissions import PAYLOAD_LIMIT, Item
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId
from flowfabric.model import PublicState, Submission, SubmitOutcome, Submitted
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row

CREATED = SubmitOutcome.CREATED


async def submit(
    conn: Connection, submission: Submission, *, partitions: int = 256, payload_limit: int = PAYLOAD_LIMIT
) -> Submitted:
    """Take one piece of work in. On a connection of the caller's it joins the transaction open there.

    Safe to repeat with an `execution_id` or a `key`: that answers `DUPLICATE` with the first one's id. Raises the
    refusal, of the families `Invalid`, `NotFound` and `Conflict`.
    """
    return calls.only(await submit_many(conn, [submission], partitions=partitions, payload_limit=payload_limit))


async def submit_many(
    conn: Connection,
    asked: Sequence[Submission],
    *,
    partitions: int = 256,
    payload_limit: int = PAYLOAD_LIMIT,
    counted_from: datetime | None = None,
    minted: Iterable[ExecutionId] | None = None,
) -> list[Submitted | FlowFabricError]:
    """Take many pieces of work in, as if one after the other, and answer each in its place.

    One that is refused harms no other. Up to 1 000 items or 8 MiB go in one statement; outside a transaction of the
    caller's each statement commits by itself. Ages, and so turns, are counted from now unless another moment is given.
    `minted` has an id for each that brings none of its own: with the same ones the call may be repeated.
    """
    texts: dict[int, str] = {}
    fresh = iter(minted or ids.mint_execution_ids(sum(each.execution_id is None for each in asked), partitions))
    return await calls.each(
        asked,
        lambda submission: submissions.prepare(submission, texts, fresh, partitions, payload_limit),
        lambda items: _send(conn, items, partitions, payload_limit, counted_from),
        attrgetter("weight"),
    )


async def _send(
    conn: Connection, items: Sequence[Item], partitions: int, payload_limit: int, counted_from: datetime | None
) -> list[Submitted | FlowFabricError]:
    answered = await call.rows(
        conn, "submit", **submissions.arguments(items), payload_limit=payload_limit, counted_from=counted_from
    )
    return [_answer(row, item, partitions) for row, item in zip(answered, items, strict=True)]


def _answer(row: Row, item: Item, partitions: int) -> Submitted | FlowFabricError:
    outcome = row["outcome"]
    if outcome == "created":
        return Submitted(CREATED, item.execution_id, _public_state(row["detail"]))
    if outcome is None:
        return call.refusal(row["refusal"], row["detail"])
    first = msgspec.json.decode(row["detail"], type=dict[str, str])["execution_id"]
    return Submitted(SubmitOutcome.DUPLICATE, ids.parse_execution_id(first, partitions))


@cache
def _public_state(detail: str) -> PublicState:
    return PublicState(msgspec.json.decode(detail, type=dict[str, str])["public_state"])
