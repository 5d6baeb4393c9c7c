"""The runtime: what a context asks of the worker that runs its handler. Every call is made under the run's lease."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from flowfabric.handler.journal import Place
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, CreatedWaitpoint, Reserved, Settled, Usage, UsageReport

if TYPE_CHECKING:
    from flowfabric.app.tasks import ChildCall, Task

Amounts = Mapping[str, int]


class Runtime(Protocol):
    """Implemented by the worker, and by nothing else in this package."""

    async def clock(self) -> datetime: ...
    async def save_step(self, claim: Claim, name: str, occurrence: int, result: bytes) -> bytes: ...
    async def create_waitpoint(self, claim: Claim, key: str, expires_in: timedelta) -> CreatedWaitpoint: ...
    def read_call(
        self, task: "Task[..., Any] | str", args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> "ChildCall": ...
    async def submit_child(self, claim: Claim, name: str, occurrence: int, asked: "ChildCall") -> ExecutionId: ...
    async def report_usage(self, claim: Claim, report: UsageReport) -> Usage: ...
    async def reserve(self, claim: Claim, budget: str, estimate: Amounts, ttl: timedelta, key: str) -> Reserved: ...
    async def settle(self, claim: Claim, reservation_id: UUID, actual: Amounts, place: Place | None) -> Settled: ...
    async def release(self, claim: Claim, reservation_id: UUID) -> None: ...
