"""FlowFabric: durable execution for Python on Postgres alone.

Public are the names here and in `flowfabric.engine`, `flowfabric.model`, `flowfabric.errors` and
`flowfabric.testing`. Every other module is private and may change in any release.
"""

from flowfabric.app import App
from flowfabric.app.executions import Execution
from flowfabric.app.flows import Flow, FlowHandle, Node
from flowfabric.app.steps import Step
from flowfabric.app.sync import SyncApp, SyncExecution, SyncFlow, SyncFlowHandle, SyncTask
from flowfabric.app.tasks import SubmitOptions, Task
from flowfabric.errors import (
    BudgetExhausted,
    ChildFailed,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    FlowFabricError,
    PermanentError,
)
from flowfabric.handler.approvals import Verdict
from flowfabric.handler.budgets import Reservation
from flowfabric.handler.children import Child
from flowfabric.handler.context import Context
from flowfabric.handler.logs import log_execution
from flowfabric.handler.maps import Mapped
from flowfabric.handler.metering import metered
from flowfabric.handler.streams import OutputStream
from flowfabric.handler.sync import SyncChild, SyncConnection, SyncContext, SyncOutputStream, SyncReservation
from flowfabric.handler.waits import First, Waiting
from flowfabric.ids import ExecutionId
from flowfabric.model import Signal, Suspension, Usage
from flowfabric.payloads.codecs import Codec
from flowfabric.payloads.encryption import AesGcm
from flowfabric.postgres.driver import Connection
from flowfabric.worker import Worker

__all__ = [
    "AesGcm",
    "App",
    "BudgetExhausted",
    "Child",
    "ChildFailed",
    "Codec",
    "Connection",
    "Context",
    "Execution",
    "ExecutionCancelled",
    "ExecutionExpired",
    "ExecutionFailed",
    "ExecutionId",
    "ExecutionSkipped",
    "First",
    "Flow",
    "FlowFabricError",
    "FlowHandle",
    "Mapped",
    "Node",
    "OutputStream",
    "PermanentError",
    "Reservation",
    "Signal",
    "Step",
    "SubmitOptions",
    "Suspension",
    "SyncApp",
    "SyncChild",
    "SyncConnection",
    "SyncContext",
    "SyncExecution",
    "SyncFlow",
    "SyncFlowHandle",
    "SyncOutputStream",
    "SyncReservation",
    "SyncTask",
    "Task",
    "Usage",
    "Verdict",
    "Waiting",
    "Worker",
    "log_execution",
    "metered",
]
