"""Budgets and quotas belong to a namespace: their ids are unknown in every other namespace."""

import pytest

from flowfabric.engine import budgets, quotas
from flowfabric.errors import BudgetNotFound, QuotaNotFound
from flowfabric.postgres.driver import Connection
from tests.given import Given


async def test_a_budget_of_another_namespace_cannot_be_attached_by_its_id(conn: Connection, given: Given) -> None:
    made = await budgets.create_budget(conn, "team-a", namespace="a", hard_limits={"tokens": 10})

    async with given.nothing_changes():
        with pytest.raises(BudgetNotFound):
            await given.submitted(namespace="b", budgets=[str(made.budget_id)])
    await given.submitted(namespace="a", budgets=[str(made.budget_id)])


async def test_a_quota_of_another_namespace_is_unknown_by_its_id(conn: Connection, given: Given) -> None:
    made = await quotas.create_quota(conn, "calls", namespace="a", max_concurrent=1)
    foreign = str(made.quota_id)

    async with given.nothing_changes():
        with pytest.raises(QuotaNotFound):
            await given.submitted(namespace="b", quotas=[foreign])
        with pytest.raises(QuotaNotFound):
            await quotas.describe_quota(conn, foreign, namespace="b")
        with pytest.raises(QuotaNotFound):
            await quotas.change_quota(conn, foreign, max_concurrent=5, by="ops", namespace="b")
    await given.submitted(namespace="a", quotas=[foreign])
