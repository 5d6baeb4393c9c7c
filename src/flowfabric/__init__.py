"""FlowFabric: durable execution for Python on Postgres alone."""

from flowfabric.app import App
from flowfabric.app.executions import Execution, ExecutionCancelled, ExecutionExpired, ExecutionFailed, ExecutionSkipped
from flowfabric.app.flows import Flow, FlowHandle, Node
from flowfabric.app.tasks import Step, Task
from flowfabric.blocking import Blocking
from flowfabric.errors import (
    BudgetExhausted,
    Conflict,
    Fenced,
    FlowFabricError,
    Forbidden,
    Invalid,
    Limited,
    NotFound,
    Unavailable,
)
from flowfabric.handler.approvals import Verdict
from flowfabric.handler.budgets import Reservation
from flowfabric.handler.children import Child, ChildFailed
from flowfabric.handler.context import Context
from flowfabric.handler.metering import metered
from flowfabric.handler.retries import PermanentError
from flowfabric.handler.waits import First, Waiting
from flowfabric.ids import ExecutionId
from flowfabric.model import Signal, Suspension, Usage

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
    "PermanentError",
    "FlowFabricError",
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
