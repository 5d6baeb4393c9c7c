"""The base of the namespaces of an app: operations of the engine on a connection of the app."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from flowfabric import payloads
from flowfabric.ids import ExecutionId, FlowId, parse_execution_id, parse_flow_id
from flowfabric.model import CancelledFlow
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app import App

T = TypeVar("T")


class Operations:
    """Runs operations of the engine, and sends the notifications that they return."""

    __slots__ = ("_app",)

    def __init__(self, app: "App") -> None:
        self._app = app

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} of {self._app!r}>"

    async def _read(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._app.database.run(operation, repeat=True)

    async def _change(
        self,
        operation: Callable[[Connection], Awaitable[T]],
        *,
        repeat: bool = True,
        about: ExecutionId | None = None,
    ) -> T:
        """Run an operation that changes something, on the execution `about` if it may end or become claimable."""
        answer = await self._app.database.run(operation, repeat=repeat)
        notify(self._app, answer, about)
        return answer


def notify(app: "App", answer: object, about: ExecutionId | None = None) -> None:
    """Notify about what an answer of the engine names: lanes with work, and executions that have ended."""
    lanes = [*getattr(answer, "lanes", ()), *filter(None, [getattr(answer, "lane", None)])]
    ended = answer.members if isinstance(answer, CancelledFlow) else getattr(answer, "ended", ())
    app.notify(lanes=lanes, ended=[*ended, *filter(None, [about])])


def to_execution_id(given: str | ExecutionId) -> ExecutionId:
    """Check or parse an execution id. Raises `InvalidId`, `WrongPartition`."""
    return given if isinstance(given, ExecutionId) else parse_execution_id(given)


def to_flow_id(given: str | FlowId) -> FlowId:
    """Check or parse a flow id. Raises `InvalidId`, `WrongPartition`."""
    return given if isinstance(given, FlowId) else parse_flow_id(given)


def encoded(value: object) -> bytes | None:
    """Encode a result or a payload; `None` is none. Raises `InvalidBody`."""
    return None if value is None else payloads.encode(value)
