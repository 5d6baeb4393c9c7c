"""Set-based calls: arrays in, one answer per item out, and every refusal back to the item it belongs to."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple, TypeVar

import msgspec

from flowfabric import db
from flowfabric.db import Connection, Row
from flowfabric.errors import InvalidText, InvalidTime, Refusal
from flowfabric.ids import ExecutionId, check_text, shown
from flowfabric.model import Fence, Swept

T = TypeVar("T")
Item = TypeVar("Item")
I = TypeVar("I")  # noqa: E741 - what a caller gives, one item of it

MOST_ITEMS = 1_000
MOST_BYTES = 8 * 1_048_576


class Act(NamedTuple):
    """What one item of a call does under its lease: the item's value for each array, by the array's name."""

    fence: Fence
    values: Mapping[str, object] = {}
    weight: int = 0


def only(answers: Sequence[T | Refusal]) -> T:
    """The answer of a batch of one; raises it when it is a refusal."""
    [answer] = answers
    if isinstance(answer, Refusal):
        raise answer
    return answer


async def each_fenced(
    conn: Connection,
    function: str,
    items: Sequence[I],
    read: Callable[[I], Act],
    answer: type[T],
    /,
    **arguments: object,
) -> list[T | Refusal]:
    """Call a function that acts under leases, and answer each item in its place.

    An item that `read` refuses is not sent and harms no other. Up to 1 000 items or 8 MiB go in one statement.
    """
    answers: list[T | Refusal] = []
    for chunk in _chunks([_read(read, item) for item in items]):
        acts = [act for act in chunk if isinstance(act, Act)]
        answered = iter(await _send(conn, function, acts, answer, arguments) if acts else ())
        answers += [next(answered) if isinstance(act, Act) else act for act in chunk]
    return answers


async def each(
    items: Sequence[Item],
    checked: Callable[[Item], Item],
    send: Callable[[Sequence[Item]], Awaitable[Sequence[T | Refusal]]],
) -> list[T | Refusal]:
    """Send the items that are good, and answer each in its place: those that are not with their own refusal."""
    answers: dict[int, T | Refusal] = {}
    good: dict[int, Item] = {}
    for number, item in enumerate(items):
        try:
            good[number] = checked(item)
        except Refusal as refused:
            answers[number] = refused
    if good:
        answers.update(zip(good, await send(list(good.values())), strict=True))
    return [answers[number] for number in range(len(items))]


def read_answers(answered: Sequence[Row], answer: type[T]) -> list[T | Refusal]:
    """The answers of a set-based function, in the order of its items."""
    return [_answer(row, answer) for row in sorted(answered, key=lambda row: int(row["item"]))]


async def sweep(conn: Connection, function: str, /, limit: int, passing: int, **arguments: object) -> Swept:
    """Run one pass of a sweep over at most `limit` rows, passing over the first few."""
    swept = await db.row(conn, function, take=limit, passing=passing, **arguments)
    return Swept(moved=swept["moved"], lanes=swept["lanes"] or (), ended=swept["ended"] or ())


def about(execution_id: ExecutionId) -> dict[str, object]:
    """The arguments that name an execution."""
    return {"partition": execution_id.partition, "id": execution_id.uuid}


def under(fence: Fence) -> dict[str, object]:
    """The arguments of a single call under a lease."""
    return {**about(fence.execution_id), "lease_id": fence.lease_id, "epoch": fence.epoch, "attempt": fence.attempt}


def json_text(value: object, what: str) -> str:
    """A value as JSON text that Postgres can store."""
    text = msgspec.json.encode(value).decode()
    if "\\u0000" in text:
        raise InvalidText(f"{what} holds U+0000; remove it")
    return text


def words(given: object, what: str) -> str:
    """A set of words as JSON text; SQL says what is wrong with it, save what Postgres cannot even store."""
    if not isinstance(given, Collection) or isinstance(given, str | bytes | Mapping):
        return '"not a list"'
    return msgspec.json.encode([check_text(word, what) if isinstance(word, str) else None for word in given]).decode()


def span(given: timedelta | None, what: str) -> int | None:
    """Whole milliseconds. Raises `InvalidTime` for anything but a span."""
    if given is None or isinstance(given, timedelta):
        return None if given is None else given // timedelta(milliseconds=1)
    raise InvalidTime(f"{what} {shown(str(given))} is no span of time; give a timedelta")


def span_or_moment(given: timedelta | datetime | None, what: str) -> tuple[int | None, datetime | None]:
    """Whole milliseconds for a span, a moment as it is: Postgres has its own clock. Raises `InvalidTime`."""
    match given:
        case datetime() if given.utcoffset() is None:
            raise InvalidTime(f"{what} {given} has no time zone; give one, such as datetime.now(UTC)")
        case datetime():
            try:
                return None, given.astimezone(UTC)
            except OverflowError:
                raise InvalidTime(f"{what} {given} is no moment in UTC; give one at most ten years ahead") from None
        case None | timedelta():
            return span(given, what), None
        case _:
            raise InvalidTime(f"{what} {shown(str(given))} is no time; give a timedelta or a datetime")


def _read(read: Callable[[I], Act], item: I) -> Act | Refusal:
    try:
        return read(item)
    except Refusal as refused:
        return refused


def _chunks(acts: Sequence[Act | Refusal]) -> Iterator[Sequence[Act | Refusal]]:
    """Runs of at most so many items and bytes; an item over that goes alone."""
    starts, size = [0], 0
    for number, act in enumerate(acts):
        weight = act.weight if isinstance(act, Act) else 0
        if number - starts[-1] == MOST_ITEMS or (size + weight > MOST_BYTES and number > starts[-1]):
            starts.append(number)
            size = 0
        size += weight
    for start, end in pairwise([*starts, len(acts)]):
        yield acts[start:end]


async def _send(
    conn: Connection, function: str, acts: Sequence[Act], answer: type[T], arguments: Mapping[str, object]
) -> list[T | Refusal]:
    fences = [act.fence for act in acts]
    answered = await db.rows(
        conn,
        function,
        partitions=[_known(fence.execution_id.partition, 31) for fence in fences],
        ids=[fence.execution_id.uuid for fence in fences],
        lease_ids=[fence.lease_id for fence in fences],
        epochs=[_known(fence.epoch, 63) for fence in fences],
        attempts=[_known(fence.attempt, 31) for fence in fences],
        **{name: [act.values[name] for act in acts] for name in acts[0].values},
        **arguments,
    )
    in_order = sorted(answered, key=lambda row: int(row["item"]))
    return [_answer(row, answer) for row, _ in zip(in_order, acts, strict=True)]


def _known(number: int | None, bits: int) -> int | None:
    """A number as Postgres holds it: one that is too large for that was never given out, and -1 is not either."""
    return number if number is None or 0 <= number < 1 << bits else -1


def _answer(row: Row, answer: type[T]) -> T | Refusal:
    if row["refusal"] is not None:
        return db.refusal(row["refusal"], row["detail"])
    detail = msgspec.json.decode(row["detail"], type=dict[str, object]) if row["detail"] else {}
    return msgspec.convert({"outcome": row["outcome"], **detail}, answer)
