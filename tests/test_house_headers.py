"""Headers of SQL functions name their effects; those of an operation follow from the graph of calls."""

import re
from collections.abc import Iterator

from tests import sources
from tests.sources import SRC, SqlFunction

# Functions whose events depend on an argument; the header of a caller names those that it causes.
CHOSEN_BY_ARGUMENT = {
    "_end": "the outcome",
    "_end_leases": "how the lease ended",
    "_settle_failures": "the outcome of executions that are not retried",
    "_note_groups": "the state of the group",
    "_set_lane_state": "the new state",
}

OF_FLOWS = ["flow_not_found", "flow_already_terminal", "flow_too_large", "wrong_partition", "flow_member_added"]

# Codes and events of the called functions that cannot occur in the caller, with the reason.
CANNOT_HAPPEN = {
    "register_worker": {"invalid_lease": "it requests no lease, and passes a valid duration"},
    "_spending_step_fault": {"payload_too_large": "a report or a settlement stores no result"},
    "renew": {"row_locked": "it waits for locks"},
    "_find_children": {
        "row_locked": "it waits for locks",
        "payload_too_large": "a place stores no result of a handler",
    },
    "report_usage": {"row_locked": "it waits for locks"},
    "_fire": dict.fromkeys(OF_FLOWS, "a schedule does not submit to a flow"),
    "submit_one": {**dict.fromkeys(OF_FLOWS, "it submits to no flow"), "invalid_limit": "it sends one item"},
    "set_edge_group": {"execution_not_found": "a member of a flow that it has locked; retention removes whole flows"},
    "_submit_members": {
        **dict.fromkeys(["flow_not_found", "flow_already_terminal"], "the flow was just created"),
        "wrong_partition": "it passes the partition of the flow",
        "invalid_limit": "it sends a thousand at a time",
    },
}

FUNCTIONS = sources.sql_functions()
BY_NAME = {function.name: function for function in FUNCTIONS}
APPENDING = {name for name in BY_NAME if name.startswith("_append")} | {"_lock_log", "_number_events"}


def test_no_function_hides_from_these_tests() -> None:
    text = "\n".join(sources.without_comments(file.read_text()) for file in sources.sql_files())
    written = [*re.findall(r"\bcreate (?:or replace )?(?:function|procedure) flowfabric\.(\w+)", text, re.IGNORECASE)]

    assert sorted(written) == sorted(f.name for f in FUNCTIONS)
    assert {f.name for f in FUNCTIONS if f.computes} - CHOSEN_BY_ARGUMENT.keys() == {
        "_refuse",
        "_length_fault",
        "_label_fault",
        "_append_about",
        "_append_budget",
        "_append_all",
        "_append_flow",
    }
    assert CHOSEN_BY_ARGUMENT.keys() | CANNOT_HAPPEN.keys() <= BY_NAME.keys()


def test_headers_name_what_is_refused() -> None:
    """An internal function names the codes in its body, an operation also those of everything it calls."""
    own = {f.name: set(sources.FAULT.findall(f.code)) for f in FUNCTIONS}

    assert _differences({f.name: (said, f.says("refuses")) for f, said in _headers(own)}) == {}


def test_headers_name_what_is_emitted() -> None:
    """As with codes. A function that chooses the events of a called one by an argument names its choice."""
    own = {f.name: set(sources.APPEND.findall(f.code)) for f in FUNCTIONS}
    choosing = [f for f in FUNCTIONS if f.name not in CHOSEN_BY_ARGUMENT]
    for function in choosing:
        for choice in [BY_NAME[name].says("emits") for name in function.calls & CHOSEN_BY_ARGUMENT.keys()]:
            assert choice & function.says("emits"), f"{function.name}: none of {sorted(choice)}"
            own[function.name] |= choice & function.says("emits")

    assert _differences({f.name: (said, f.says("emits")) for f, said in _headers(own) if f in choosing}) == {}


def test_headers_name_locks_exactly_if_a_function_takes_one() -> None:
    # Appending to the log locks it in share mode; `emits` implies that.
    locking = {f.name for f in FUNCTIONS if sources.LOCK.search(f.code)} - APPENDING
    own = {f.name: {f.name} & locking for f in FUNCTIONS}

    assert [f.name for f, locks in _headers(own) if ("locks" in f.clauses) != bool(locks or f.name in APPENDING)] == []


def test_an_internal_function_sets_nothing_that_its_callers_have_set() -> None:
    """A setting of an entry holds for everything it calls. Entries are what Python or a trigger calls."""
    reached_by: dict[str, list[str]] = {name: [] for name in BY_NAME}
    for entry in _entries():
        for name in _closure(entry):
            reached_by[name].append(entry)

    repeated = {
        name: setting
        for name in BY_NAME.keys() - _entries()
        for setting in BY_NAME[name].settings
        if all(setting in BY_NAME[entry].settings for entry in reached_by[name])
    }
    assert repeated == {}
    assert [name for name in BY_NAME.keys() - _entries() if not reached_by[name]] == [], "nothing calls it"


def _headers(own: dict[str, set[str]]) -> Iterator[tuple[SqlFunction, set[str]]]:
    """Each function with what its header must say: an internal one its own, an operation that of all it calls too."""
    before: dict[str, set[str]] = {}
    reached = own
    while reached != before:
        before = reached
        reached = {
            f.name: own[f.name]
            | {said for callee in _callees(f) for said in before[callee.name]} - CANNOT_HAPPEN.get(f.name, {}).keys()
            for f in FUNCTIONS
        }
    for function in FUNCTIONS:
        yield function, own[function.name] if function.is_internal else reached[function.name]


def _callees(function: SqlFunction) -> list[SqlFunction]:
    return [BY_NAME[name] for name in function.calls if name in BY_NAME]


def _entries() -> set[str]:
    """The functions that are called from outside SQL, and the one of the trigger."""
    public = {f.name for f in FUNCTIONS if not f.is_internal}
    called = {name for file in sources.python_files(SRC) for name in sources.called(file)}
    return public | called & BY_NAME.keys() | {f"_{name}" for name in sources.TRIGGERS}


def _closure(entry: str) -> set[str]:
    """Everything that a function calls, directly or through others."""
    reached: set[str] = set()
    found = {entry}
    while found:
        reached |= found
        found = {callee.name for name in found for callee in _callees(BY_NAME[name])} - reached
    return reached - {entry}


def _differences(pairs: dict[str, tuple[set[str], set[str]]]) -> dict[str, tuple[list[str], list[str]]]:
    """Per function what its header lacks, and what it should not name."""
    return {
        name: (sorted(there - said), sorted(said - there)) for name, (there, said) in pairs.items() if there != said
    }
