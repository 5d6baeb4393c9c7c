"""FlowFabric: durable execution for Python on Postgres alone."""

from flowfabric.app import App
from flowfabric.approvals import Verdict
from flowfabric.blocking import Blocking
from flowfabric.children import Child, ChildFailed
from flowfabric.context import Context
from flowfabric.errors import (
    BudgetExhausted,
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    Limited,
    NotFound,
    Refusal,
    Unavailable,
)
from flowfabric.flow import Flow, FlowHandle, Node
from flowfabric.handle import Execution, ExecutionCancelled, ExecutionExpired, ExecutionFailed, ExecutionSkipped
from flowfabric.ids import ExecutionId
from flowfabric.metering import metered
from flowfabric.model import Signal, Suspension, Usage
from flowfabric.spending import Reservation
from flowfabric.task import Step, Task
from flowfabric.tries import Permanent
from flowfabric.waiting import First, Waiting

__all__ = [
    "App",
    "Blocking",
    "BudgetExhausted",
    "Child",
    "ChildFailed",
    "Conflict",
    "Context",
    "Execution",
    "ExecutionCancelled",
    "ExecutionExpired",
    "ExecutionFailed",
    "ExecutionId",
    "ExecutionSkipped",
    "Fenced",
    "First",
    "Flow",
    "FlowHandle",
    "Forbidden",
    "Invalid",
    "Limited",
    "Node",
    "NotFound",
    "Permanent",
    "Refusal",
    "Reservation",
    "Signal",
    "Step",
    "Suspension",
    "Task",
    "Unavailable",
    "Usage",
    "Verdict",
    "Waiting",
    "metered",
]
