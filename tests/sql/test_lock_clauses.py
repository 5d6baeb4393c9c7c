"""The lock clauses of all functions that a merged call or a sweep reaches: which wait, and that none waits for long."""

import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

from flowfabric import engine
from flowfabric.config import Config
from flowfabric.sweeps import sweeps
from tests.sources import SqlFunction, sql_functions

FUNCTIONS = {function.name: function for function in sql_functions()}
SWEEPS = [sweep.name for sweep in sweeps(Config())]
# The set-based functions that one call makes for many callers of a process (postgres/batching.py).
MERGED = ["complete", "fail", "delay", "save_step", "submit", "deliver_signal", "report_usage", "submit_children"]
MERGED += ["mark_begun", "suspend", "hold_changed", "submit_and_claim", "signal_and_claim"]
MERGED += ["append_frames"]
# A row lock without `skip locked` waits; so does an insert that meets the key of an open transaction.
CLAUSE = re.compile(r"\bfor (?:no key )?(?:update|share)\b(?: of \w+)?(?! of)(?: skip locked| nowait)?|\bon conflict\b")
WAITS = {
    "_accept_signals": "tickets of the executions that get signals",
    "_act_on_groups": "tickets that a sweep has locked before, with _try_members",
    "_add_lane": "a lane that is created in an open transaction",
    "_add_route": "a route that is created in an open transaction",
    "_admit": "a slot of an execution whose ticket and stripe the call has locked",
    "_admit_one": "the same",
    "_adopt_children": "a step, whose ticket the call has locked",
    "_divide": "stripes; a claim that does not wait has locked them before",
    "_divide_again": "a quota; not in a claim that does not wait, as in merged calls",
    "_fenced": "tickets; not called if the caller does not wait",
    "_join_maps": "a map, whose parent the call has locked; a sweep locks it without the parent, for a moment",
    "_lock_budgets": "budgets",
    "_lock_fenced": "a ticket that the call has locked before",
    "_lock_flows": "flows; a sweep has locked them before",
    "_lock_for_end": "tickets of members that the call may end",
    "_lock_reserved_budgets": "budgets with reservations",
    "_lock_stale_stripes": "a stripe; not in a claim that does not wait, as in merged calls",
    "_note_spending": "an entry of the ledger, whose ticket the call has locked",
    "_report_one": "a dedup key, whose budget the call has locked",
    "_return_reservations": "budgets; a sweep has locked them before, with _try_budgets",
    "_take_keys": "idempotency keys",
    "_try_budgets": "budgets, for as long as the lock_timeout of the sweep",
    "_write_plain": "an execution id that is submitted in an open transaction",
    "_write_submissions": "execution ids that are submitted in an open transaction",
    "delay": "a step, whose ticket the call has locked",
    "trim_events": "the horizon",
}
# So does a write to a row that is not found by its ctid, unless this transaction has locked or created the row before.
WRITE = re.compile(
    r"\b(?:insert into|update|delete from) flowfabric\.(\w+)(?:(?!\b(?:insert into|update|delete from) f)[^;])*"
)
WRITTEN = {
    "attempts": "its execution is locked",
    "budget_waits": "its execution is locked",
    "budgets": "the budget is locked",
    "child_ends": "the execution has ended in this transaction",
    "edge_groups": "the flow is locked",
    "events": "a new id",
    "events_rest": "late partitions are created under the lock of the log",
    "executions": "its ticket is locked, or its entry in removals",
    "flow_edges": "the flow is locked",
    "flow_keys": "the flow is locked",
    "flows": "the flow is locked",
    "frames": "its execution is locked, and the frames of a removed one are its own",
    "horizon": "the horizon is locked",
    "idempotency_keys": "_take_keys has locked the key",
    "keys": "the key is locked",
    "map_children": "a new id",
    "quota_entries": "the stripe is locked",
    "quota_stripes": "the stripe is locked",
    "removals": "the execution has ended in this transaction",
    "schedules": "the schedule is locked",
    "signals": "its execution is locked",
    "spending": "its execution is locked",
    "steps": "its execution is locked",
    "streams": "its execution is locked, or was removed",
    "tags": "its execution is locked or new",
    "tickets": "a new id, or the ticket is locked",
    "waitpoints": "its execution is locked",
    "waits": "its execution is locked",
    "workers": "the entry is locked",
}


def reached(*names: str) -> Iterator[SqlFunction]:
    """These functions and all that they call."""
    seen: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) in seen or name not in FUNCTIONS:
            continue
        seen.add(name)
        yield FUNCTIONS[name]
        left += FUNCTIONS[name].calls


def waits(function: SqlFunction) -> bool:
    return any(not clause.endswith(("skip locked", "nowait")) for clause in CLAUSE.findall(function.code))


def test_every_function_that_waits_for_a_lock_is_known() -> None:
    assert {function.name for function in reached(*MERGED, *SWEEPS) if waits(function)} == WAITS.keys()


def test_every_row_that_is_written_is_locked_before_or_new() -> None:
    written = {
        found[1]
        for function in reached(*MERGED, *SWEEPS)
        for found in WRITE.finditer(function.code)
        if "ctid" not in found[0] and "on conflict" not in found[0]
    }

    assert written == WRITTEN.keys()


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_limits_its_waits(name: str) -> None:
    assert "set lock_timeout = '100ms'" in FUNCTIONS[name].text.partition("$$")[0]


@pytest.mark.parametrize("name", MERGED)
def test_a_merged_call_limits_its_waits_before_it_locks_anything(name: str) -> None:
    body = FUNCTIONS[name].code.partition("\nbegin\n")[2].strip()

    assert body.startswith(f"perform flowfabric._limit_waits({name}.wait);")


def test_every_operation_that_is_merged_can_be_called_without_waiting() -> None:
    """Two others have `wait` too: `claim`, for quotas that it can do without, and what the heartbeat calls."""
    merged = {"complete_many", "fail_many", "delay_many", "save_step_many", "submit_many", "deliver_signals"}
    merged |= {"report_usage_many", "submit_children", "mark_begun_many", "suspend_many", "hold_changed_many"}
    merged |= {"submit_and_claim", "signal_and_claim"}
    merged |= {"append_frames"}
    modules = [importlib.import_module(f"{engine.__name__}.{concept}") for concept in engine.__all__]
    operations = {
        name
        for module in modules
        for name, operation in inspect.getmembers(module, inspect.isfunction)
        if "wait" in inspect.signature(operation).parameters
    }

    assert operations == merged | {"claim", "register_worker"}
