"""The runtime: what a context asks of the worker that runs its handler. Every call is made under the run's lease."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from flowfabric.errors import FlowFabricError
from flowfabric.handler.journal import Place
from flowfabric.ids import ExecutionId
from flowfabric.model import Appended, Claim, CreatedWaitpoint, FrameToAppend, Reserved, Settled, Usage, UsageReport
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app.tasks import ChildCall, Task

Amounts = Mapping[str, int]


class RunningStep(Protocol):
    """A step that runs."""

    place: Place

    @property
    def elapsed(self) -> timedelta: ...


class Runtime(Protocol):
    """Implemented by the worker, and by nothing else in this package."""

    async def clock(self) -> datetime: ...
    def run_step(self, claim: Claim, place: Place) -> AbstractContextManager[RunningStep]: ...
    async def save_step(self, claim: Claim, step: RunningStep, result: bytes) -> bytes: ...
    async def call_in_thread(self, claim: Claim, name: str, function: Callable[[], Any]) -> Any: ...
    async def run_transaction(
        self, claim: Claim, step: RunningStep, write: Callable[[Connection], Awaitable[bytes]]
    ) -> bytes: ...
    async def append_frames(
        self, claim: Claim, frames: Sequence[FrameToAppend]
    ) -> Sequence[Appended | FlowFabricError]: ...
    async def create_waitpoint(self, claim: Claim, key: str, expires_in: timedelta) -> CreatedWaitpoint: ...
    def read_call(
        self, task: "Task[..., Any] | str", args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> "ChildCall": ...
    async def submit_child(self, claim: Claim, name: str, occurrence: int, asked: "ChildCall") -> ExecutionId: ...
    async def report_usage(self, claim: Claim, report: UsageReport) -> Usage: ...
    async def reserve(self, claim: Claim, budget: str, estimate: Amounts, ttl: timedelta, key: str) -> Reserved: ...
    async def settle(self, claim: Claim, reservation_id: UUID, actual: Amounts, place: Place | None) -> Settled: ...
    async def release(self, claim: Claim, reservation_id: UUID) -> None: ...
