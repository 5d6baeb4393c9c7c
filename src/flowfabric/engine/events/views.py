"""Views of the log: common filters by name. Narrow one further with `msgspec.structs.replace`."""

from flowfabric.ids import ExecutionId
from flowfabric.model import EventFilter

LEASES = ("lease_acquired", "lease_renewed", "lease_expired", "lease_revoked")
ENDS = (
    "execution_completed",
    "execution_failed",
    "execution_cancelled",
    "execution_expired",
    "execution_skipped",
)


def lease_history() -> EventFilter:
    """Leases acquired, renewed and lost; a reclaim is a `lease_acquired` with that attempt type."""
    return EventFilter(kinds=LEASES)


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
