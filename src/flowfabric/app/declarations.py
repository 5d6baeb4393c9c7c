"""Budgets and quotas declared in code: opening the app creates them, or changes them to the declared values."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from flowfabric import durations
from flowfabric.config import Config
from flowfabric.engine import budgets, quotas
from flowfabric.errors import BudgetAlreadyExists, QuotaAlreadyExists
from flowfabric.model import Options
from flowfabric.postgres.driver import Connection

log = logging.getLogger("flowfabric.app")

BY = "app"
WINDOW = 60
NO_LIMIT = 9_007_199_254_740_991  # the highest limit of a quota: a limit can be raised but not removed


class BudgetOptions(TypedDict, total=False):
    """A budget declared in code; an option that is left out has the default of `create_budget`."""

    hard_limits: Mapping[str, int]
    soft_limits: Mapping[str, int]
    mode: Literal["strict", "observe"]
    on_hard_limit: Literal["refuse", "fail", "cancel", "suspend"]
    on_soft_limit: Literal["warn", "ignore"]
    reset_interval: str | timedelta
    scope_type: str
    scope_id: str


class QuotaOptions(TypedDict, total=False):
    """A quota declared in code, with at least one limit."""

    max_requests_per_window: int
    window_seconds: int
    max_concurrent: int


Budgets: TypeAlias = Mapping[str, BudgetOptions | Mapping[str, int]]
Quotas: TypeAlias = Mapping[str, QuotaOptions]

DEFAULTS: Mapping[str, Any] = {
    "hard_limits": {},
    "soft_limits": {},
    "mode": "strict",
    "on_hard_limit": "refuse",
    "on_soft_limit": "warn",
}


class Declared(NamedTuple):
    """The budgets and quotas that an app declares, by name."""

    budgets: Mapping[str, Mapping[str, Any]]
    quotas: Mapping[str, Mapping[str, Any]]


def read(budgets: Budgets | None, quotas: Quotas | None) -> Declared:
    """Check declarations and parse their durations. Raises `TypeError` for an unknown option, and `ValueError`."""
    return Declared(
        {name: _read_budget(name, given) for name, given in (budgets or {}).items()},
        {name: _checked("quota", name, given, QuotaOptions) for name, given in (quotas or {}).items()},
    )


async def make(conn: Connection, declared: Declared, options: Iterable[Options], config: Config) -> list[str]:
    """Create or change the declared budgets and quotas; return the lanes whose work may have become claimable.

    Each is created in the namespaces of the tasks that name it, or in `default` if no task does. Raises the errors of
    `create_budget` and `create_quota`, such as `InvalidBudget`.
    """
    known = list(options)
    lanes: list[str] = []
    for name, budget in declared.budgets.items():
        for namespace in sorted({each.namespace for each in known if name in each.budgets}) or ["default"]:
            lanes += await _make_budget(conn, name, namespace, budget, config.budget_partitions)
    for name, quota in declared.quotas.items():
        for namespace in sorted({each.namespace for each in known if name in each.quotas}) or ["default"]:
            lanes += await _make_quota(conn, name, namespace, quota, config.quota_partitions)
    return lanes


async def _make_budget(
    conn: Connection, name: str, namespace: str, wanted: Mapping[str, Any], partitions: int
) -> Sequence[str]:
    """Create a budget, or change it to the declared values. A scope that is not declared stays as it is."""
    try:
        await budgets.create_budget(conn, name, namespace=namespace, by=BY, partitions=partitions, **wanted)
        return ()
    except BudgetAlreadyExists:
        found = await budgets.describe_budget(conn, name, namespace=namespace)
    stored = {field: getattr(found, field) for field in wanted.keys() - {"reset_interval"}}
    stored["reset_interval"] = timedelta(milliseconds=found.reset_interval_ms or 0)
    all_wanted = {"reset_interval": timedelta(), **wanted}
    if all_wanted == stored:
        return ()
    changed = await budgets.change_budget(conn, name, namespace=namespace, by=BY, **all_wanted)
    log.info("changed budget %s in namespace %s to the values declared in code", name, namespace)
    return changed.lanes


async def _make_quota(
    conn: Connection, name: str, namespace: str, wanted: Mapping[str, Any], partitions: int
) -> Sequence[str]:
    """Create a quota, or change it to the declared values. A limit that is not declared is raised to `NO_LIMIT`."""
    try:
        await quotas.create_quota(conn, name, namespace=namespace, by=BY, partitions=partitions, **wanted)
        return ()
    except QuotaAlreadyExists:
        found = await quotas.describe_quota(conn, name, namespace=namespace)
    limits = {"max_requests_per_window": NO_LIMIT, "window_seconds": WINDOW, "max_concurrent": NO_LIMIT, **wanted}
    changes = {field: limit for field, limit in limits.items() if (getattr(found, field) or NO_LIMIT) != limit}
    if not changes:
        return ()
    changed = await quotas.change_quota(conn, name, namespace=namespace, by=BY, **changes)
    log.info("changed quota %s in namespace %s to the values declared in code", name, namespace)
    return changed.lanes


def _read_budget(name: str, given: object) -> Mapping[str, Any]:
    if isinstance(given, Mapping) and given and all(isinstance(amount, int) for amount in given.values()):
        return {**DEFAULTS, "hard_limits": dict(given)}
    options = {**DEFAULTS, **_checked("budget", name, given, BudgetOptions)}
    if "reset_interval" in options:
        options["reset_interval"] = durations.read_duration(options["reset_interval"])
    return options


def _checked(what: str, name: str, given: object, options: type) -> dict[str, Any]:
    """Check the names of options: an unknown option is most likely misspelt."""
    known = ", ".join(options.__annotations__) + (", or whole numbers by dimension" if what == "budget" else "")
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} {name!r} {given!r} is invalid; use a mapping of {known}")
    if unknown := sorted(map(str, given.keys() - options.__annotations__.keys())):
        raise TypeError(f"option {unknown[0]!r} of {what} {name!r} is unknown; use {known}")
    return dict(given)
