"""Ids on the command line: a whole id, or its beginning if only one id begins so."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from flowfabric import ids
from flowfabric.app import App
from flowfabric.app.executions import Execution
from flowfabric.engine import executions, flows
from flowfabric.errors import ExecutionNotFound, FlowNotFound, InvalidId, NotFound
from flowfabric.ids import EntityId, ExecutionId, FlowId, shown
from flowfabric.postgres.driver import Connection

AnyId = TypeVar("AnyId", bound=EntityId)
CANDIDATES = 5


async def execution(app: App, text: str) -> Execution[Any]:
    """The execution that an id, or the beginning of one, means. Raises `InvalidId`, `ExecutionNotFound`."""
    return app.execution(await execution_id(app, text))


async def execution_id(app: App, text: str) -> ExecutionId:
    """The execution id that a text means. Raises `InvalidId`, `WrongPartition`, `ExecutionNotFound`."""
    return await _resolve(app, text, ids.parse_execution_id, executions.match_executions, ExecutionNotFound)


async def flow_id(app: App, text: str) -> FlowId:
    """The flow id that a text means. Raises `InvalidId`, `WrongPartition`, `FlowNotFound`."""
    return await _resolve(app, text, ids.parse_flow_id, flows.match_flows, FlowNotFound)


async def _resolve(
    app: App,
    text: str,
    parse: Callable[[str], AnyId],
    match: Callable[[Connection, UUID, UUID], Awaitable[Sequence[AnyId]]],
    missing: type[NotFound],
) -> AnyId:
    span = ids.read_prefix(text)
    is_whole = span is None or span[0] == span[1]
    if span is None or (is_whole and ids.is_stamped(span[0])):
        return parse(text)
    found = await app.database.run(lambda conn: match(conn, *span))
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(text, [str(each) for each in found])
    if is_whole:
        return parse(text)
    noun = missing.code.partition("_")[0]
    raise missing(f"no {noun} has an id that begins with {shown(text)}; check the id")


def _ambiguous(text: str, found: list[str]) -> InvalidId:
    candidates = found[:CANDIDATES]
    more = ", …" if len(found) > CANDIDATES else ""
    return InvalidId(
        f"id {shown(text)} is ambiguous; use more digits, or one of these: {', '.join(candidates)}{more}",
        cause="ambiguous",
        candidates=candidates,
    )
