"""Submissions: check each one, because an invalid value would fail the whole batch, and arrange them as arrays."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from math import isfinite
from typing import TypeVar
from uuid import UUID

import msgspec

from flowfabric import calls, ids
from flowfabric.errors import FlowFabricError, InvalidBody, PayloadTooLarge
from flowfabric.ids import ExecutionId, FlowId, check_text
from flowfabric.model import Options, PublicState, Submission, SubmitOutcome, Submitted
from flowfabric.postgres import call
from flowfabric.postgres.driver import Row

T = TypeVar("T")

PAYLOAD_LIMIT = 1_048_576
CREATED = SubmitOutcome.CREATED


class Item(msgspec.Struct, frozen=True, gc=False):
    """A submission that is checked and ready to be sent."""

    options: str
    execution_id: ExecutionId
    payload: bytes | None
    key: str | None = None
    key_partition: int | None = None
    priority: int = 0
    delay_ms: int | None = None
    delay_until: datetime | None = None
    deadline_ms: int | None = None
    deadline_at: datetime | None = None
    tags: str | None = None
    flow: UUID | None = None
    weight: int = 0


def arguments(items: Sequence[Item]) -> dict[str, object]:
    """Return the arrays of a call, one value per item. Shared options are sent once; unused columns are not sent."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys([item.options for item in items]), 1)}
    return {
        "options": list(numbers),
        "options_of": [numbers[item.options] for item in items] if len(numbers) > 1 else None,
        "partitions": [item.execution_id.partition for item in items],
        "ids": [item.execution_id.uuid for item in items],
        "payloads": _column([item.payload for item in items]),
        "keys": _column([item.key for item in items]),
        "key_partitions": _column([item.key_partition for item in items]),
        "priorities": _column([item.priority or None for item in items]),
        "delays_ms": _column([item.delay_ms for item in items]),
        "delays_until": _column([item.delay_until for item in items]),
        "deadlines_ms": _column([item.deadline_ms for item in items]),
        "deadlines_at": _column([item.deadline_at for item in items]),
        "tags": _column([item.tags for item in items]),
        "flows": _column([item.flow for item in items]),
    }


def answers(rows: Iterable[Row], items: Sequence[Item]) -> list[Submitted | FlowFabricError]:
    """Read the answers to these items."""
    return [_answer(row, item) for row, item in zip(rows, items, strict=True)]


def prepare(submission: Submission, texts: dict[int, str], fresh: Iterator[ExecutionId], payload_limit: int) -> Item:
    """Prepare a submission for sending; `texts` caches encoded options, `fresh` supplies new ids."""
    options, payload = submission.options, submission.payload
    flow_id = None if submission.flow is None else ids.parse_flow_id(str(submission.flow))
    if submission.execution_id is not None:
        execution_id = _given_id(submission.execution_id, flow_id)
    else:
        execution_id = next(fresh) if flow_id is None else ids.mint_execution_id(beside=flow_id)
    text = texts.get(id(options))
    if text is None:
        text = texts[id(options)] = _json(options, "options")
    if type(payload) is bytes and _is_plain(submission) and len(payload) <= calls.MOST_BYTES:
        return Item(text, execution_id, payload, weight=len(payload))
    key = calls.expect(str, submission.key, "key")
    delay_ms, delay_until = calls.span_or_moment(submission.delay, "delay")
    deadline_ms, deadline_at = calls.span_or_moment(submission.deadline, "deadline")
    tags = _json(submission.tags, "tags") if submission.tags else None
    return Item(
        options=text,
        execution_id=execution_id,
        payload=_payload(payload, payload_limit),
        key=key,
        key_partition=None if key is None else ids.idempotency_partition(_namespace(options), key),
        priority=calls.priority(submission.priority),
        delay_ms=delay_ms,
        delay_until=delay_until,
        deadline_ms=deadline_ms,
        deadline_at=deadline_at,
        tags=tags,
        flow=None if flow_id is None else flow_id.uuid,
        weight=len(payload or b"") + len(tags or "") + len(key or ""),
    )


def _is_plain(submission: Submission) -> bool:
    """Whether a submission has no key, priority, delay, deadline, flow or tags, as most have none."""
    return (
        submission.key is None
        and type(submission.priority) is int
        and submission.priority == 0
        and submission.delay is None
        and submission.deadline is None
        and submission.flow is None
        and not submission.tags
    )


def _namespace(options: Options) -> str:
    given: str | None = calls.expect(str, options.namespace, "namespace")
    return "default" if given is None else given


def _payload(payload: bytes | None, limit: int) -> bytes | None:
    """Return the payload. SQL checks its size; only a payload too large for a statement is refused here."""
    size = len(calls.expect(bytes, payload, "payload") or b"")
    if size > max(limit, calls.MOST_BYTES):
        raise PayloadTooLarge(
            f"the payload has {size:,} bytes, more than the limit of {limit:,}; "
            "store it elsewhere and pass a reference",
            limit=limit,
        )
    return payload


def _json(value: object, field: str) -> str:
    """Encode a value as JSON that Postgres can store. Raises `InvalidText`, `InvalidBody`."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=_plain)
        for leaf in _leaves(plain):
            if isinstance(leaf, str):
                check_text(leaf, field)
            elif isinstance(leaf, float) and not isfinite(leaf):
                raise ValueError(f"JSON has no number {leaf}")
        return msgspec.json.encode(plain).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidBody(
            f"{field} cannot be written as JSON: {error}; use strings, numbers, lists and objects", field=field
        ) from None


def _plain(value: object) -> object:
    match value:
        case Mapping():
            return dict(value)
        case Collection():
            return list(value)
    raise TypeError(f"it contains a {type(value).__name__}")


def _leaves(value: object) -> Iterator[object]:
    """Yield every scalar inside a JSON value, and every key of its objects."""
    match value:
        case Mapping():
            for name, part in value.items():
                yield name
                yield from _leaves(part)
        case list() | tuple():
            for part in value:
                yield from _leaves(part)
        case _:
            yield value


def _given_id(given: ExecutionId | str, flow_id: FlowId | None) -> ExecutionId:
    if isinstance(given, ExecutionId) and isinstance(given.uuid, UUID):
        return ids.check_partition(given)
    return ids.parse_execution_id(str(given)) if flow_id is None else ids.parse_member_id(str(given), flow_id)


def _column(values: list[T | None]) -> list[T | None] | None:
    """Return a column, or `None` if no item uses it."""
    return values if values.count(None) < len(values) else None


def _answer(row: Row, item: Item) -> Submitted | FlowFabricError:
    outcome = row["outcome"]
    if outcome == "created":
        return Submitted(CREATED, item.execution_id, _public_state(row["detail"]))
    if outcome is None:
        return call.refusal(row["refusal"], row["detail"])
    first = msgspec.json.decode(row["detail"], type=dict[str, str])["execution_id"]
    return Submitted(SubmitOutcome.DUPLICATE, ids.read_execution_id(first))


@cache
def _public_state(detail: str) -> PublicState:
    return PublicState(msgspec.json.decode(detail, type=dict[str, str])["public_state"])
