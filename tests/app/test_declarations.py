"""Budgets and quotas that the code of an app declares."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import App
from flowfabric.engine import budgets, quotas
from flowfabric.errors import BudgetNotFound, InvalidBudget, InvalidName, InvalidQuota
from tests.app.scene import TIMEOUT, happens, working
from tests.engine.budgets.scene import TEAM, spend
from tests.given import Given

DAILY: dict[str, Any] = {
    "hard_limits": {"tokens": 100, "requests": 5},
    "soft_limits": {"tokens": 80},
    "mode": "observe",
    "on_hard_limit": "suspend",
    "on_soft_limit": "ignore",
    "reset_interval": "1d",
}


async def opened(url: str, **declared: Any) -> None:
    """Open an app with these declarations, and close it."""
    async with App(url=url, **declared):
        pass


async def test_declared_budgets_and_quotas_exist_once_the_app_is_open(database_url: str, given: Given) -> None:
    await opened(
        database_url,
        budgets={"team-a": {"tokens": 1_000_000}, "daily": DAILY, "counted": {}},
        quotas={"model": {"max_requests_per_window": 500, "max_concurrent": 20}},
    )

    counted, daily, team = (await budgets.list_budgets(given.conn)).items
    assert (team.hard_limits, team.mode, team.on_hard_limit) == ({"tokens": 1_000_000}, "strict", "refuse")
    assert (daily.hard_limits, daily.soft_limits) == ({"tokens": 100, "requests": 5}, {"tokens": 80})
    assert (daily.mode, daily.on_hard_limit, daily.on_soft_limit) == ("observe", "suspend", "ignore")
    assert (daily.reset_interval_ms, counted.hard_limits) == (86_400_000, {})
    [model] = (await quotas.list_quotas(given.conn)).items
    assert (model.max_requests_per_window, model.window_seconds, model.max_concurrent) == (500, 60, 20)


async def test_a_task_can_use_declared_budgets_and_quotas(database_url: str, given: Given) -> None:
    app = App(url=database_url, budgets={"team-a": {"tokens": 10}}, quotas={"model": {"max_concurrent": 1}})

    @app.task(budgets=["team-a"], quotas=["model"])
    async def report() -> str:
        return "done"

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == "done"


async def test_a_declaration_is_created_in_every_namespace_whose_tasks_use_it(database_url: str, given: Given) -> None:
    app = App(url=database_url, budgets={"team-a": {"tokens": 10}}, quotas={"model": {"max_concurrent": 1}})
    app.task(name="one", namespace="acme", budgets=["team-a"], quotas=["model"])(_nothing)
    app.task(name="two", namespace="zoo", budgets=["team-a"])(_nothing)

    async with app:
        pass

    found = await given.rows("select namespace from flowfabric.budgets order by 1")
    assert [row["namespace"] for row in found] == ["acme", "zoo"]
    [row] = await given.rows("select namespace from flowfabric.quotas")
    assert row["namespace"] == "acme"


async def test_an_app_that_opens_again_changes_nothing(database_url: str, given: Given) -> None:
    declared: Any = {
        "budgets": {"team-a": {"tokens": 10}, "daily": DAILY},
        "quotas": {"model": {"max_concurrent": 2}, "rate": {"max_requests_per_window": 2, "window_seconds": 5}},
    }
    await opened(database_url, **declared)

    async with given.nothing_changes():
        await opened(database_url, **declared)


async def test_the_code_overrides_changes_by_an_operator(database_url: str, given: Given) -> None:
    await opened(database_url, budgets={"daily": DAILY}, quotas={"model": {"max_concurrent": 2}})
    await budgets.change_budget(given.conn, "daily", hard_limits={"tokens": 999}, scope_type="team", by="ops")
    await quotas.change_quota(given.conn, "model", max_concurrent=9, by="ops")

    await opened(database_url, budgets={"daily": DAILY}, quotas={"model": {"max_concurrent": 2}})

    found = await budgets.describe_budget(given.conn, "daily")
    assert (found.hard_limits, found.scope_type) == ({"tokens": 100, "requests": 5}, "team")
    assert (await quotas.describe_quota(given.conn, "model")).max_concurrent == 2
    rows = await given.rows(
        "select by from flowfabric.events where kind in ('budget_changed', 'quota_changed') order by id"
    )
    assert [row["by"] for row in rows] == ["ops", "ops", "app", "app"]
    async with given.nothing_changes():
        await opened(database_url, budgets={"daily": DAILY}, quotas={"model": {"max_concurrent": 2}})


async def test_an_option_removed_from_the_code_returns_to_its_default(database_url: str, given: Given) -> None:
    both: Any = {"max_requests_per_window": 5, "window_seconds": 7, "max_concurrent": 2}
    await opened(database_url, budgets={"daily": DAILY}, quotas={"model": both})
    less: Any = {"budgets": {"daily": {"tokens": 100}}, "quotas": {"model": {"max_concurrent": 2}}}

    await opened(database_url, **less)

    found = await budgets.describe_budget(given.conn, "daily")
    assert (found.hard_limits, found.soft_limits, found.mode) == ({"tokens": 100}, {}, "strict")
    assert (found.reset_interval_ms, found.next_reset_at) == (None, None)
    quota = await quotas.describe_quota(given.conn, "model")
    assert (quota.max_requests_per_window, quota.window_seconds) == (2**53 - 1, 60)
    async with given.nothing_changes():
        await opened(database_url, **less)


async def test_a_declaration_removed_from_the_code_stays(database_url: str, given: Given) -> None:
    await opened(database_url, budgets={"team-a": {"tokens": 10}})
    async with given.nothing_changes():
        await opened(database_url)


async def test_a_limit_raised_in_the_code_releases_blocked_executions(database_url: str, given: Given) -> None:
    def app_with(tokens: int) -> tuple[App, Any]:
        app = App(url=database_url, budgets={TEAM: {"tokens": tokens}})
        return app, app.task(name="report", budgets=[TEAM])(_nothing)

    poor, report = app_with(10)
    async with poor:
        await spend(given.conn, 10)
        waiting = await report.submit()
        assert await waiting.state() == "rate_limited"
    rich, _ = app_with(11)
    async with working(rich):
        await happens(rich.execution(waiting.execution_id), "execution_completed")


async def test_apps_that_open_at_once_create_each_declaration_once(database_url: str, given: Given) -> None:
    declared: Any = {"budgets": {"team-a": {"tokens": 10}}, "quotas": {"model": {"max_concurrent": 2}}}

    await asyncio.gather(*(opened(database_url, **declared) for _ in range(4)))

    assert (await given.count("budgets"), await given.count("quotas")) == (1, 1)
    assert sorted(await given.events()) == ["budget_created", "quota_created"]


@pytest.mark.parametrize(
    ("declared", "refusal"),
    [
        ({"budgets": {"team-a": {"tokens": 0}}}, InvalidBudget),
        ({"budgets": {"team-a": {"tokens": True}}}, InvalidBudget),
        ({"budgets": {"team-a": {"hard_limits": {"tokens": 1}, "soft_limits": {"tokens": 2}}}}, InvalidBudget),
        ({"budgets": {"team-a": {"mode": "mild"}}}, InvalidBudget),
        ({"budgets": {" bad ": {"tokens": 1}}}, InvalidName),
        ({"quotas": {"model": {}}}, InvalidQuota),
        ({"quotas": {"model": {"max_concurrent": 0}}}, InvalidQuota),
    ],
)
async def test_an_invalid_declaration_is_refused_and_the_app_stays_closed(
    database_url: str, given: Given, declared: Any, refusal: type[Exception]
) -> None:
    app = App(url=database_url, **declared)
    async with given.nothing_changes():
        with pytest.raises(refusal):
            await app.__aenter__()
    with pytest.raises(RuntimeError, match="not open"):
        _ = app.database


async def test_a_task_that_uses_an_unknown_budget_keeps_its_app_closed(app: App, given: Given) -> None:
    app.task(name="report", budgets=["nowhere"])(_nothing)
    async with given.nothing_changes():
        with pytest.raises(BudgetNotFound):
            await app.__aenter__()


def test_misspelt_options_raise_when_the_app_is_made(database_url: str) -> None:
    with pytest.raises(TypeError, match=r"'hard_limit' of budget 'team-a' is unknown; use hard_limits"):
        App(url=database_url, budgets={"team-a": {"hard_limit": {"tokens": 5}}})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"'team-a'.*5.*hard_limits"):
        App(url=database_url, budgets={"team-a": 5})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"'limit' of quota 'model' is unknown; use .*max_requests_per_window"):
        App(url=database_url, quotas={"model": {"limit": 5}})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(ValueError, match="'soon'"):
        App(url=database_url, budgets={"team-a": {"reset_interval": "soon"}})
    assert App(url=database_url, budgets={"team-a": {"reset_interval": timedelta(days=1)}}).tasks == {}


async def _nothing() -> None: ...
