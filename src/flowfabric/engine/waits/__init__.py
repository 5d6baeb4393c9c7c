"""Waits: suspended executions, and the signals, operators and timeouts that resume them."""

from flowfabric.engine.waits.list import list_approvals, list_suspended, list_waitpoints, list_waits
from flowfabric.engine.waits.resume import deliver_approval, resume
from flowfabric.engine.waits.signals import deliver_signal, deliver_signals, read_signals
from flowfabric.engine.waits.suspend import suspend, suspend_many
from flowfabric.engine.waits.timeouts import time_out_waits
from flowfabric.engine.waits.waitpoints import close_waitpoints, create_waitpoint

__all__ = [
    "close_waitpoints",
    "create_waitpoint",
    "deliver_approval",
    "deliver_signal",
    "deliver_signals",
    "list_approvals",
    "list_suspended",
    "list_waitpoints",
    "list_waits",
    "read_signals",
    "resume",
    "suspend",
    "suspend_many",
    "time_out_waits",
]
