"""Logs: a filter that adds the execution to the records of its handler."""

import logging
from contextvars import ContextVar

from flowfabric.model import Claim

running: ContextVar[Claim] = ContextVar("running")


def log_execution(record: logging.LogRecord) -> bool:
    """Add `execution_id`, `task` and `attempt` to a log record of a handler: a filter for `logging`.

    Also in steps, threads and asyncio tasks that the handler starts. Outside of handlers the three are `-`. Fields that
    the record already has are kept.
    """
    claim = running.get(None)
    fields = ("-",) * 3 if claim is None else (str(claim.execution_id), claim.task, claim.attempt.number)
    for name, value in zip(("execution_id", "task", "attempt"), fields, strict=True):
        record.__dict__.setdefault(name, value)
    return True
