"""Budgets: spending limits and usage."""

from flowfabric.engine.budgets.amounts import exhausted
from flowfabric.engine.budgets.define import change_budget, create_budget, describe_budget, list_budgets
from flowfabric.engine.budgets.ledger import list_spending, release_usage
from flowfabric.engine.budgets.reserve import reserve
from flowfabric.engine.budgets.resets import reset_budget, reset_budgets
from flowfabric.engine.budgets.settle import expire_reservations, release, settle
from flowfabric.engine.budgets.spend import report_usage, report_usage_many
from flowfabric.engine.budgets.waits import resume_budget_waits

__all__ = [
    "change_budget",
    "create_budget",
    "describe_budget",
    "exhausted",
    "expire_reservations",
    "list_budgets",
    "list_spending",
    "release",
    "release_usage",
    "report_usage",
    "report_usage_many",
    "reserve",
    "reset_budget",
    "reset_budgets",
    "resume_budget_waits",
    "settle",
]
