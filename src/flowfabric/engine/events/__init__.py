"""Events: one log of every change, to read from any cursor and to follow."""

from flowfabric.engine.events.horizon import advance_horizon, watch_log
from flowfabric.engine.events.ranges import extend_events, trim_events
from flowfabric.engine.events.read import OLDEST, acknowledge, get_acknowledged, read_events
from flowfabric.engine.events.views import completions, lease_history, operator_acts, signal_deliveries, timeline

__all__ = [
    "OLDEST",
    "acknowledge",
    "advance_horizon",
    "completions",
    "extend_events",
    "get_acknowledged",
    "lease_history",
    "operator_acts",
    "read_events",
    "signal_deliveries",
    "timeline",
    "trim_events",
    "watch_log",
]
