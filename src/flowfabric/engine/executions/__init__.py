"""Executions: one piece of work each, from what was asked to how it ended."""

from flowfabric.engine.executions.change import cancel, change_priority
from flowfabric.engine.executions.read import describe, explain, get_result, list_executions
from flowfabric.engine.executions.submit import submit, submit_many
from flowfabric.engine.executions.tags import get_tag, set_tag

__all__ = [
    "cancel",
    "change_priority",
    "describe",
    "explain",
    "get_result",
    "get_tag",
    "list_executions",
    "set_tag",
    "submit",
    "submit_many",
]
