"""Maps: a task submitted once per item, and the wait for all of its children together."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from msgspec.structs import replace

from flowfabric.errors import ChildFailed, InvalidBody, TooManySteps
from flowfabric.handler.children import read_end
from flowfabric.handler.journal import Place
from flowfabric.handler.runtime import Runtime
from flowfabric.handler.steps import Steps
from flowfabric.handler.waits import Lazy, Waiting
from flowfabric.ids import ExecutionId
from flowfabric.model import ChildMap, Wish

if TYPE_CHECKING:
    from flowfabric.app.tasks import ChildCall, SubmitOptions, Task

R = TypeVar("R")

MOST_ITEMS = 10_000


class Mapped(Lazy[list[R]]):
    """What `ctx.map` returns, to be awaited once: alone, under `asyncio.gather`, or in `ctx.all_settled`."""

    def __init__(self, task: str, collect: Callable[[bool], Coroutine[Any, Any, list[Any]]]) -> None:
        super().__init__(lambda: collect(False))
        self._task = task
        self._collect = collect

    def __repr__(self) -> str:
        return f"<map of {self._task}>"

    async def settled(self) -> list[R | ChildFailed]:
        """Wait for all children, and return a `ChildFailed` for each that failed."""
        return await self._collect(True)


class Family(NamedTuple):
    """The children of one map, each at its place in the journal."""

    steps: Steps
    ask: Callable[[str, str], Place]
    calls: Sequence["ChildCall"]
    places: Sequence[Place]

    async def collect(self, settle: bool) -> list[Any]:
        """Submit the children, wait for them, and return their results in order.

        Raises the first failure, or with `settle` returns each in its place.
        """
        children = await self._submit()
        places = [self.ask("wait", f"child:{child}") for child in children]
        outcomes: list[Any] = []
        failed: list[tuple[datetime | None, int, ChildFailed]] = []
        wishes: list[Wish] = []
        for number, (child, place) in enumerate(zip(children, places, strict=True)):
            if place.entry is None:
                wishes.append(Wish(name=place.name, occurrence=place.occurrence, what=child))
                continue
            self.steps.output.pass_entry(place)
            outcome = self._outcome(number, child, place.entry.signals)
            outcomes.append(outcome)
            if isinstance(outcome, ChildFailed):
                failed.append((place.entry.ended_at, number, outcome))
        if failed and not settle:
            raise min(failed)[2]  # the first in time, so that every later run sees the same one
        if wishes:
            await self.steps.leaving.unwind_for_all(wishes)
        return outcomes

    async def _submit(self) -> list[ExecutionId]:
        submissions = (self.steps.submit(place, call) for place, call in zip(self.places, self.calls, strict=True))
        children = await asyncio.gather(*submissions, return_exceptions=True)
        for child in children:
            if isinstance(child, BaseException):
                raise child
        return [child for child in children if isinstance(child, ExecutionId)]

    def _outcome(self, number: int, child: ExecutionId, signals: Sequence[Any]) -> Any:
        try:
            return read_end(child, signals, self.calls[number].returns)
        except ChildFailed as failed:
            message = f"items[{number}]: {failed.message}"
            return ChildFailed(message, failed.execution_id, failed.state, failed.failure)


async def settle(waits: Sequence[Waiting[Any] | Mapped[Any]]) -> list[Any]:
    """Return the outcomes of a map, or of several waits. Raises `TypeError` for a map beside others."""
    if len(waits) == 1 and isinstance(waits[0], Mapped):
        return await waits[0].settled()
    if strange := [wait for wait in waits if not isinstance(wait, Waiting)]:
        raise TypeError(f"all_settled got {strange[0]!r}; use one map, or waits such as child.result()")

    async def outcome(wait: Waiting[Any]) -> Any:
        try:
            return await wait
        except ChildFailed as failed:
            return failed

    return await asyncio.gather(*(outcome(wait) for wait in waits if isinstance(wait, Waiting)))


def read_calls(
    runtime: Runtime,
    task: "Task[..., Any] | str",
    items: Iterable[Any],
    options: "SubmitOptions | None",
    returns: Any,
) -> list["ChildCall"]:
    """Build a child for each item: the argument of a task, or for a task given by name, its arguments by name.

    Raises `TooManySteps`, and `InvalidBody` or `TypeError` for an item that does not fit the task.
    """
    given = list(items)
    if len(given) > MOST_ITEMS:
        raise TooManySteps(
            f"ctx.map got {len(given):,} items; use at most {MOST_ITEMS:,}, the steps that one execution can have, or "
            "let each item stand for several"
        )
    return [_read_call(runtime, task, number, item, options, returns) for number, item in enumerate(given)]


def _read_call(
    runtime: Runtime,
    task: "Task[..., Any] | str",
    number: int,
    item: Any,
    options: "SubmitOptions | None",
    returns: Any,
) -> "ChildCall":
    try:
        if not isinstance(task, str):
            return runtime.read_call(task, (item,), {})
        if not isinstance(item, Mapping) or "returns" in item:
            raise TypeError(f"use the arguments of {task} by name, as in {{'topic': 'tides'}}, without returns")
        known = {} if returns is None else {"returns": returns}
        return runtime.read_call(task, (options,), {**item, **known})
    except InvalidBody as refused:
        raise InvalidBody(f"items[{number}] of ctx.map: {refused.message}", field=refused.fields.get("field")) from None
    except TypeError as error:
        raise TypeError(f"items[{number}] of ctx.map: {error}") from None


def bounded(calls: Sequence["ChildCall"], places: Sequence[Place], parent: ExecutionId, most: int | None) -> Any:
    """Put the children into a map, if fewer of them may run at once than there are. Raises `ValueError`."""
    if most is not None and (type(most) is not int or most < 1):
        raise ValueError(f"max_running {most!r} is invalid; use 1 or more, or leave it out to run all at once")
    if most is None or most >= len(calls):
        return calls
    hashed = hashlib.sha256(f"map\0{parent.wire}\0{places[0].name}\0{places[0].occurrence}".encode()).digest()
    mapped = ChildMap(UUID(bytes=hashed[:16]), most)
    return [replace(call, map=mapped) for call in calls]
