"""The host: what a run asks of the worker that runs it."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from flowfabric.handler.budgets import Ledger
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, CreatedWaitpoint

if TYPE_CHECKING:
    from flowfabric.app.tasks import ChildCall, Task


class Host(Protocol):
    """Does under a lease what a handler asks its context for."""

    @property
    def spending(self) -> Ledger: ...
    async def save_step(self, claim: Claim, name: str, occurrence: int, result: bytes) -> bytes: ...
    async def create_waitpoint(self, claim: Claim, key: str, expires_in: timedelta) -> CreatedWaitpoint: ...
    async def submit_child(self, claim: Claim, name: str, occurrence: int, asked: "ChildCall") -> ExecutionId: ...
    def read_call(
        self, task: "Task[..., Any] | str", args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> "ChildCall": ...
    async def clock(self) -> datetime: ...
