"""Operations that also claim: a process that runs a worker leases what it submits or resumes in the same call."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from flowfabric import calls, ids
from flowfabric.calls import submissions
from flowfabric.calls.submissions import PAYLOAD_LIMIT, Item
from flowfabric.engine.claims.claim import read_claim
from flowfabric.errors import FlowFabricError, InvalidLimit
from flowfabric.ids import ExecutionId, check_filter, check_text
from flowfabric.model import Claim, Delivered, SignalToSend, Slots, Submission, Submitted
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row


async def submit_and_claim(
    conn: Connection,
    asked: Sequence[Submission],
    slots: Slots,
    *,
    payload_limit: int = PAYLOAD_LIMIT,
    counted_from: datetime | None = None,
    minted: Iterable[ExecutionId] | None = None,
    wait: bool = True,
) -> tuple[list[Submitted | FlowFabricError], list[Claim]]:
    """Submit as `submit_many` does, and claim as many as were created, as far as the worker has free slots.

    The claim is part of the same transaction, and an ordinary one: by priority, in turns, and within budgets and
    quotas, so it may return other executions than those submitted. If the reply is lost, repeat the call with the same
    `minted`, and the same slots with `repeated=True`. Of several statements only the first claims. Raises
    `InvalidWorker`, `InvalidCapabilities`, `InvalidLane`, `InvalidLease`, `InvalidLimit`.
    """
    texts: dict[int, str] = {}
    fresh = iter(minted or ids.mint_execution_ids(sum(each.execution_id is None for each in asked)))
    claimed: list[list[Claim]] = []

    async def send(items: Sequence[Item]) -> list[Submitted | FlowFabricError]:
        arguments = {"payload_limit": payload_limit, "counted_from": counted_from, "wait": wait}
        columns = submissions.arguments(items)
        rows = await call.rows(conn, "submit_and_claim", slots=_unused(slots, claimed), **columns, **arguments)
        answered, taken = _split(rows)
        claimed.append(taken)
        return submissions.answers(answered, items)

    answers = await calls.each(
        asked,
        lambda submission: submissions.prepare(submission, texts, fresh, payload_limit),
        send,
        attrgetter("weight"),
    )
    return answers, _all(claimed)


async def signal_and_claim(
    conn: Connection, signals: Sequence[SignalToSend], slots: Slots, *, wait: bool = True
) -> tuple[list[Delivered | FlowFabricError], list[Claim]]:
    """Deliver signals as `deliver_signals` does, and claim as many executions as they resume in the worker's lanes.

    The claim is like that of `submit_and_claim`. If the reply is lost, repeat the claim alone, with its request. Raises
    the errors of `claim`.
    """
    claimed: list[list[Claim]] = []

    async def send(some: Sequence[SignalToSend]) -> list[Delivered | FlowFabricError]:
        columns = calls.signal_columns(some)
        rows = await call.rows(conn, "signal_and_claim", slots=_unused(slots, claimed), **columns, wait=wait)
        answered, taken = _split(rows)
        claimed.append(taken)
        return calls.read_answers(answered, Delivered)

    answers = await calls.each(signals, calls.check_signal, send, lambda signal: len(signal.payload or b""))
    return answers, _all(claimed)


def _unused(slots: Slots, claimed: Sequence[object]) -> str:
    """The slots as JSON: none are free after the first statement, because a request is for one claim."""
    fields: dict[str, Any] = {
        "worker": check_text(slots.worker, "worker"),
        "instance": check_text(slots.instance, "instance"),
        "lanes": [check_text(lane, "lane") for lane in slots.lanes],
        "capabilities": [check_text(capability, "capability") for capability in slots.capabilities],
        "namespace": check_filter(slots.namespace, "namespace"),
        "lease_ms": calls.span(slots.lease, "lease"),
        "after_route": _whole(slots.after_route, "after_route"),
        "request": slots.request,
        "repeated": slots.repeated,
        "free": 0 if claimed else _whole(slots.free, "free"),
    }
    return msgspec.json.encode(fields).decode()


def _whole(number: object, field: str) -> int:
    """JSON has no NaN: it would become null, which is no limit."""
    if isinstance(number, int) and 0 <= number < 1 << 31:
        return number
    raise InvalidLimit(f"{field} {number!r:.82} is invalid; use a whole number, 0 or more")


def _split(rows: Sequence[Row]) -> tuple[list[Row], list[Claim]]:
    """The answers to the items, and the claims."""
    return [row for row in rows if not row["claimed"]], [read_claim(row["claimed"]) for row in rows if row["claimed"]]


def _all(claimed: Sequence[Sequence[Claim]]) -> list[Claim]:
    return [claim for some in claimed for claim in some]
