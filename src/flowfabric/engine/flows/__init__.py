"""Flows: executions with dependencies between them."""

from flowfabric.engine.flows.build import add_execution, create_flow
from flowfabric.engine.flows.cancel import cancel_flow
from flowfabric.engine.flows.edges import add_edge, set_edge_group
from flowfabric.engine.flows.inputs import read_inputs
from flowfabric.engine.flows.match import match_flows
from flowfabric.engine.flows.read import describe_flow, list_flows, set_flow_tag
from flowfabric.engine.flows.submit import submit_flow

__all__ = [
    "add_edge",
    "add_execution",
    "cancel_flow",
    "create_flow",
    "describe_flow",
    "list_flows",
    "match_flows",
    "read_inputs",
    "set_edge_group",
    "set_flow_tag",
    "submit_flow",
]
