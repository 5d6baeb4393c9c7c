"""Views of the log: the filters people ask for most, by name. Narrow one further with `msgspec.structs.replace`."""

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
    """Who held what, and how they lost it; a reclaim is a `lease_acquired` of that attempt type."""
    return EventFilter(kinds=LEASES)


def completions() -> EventFilter:
    """Every end, good or bad."""
    return EventFilter(kinds=ENDS)


def signal_deliveries() -> EventFilter:
    """Signals as they arrived."""
    return EventFilter(kinds=("signal_delivered",))


def operator_acts() -> EventFilter:
    """What people did: every event that names who did it."""
    return EventFilter(acts=True)


def timeline(execution_id: ExecutionId) -> EventFilter:
    """The life of one execution."""
    return EventFilter(execution_id=execution_id)
