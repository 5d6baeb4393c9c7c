"""The lock clauses of all functions that a merged call or a sweep reaches: which wait, and that none waits for long."""

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
# A row lock without `skip locked` waits; so does an insert that meets the key of an open transaction.
CLAUSE = re.compile(r"\bfor (?:no key )?(?:update|share)\b(?: of \w+)?(?! of)(?: skip locked| nowait)?|\bon conflict\b")
WAITS = {
    "_accept_signals": "tickets of the executions that get signals",
    "_act_on_groups": "tickets that a sweep has locked before, with _try_for_end",
    "_add_lane": "a lane that is created in an open transaction",
    "_adopt_children": "a step, whose ticket the call has locked",
    "_fenced": "tickets; not called if the caller does not wait",
    "_lock_budgets": "budgets",
    "_lock_fenced": "a ticket that the call has locked before",
    "_lock_flows": "flows; a sweep has locked them before",
    "_lock_for_end": "tickets of members that the call may end",
    "_lock_reserved_budgets": "budgets with reservations",
    "_make_route": "a route that is created in an open transaction",
    "_note_spending": "an entry of the ledger, whose ticket the call has locked",
    "_remember_report": "a dedup key, whose budget the call has locked",
    "_return_reservations": "budgets; a sweep has locked them before, with _try_budgets",
    "_take_keys": "idempotency keys",
    "_try_budgets": "budgets, for as long as the lock_timeout of the sweep",
    "_write_plain": "an execution id that is submitted in an open transaction",
    "_write_submissions": "execution ids that are submitted in an open transaction",
    "delay": "a step, whose ticket the call has locked",
    "trim_events": "the horizon",
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
    merged |= {"report_usage_many", "submit_children"}
    modules = [module for _, module in inspect.getmembers(engine, inspect.ismodule)]
    operations = {
        name
        for module in modules
        for name, operation in inspect.getmembers(module, inspect.isfunction)
        if "wait" in inspect.signature(operation).parameters
    }

    assert operations == merged | {"claim", "register_worker"}
