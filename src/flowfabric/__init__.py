"""FlowFabric: durable execution for Python on Postgres alone."""

from flowfabric.app import App
from flowfabric.approvals import Verdict
from flowfabric.blocking import Blocking
from flowfabric.context import Context, Permanent
from flowfabric.errors import (
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    Limited,
    NotFound,
    Refusal,
    Unavailable,
)
from flowfabric.handle import Execution, ExecutionCancelled, ExecutionExpired, ExecutionFailed, ExecutionSkipped
from flowfabric.ids import ExecutionId
from flowfabric.model import Signal, Suspension
from flowfabric.task import Step, Task

__all__ = [
    "App",
    "Blocking",
    "Conflict",
    "Context",
    "Execution",
    "ExecutionCancelled",
    "ExecutionExpired",
    "ExecutionFailed",
    "ExecutionId",
    "ExecutionSkipped",
    "Fenced",
    "Forbidden",
    "Invalid",
    "Limited",
    "NotFound",
    "Permanent",
    "Refusal",
    "Signal",
    "Step",
    "Suspension",
    "Task",
    "Unavailable",
    "Verdict",
]
