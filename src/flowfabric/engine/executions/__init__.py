"""Executions: submit, read, change, replay and remove units of work."""

from flowfabric.engine.executions.change import cancel, change_priority
from flowfabric.engine.executions.deadlines import expire_executions, promote_due
from flowfabric.engine.executions.match import match_executions
from flowfabric.engine.executions.override import override
from flowfabric.engine.executions.read import (
    describe,
    explain,
    get_result,
    get_result_many,
    list_ended,
    list_executions,
)
from flowfabric.engine.executions.replay import replay
from flowfabric.engine.executions.retention import remove_ended, remove_idempotency_keys
from flowfabric.engine.executions.submit import submit, submit_many
from flowfabric.engine.executions.tags import get_tag, set_tag
from flowfabric.engine.executions.tree import read_tree

__all__ = [
    "cancel",
    "change_priority",
    "describe",
    "expire_executions",
    "explain",
    "get_result",
    "get_result_many",
    "get_tag",
    "list_ended",
    "list_executions",
    "match_executions",
    "override",
    "promote_due",
    "read_tree",
    "remove_ended",
    "remove_idempotency_keys",
    "replay",
    "set_tag",
    "submit",
    "submit_many",
]
