"""Submitting: one piece of work or thousands, in a transaction of our own or of the caller's."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TypeVar

import msgspec

from flowfabric import db, ids
from flowfabric.db import Connection
from flowfabric.errors import InvalidTime, Refusal
from flowfabric.ids import ExecutionId, check_text
from flowfabric.model import PublicState, Submission, SubmitOutcome, Submitted, Terms

T = TypeVar("T")

MOST_ITEMS = 1_000
MOST_BYTES = 8 * 2**20
PAYLOAD_LIMIT = 1_048_576


class _Item(msgspec.Struct, frozen=True):
    """A submission as it is sent: checked for what Postgres would refuse the whole batch for."""

    terms: str
    execution_id: ExecutionId
    payload: bytes | None
    key: str | None
    key_partition: int | None
    priority: int
    delay_ms: int | None
    delay_until: datetime | None
    deadline_ms: int | None
    deadline_at: datetime | None
    tags: str | None


async def submit(
    conn: Connection, submission: Submission, *, partitions: int = 256, payload_limit: int = PAYLOAD_LIMIT
) -> Submitted:
    """Take one piece of work in. On a connection of the caller's it joins the transaction open there.

    Safe to repeat with an `execution_id` or a `key`: that answers `DUPLICATE` with the first one's id. Raises the
    refusal, of the families `Invalid`, `NotFound` and `Conflict`.
    """
    [answer] = await submit_many(conn, [submission], partitions=partitions, payload_limit=payload_limit)
    if isinstance(answer, Refusal):
        raise answer
    return answer


async def submit_many(
    conn: Connection, submissions: Sequence[Submission], *, partitions: int = 256, payload_limit: int = PAYLOAD_LIMIT
) -> list[Submitted | Refusal]:
    """Take many pieces of work in, as if one after the other, and answer each in its place.

    One that is refused harms no other. Up to 1 000 items or 8 MiB go in one statement.
    """
    prepared = _prepare_all(submissions, partitions)
    answers: list[Submitted | Refusal] = []
    for chunk in _chunks(prepared):
        answers += await _send(conn, chunk, payload_limit)
    return answers


def _prepare_all(submissions: Sequence[Submission], partitions: int) -> list[_Item | Refusal]:
    texts: dict[int, str] = {}
    prepared: list[_Item | Refusal] = []
    for submission in submissions:
        try:
            prepared.append(_prepare(submission, texts, partitions))
        except Refusal as refused:
            prepared.append(refused)
    return prepared


def _prepare(submission: Submission, texts: dict[int, str], partitions: int) -> _Item:
    terms, key = submission.terms, submission.key or None
    text = texts.get(id(terms))
    if text is None:
        text = texts[id(terms)] = _terms_text(terms)
    delay_ms, delay_until = _span_or_moment(submission.delay, "delay")
    deadline_ms, deadline_at = _span_or_moment(submission.deadline, "deadline")
    return _Item(
        terms=text,
        execution_id=_execution_id(submission.execution_id, partitions),
        payload=submission.payload,
        key=key,
        key_partition=key and ids.idempotency_partition(terms.namespace, key, partitions),
        priority=min(max(submission.priority, 0), 9_000),
        delay_ms=delay_ms,
        delay_until=delay_until,
        deadline_ms=deadline_ms,
        deadline_at=deadline_at,
        tags=_tags_text(submission.tags) if submission.tags else None,
    )


def _terms_text(terms: Terms) -> str:
    for text in _texts(msgspec.to_builtins(terms)):
        check_text(text, "text")
    return msgspec.json.encode(terms).decode()


def _texts(value: object) -> Iterator[str]:
    """Every text inside a JSON value, keys included."""
    match value:
        case str():
            yield value
        case Mapping():
            for name, part in value.items():
                yield from _texts(name)
                yield from _texts(part)
        case list() | tuple():
            for part in value:
                yield from _texts(part)


def _tags_text(tags: Mapping[str, str]) -> str:
    for text in _texts(tags):
        check_text(text, "tag")
    return msgspec.json.encode(tags).decode()


def _execution_id(given: ExecutionId | str | None, partitions: int) -> ExecutionId:
    if given is None:
        return ids.mint_execution_id(partitions)
    return ids.parse_execution_id(str(given), partitions)


def _span_or_moment(given: timedelta | datetime | None, what: str) -> tuple[int | None, datetime | None]:
    match given:
        case None:
            return None, None
        case timedelta():
            return given // timedelta(milliseconds=1), None
        case datetime(tzinfo=None):
            raise InvalidTime(f"{what} {given} has no time zone; give one, such as datetime.now(UTC)")
        case datetime():
            return None, given


def _chunks(prepared: Sequence[_Item | Refusal]) -> Iterator[Sequence[_Item | Refusal]]:
    """Runs of at most 1 000 items and 8 MiB; an item over that goes alone."""
    starts, size = [0], 0
    for number, item in enumerate(prepared):
        weight = 0 if isinstance(item, Refusal) else len(item.payload or b"")
        if number - starts[-1] == MOST_ITEMS or (size + weight > MOST_BYTES and number > starts[-1]):
            starts.append(number)
            size = 0
        size += weight
    for start, end in pairwise([*starts, len(prepared)]):
        yield prepared[start:end]


async def _send(conn: Connection, chunk: Sequence[_Item | Refusal], payload_limit: int) -> list[Submitted | Refusal]:
    items = [item for item in chunk if not isinstance(item, Refusal)]
    if not items:
        return [item for item in chunk if isinstance(item, Refusal)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(item.terms for item in items), 1)}
    answered = await db.rows(
        conn,
        "submit",
        terms=list(numbers),
        term_of=[numbers[item.terms] for item in items],
        partitions=[item.execution_id.partition for item in items],
        ids=[item.execution_id.uuid for item in items],
        payload_limit=payload_limit,
        payloads=_column([item.payload for item in items]),
        keys=_column([item.key for item in items]),
        key_partitions=_column([item.key_partition for item in items]),
        priorities=[item.priority for item in items],
        delays_ms=_column([item.delay_ms for item in items]),
        delays_until=_column([item.delay_until for item in items]),
        deadlines_ms=_column([item.deadline_ms for item in items]),
        deadlines_at=_column([item.deadline_at for item in items]),
        tags=_column([item.tags for item in items]),
    )
    answers = iter([_answer(row, item) for row, item in zip(answered, items, strict=True)])
    return [item if isinstance(item, Refusal) else next(answers) for item in chunk]


def _column(values: list[T | None]) -> list[T | None] | None:
    """A column nobody uses is not sent."""
    return values if any(value is not None for value in values) else None


def _answer(row: db.Row, item: _Item) -> Submitted | Refusal:
    if row["refusal"] is not None:
        return db.refusal(row["refusal"], row["detail"])
    detail = msgspec.json.decode(row["detail"], type=dict[str, str])
    if row["outcome"] == SubmitOutcome.DUPLICATE:
        return Submitted(SubmitOutcome.DUPLICATE, ids.parse_execution_id(detail["execution_id"]))
    return Submitted(SubmitOutcome.CREATED, item.execution_id, PublicState(detail["public_state"]))
