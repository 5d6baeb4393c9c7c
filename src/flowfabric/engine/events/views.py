"""Views of the log: common filters by name. Narrow one further with `msgspec.structs.replace`."""

from flowfabric.ids import ExecutionId
from flowfabric.model import EventFilter

ENDS = (
    "execution_completed",
    "execution_failed",
    "execution_cancelled",
    "execution_expired",
    "execution_skipped",
)


def lease_history() -> EventFilter:
    """Leases acquired and renewed, and how each one ended; events with the same `epoch` are about the same lease.

    A lease ends when it expires or is revoked, when its attempt fails, is delayed or suspended, or when its execution
    ends. A reclaim is a `lease_acquired` with that attempt type.
    """
    return EventFilter(leases=True)


def completions() -> EventFilter:
    """Every end of an execution, whatever its outcome."""
    return EventFilter(kinds=ENDS)


def signal_deliveries() -> EventFilter:
    """Delivered signals."""
    return EventFilter(kinds=("signal_delivered",))


def operator_acts() -> EventFilter:
    """Acts of operators: every event with a `by`."""
    return EventFilter(acts=True)


def timeline(execution_id: ExecutionId) -> EventFilter:
    """All events of one execution."""
    return EventFilter(execution_id=execution_id)
