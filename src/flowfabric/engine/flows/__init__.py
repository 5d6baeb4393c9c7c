"""Flows: executions with dependencies between them."""

from flowfabric.engine.flows.build import add_execution, create_flow
from flowfabric.engine.flows.cancel import cancel_flow
from flowfabric.engine.flows.edges import add_edge, set_edge_group

__all__ = [
    "add_edge",
    "add_execution",
    "cancel_flow",
    "create_flow",
    "set_edge_group",
]
