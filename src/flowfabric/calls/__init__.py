"""Private: set-based calls, which translate typed operations to SQL functions that take arrays."""

from flowfabric.calls.arguments import (
    about,
    about_flow,
    check_result,
    expect,
    json_text,
    priority,
    span,
    span_or_moment,
    under,
    words,
)
from flowfabric.calls.items import (
    MOST_BYTES,
    MOST_ITEMS,
    Act,
    each,
    each_fenced,
    fence_columns,
    flows_of,
    only,
    read_answer,
    read_answers,
    sweep,
)
from flowfabric.calls.signals import read_signals

__all__ = [
    "MOST_BYTES",
    "MOST_ITEMS",
    "Act",
    "about",
    "about_flow",
    "check_result",
    "each",
    "each_fenced",
    "expect",
    "fence_columns",
    "flows_of",
    "json_text",
    "only",
    "priority",
    "read_answer",
    "read_answers",
    "read_signals",
    "span",
    "span_or_moment",
    "sweep",
    "under",
    "words",
]
