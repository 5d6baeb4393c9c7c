"""Attempts: complete, fail, delay and list the runs of an execution."""

from flowfabric.engine.attempts.end import complete, complete_many, delay, delay_many, fail, fail_many
from flowfabric.engine.attempts.list import list_attempts
from flowfabric.engine.attempts.retry import time_out_attempts

__all__ = [
    "complete",
    "complete_many",
    "delay",
    "delay_many",
    "fail",
    "fail_many",
    "list_attempts",
    "time_out_attempts",
]
