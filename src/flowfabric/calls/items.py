"""Set-based calls: send items as arrays, and return one answer or error per item."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

import msgspec

from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId, expect_id, read_execution_ids
from flowfabric.model import Fence, Swept
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row

T = TypeVar("T")
Item = TypeVar("Item")
Sent = TypeVar("Sent")

MOST_ITEMS = 1_000
MOST_BYTES = 8 * 1_048_576


class Act(NamedTuple):
    """One item of a call under its lease: its fence, and its value for each array, by the name of the array."""

    fence: Fence
    values: Mapping[str, object] = {}
    weight: int = 0


def only(answers: Sequence[T | FlowFabricError]) -> T:
    """Return the answer of a batch of one item, or raise it if it is an error."""
    [answer] = answers
    if isinstance(answer, FlowFabricError):
        raise answer
    return answer


async def each(
    items: Sequence[Item],
    read: Callable[[Item], Sent],
    send: Callable[[Sequence[Sent]], Awaitable[Sequence[T | FlowFabricError]]],
    weigh: Callable[[Sent], int] = lambda _: 0,
) -> list[T | FlowFabricError]:
    """Send items, at most 1,000 or 8 MiB per statement, and return their answers in the same order.

    If `read` raises an error for an item, that item is not sent and its answer is the error; the others are sent.
    """
    answers: list[T | FlowFabricError] = []
    for chunk in _chunks([_read(read, item) for item in items], weigh):
        good = [item for item in chunk if not isinstance(item, FlowFabricError)]
        answered = iter(await send(good) if good else ())
        answers += [item if isinstance(item, FlowFabricError) else next(answered) for item in chunk]
    return answers


async def each_fenced(
    conn: Connection,
    function: str,
    items: Sequence[Item],
    read: Callable[[Item], Act],
    answer: type[T],
    /,
    ends: bool = False,
    **arguments: object,
) -> list[T | FlowFabricError]:
    """Call a function that acts under leases, and return the answers in the order of the items.

    `ends` is for functions that end executions: a call that does not `wait` also sends the flow that each item was
    claimed with. One that waits lets Postgres look the flows up, because an execution may have joined one since.
    """

    def checked(item: Item) -> Act:
        act = read(item)
        expect_id(ExecutionId, act.fence.execution_id, "execution id of the fence")
        return act

    async def send(acts: Sequence[Act]) -> list[T | FlowFabricError]:
        flows = {"flows": flows_of([act.fence for act in acts])} if ends and not arguments["wait"] else {}
        return await _send(conn, function, acts, answer, {**arguments, **flows})

    return await each(items, checked, send, lambda act: act.weight)


def read_answers(answered: Sequence[Row], answer: type[T]) -> list[T | FlowFabricError]:
    """Decode the answers of a set-based function, in the order of its items."""
    return [_answer(row, answer) for row in sorted(answered, key=lambda row: int(row["item"]))]


async def sweep(conn: Connection, function: str, /, limit: int, passing: int, **arguments: object) -> Swept:
    """Run one pass of a sweep over at most `limit` rows; skip the first `passing` rows."""
    swept = await call.row(conn, function, take=limit, passing=passing, **arguments)
    return Swept(
        moved=swept["moved"],
        locked=swept.get("locked") or 0,
        lanes=swept["lanes"] or (),
        ended=read_execution_ids(swept["ended"]),
    )


def _read(read: Callable[[Item], Sent], item: Item) -> Sent | FlowFabricError:
    try:
        return read(item)
    except FlowFabricError as refused:
        return refused


def _chunks(
    items: Sequence[Sent | FlowFabricError], weigh: Callable[[Sent], int]
) -> Iterator[Sequence[Sent | FlowFabricError]]:
    """Split items into chunks of at most `MOST_ITEMS` and `MOST_BYTES`; a larger item is a chunk of its own."""
    starts, size = [0], 0
    for number, item in enumerate(items):
        weight = 0 if isinstance(item, FlowFabricError) else weigh(item)
        if number - starts[-1] == MOST_ITEMS or (size + weight > MOST_BYTES and number > starts[-1]):
            starts.append(number)
            size = 0
        size += weight
    for start, end in pairwise([*starts, len(items)]):
        yield items[start:end]


async def _send(
    conn: Connection, function: str, acts: Sequence[Act], answer: type[T], arguments: Mapping[str, object]
) -> list[T | FlowFabricError]:
    answered = await call.rows(
        conn,
        function,
        **fence_columns([act.fence for act in acts]),
        **{name: [act.values[name] for act in acts] for name in acts[0].values},
        **arguments,
    )
    in_order = sorted(answered, key=lambda row: int(row["item"]))
    return [_answer(row, answer) for row, _ in zip(in_order, acts, strict=True)]


def fence_columns(fences: Sequence[Fence]) -> dict[str, object]:
    """Return the fences of a call as arrays."""
    return {
        "partitions": [_in_range(fence.execution_id.partition, 31) for fence in fences],
        "ids": [fence.execution_id.uuid for fence in fences],
        "lease_ids": [fence.lease_id for fence in fences],
        "epochs": [_in_range(fence.epoch, 63) for fence in fences],
        "attempts": [_in_range(fence.attempt, 31) for fence in fences],
    }


def flows_of(fences: Sequence[Fence]) -> list[UUID | None]:
    """Return the flow of each item; an empty list if no item has one, which saves the engine a lookup."""
    flows = [fence.flow for fence in fences]
    return flows if any(flows) else []


def _in_range(number: int | None, bits: int) -> int | None:
    """Replace a number that is out of range for its column by -1, which matches no row either."""
    return number if number is None or 0 <= number < 1 << bits else -1


def _answer(row: Row, answer: type[T]) -> T | FlowFabricError:
    if row["refusal"] is not None:
        return call.refusal(row["refusal"], row["detail"])
    return read_answer(answer, row["detail"] or "{}", outcome=row["outcome"])


def read_answer(answer: type[T], text: str, **fields: object) -> T:
    """Decode a JSON answer as a type; `ended` is the text of execution ids."""
    fields |= msgspec.json.decode(text, type=dict[str, Any])
    if "ended" in fields:
        fields["ended"] = read_execution_ids(cast("Sequence[str]", fields["ended"]))
    return msgspec.convert(fields, answer)
