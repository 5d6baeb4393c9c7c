"""Define budgets: create, change, reset and read them."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric import errors
from flowfabric.engine import budgets
from flowfabric.postgres.driver import Connection
from tests.engine.budgets.scene import TEAM, figures, make, read, spend
from tests.given import Given

HOUR = timedelta(hours=1)


async def test_a_budget_is_created_once_and_its_id_is_derived_from_its_name(conn: Connection, given: Given) -> None:
    first = await budgets.create_budget(conn, TEAM, hard_limits={"tokens": 100}, by="ops")
    second = await budgets.create_budget(conn, TEAM, hard_limits={"tokens": 100})

    assert (first.outcome, first.budget_id) == ("created", UUID("617bd629-27c4-8fb4-afcc-f12b16c7ed65"))
    assert (second.outcome, second.budget_id) == ("exists", first.budget_id)
    [row] = await given.rows("select partition from flowfabric.budgets")
    assert row["partition"] == 16
    assert await given.events() == ["budget_created"]


async def test_another_definition_under_the_same_name_is_refused(conn: Connection, given: Given) -> None:
    await make(conn)

    async with given.nothing_changes():
        for other in ({"hard_limits": {"tokens": 101}}, {"mode": "observe"}, {"reset_interval": HOUR}):
            with pytest.raises(errors.BudgetAlreadyExists, match="change_budget"):
                await make(conn, **other)
    assert (await budgets.create_budget(conn, TEAM, hard_limits={"tokens": 1}, namespace="acme")).outcome == "created"


BAD: list[tuple[str, dict[str, Any]]] = [
    ("hard_limits", {"hard_limits": {"tokens": 0}}),
    ("hard_limits", {"hard_limits": {"tokens": 2**53}}),
    ("hard_limits", {"hard_limits": {"tokens": 1.5}}),
    ("hard_limits", {"hard_limits": {"Tokens": 1}}),
    ("hard_limits", {"hard_limits": {f"d{number}": 1 for number in range(33)}}),
    ("hard_limits", {"hard_limits": 100}),
    ("soft_limits", {"soft_limits": {"tokens": 0}}),
    ("soft_limits", {"soft_limits": {"tokens": 101}}),
    ("mode", {"mode": "lax"}),
    ("on_hard_limit", {"on_hard_limit": "explode"}),
    ("on_soft_limit", {"on_soft_limit": ""}),
    ("reset_interval_ms", {"reset_interval": timedelta(days=36500)}),
    ("reset_interval_ms", {"reset_interval": timedelta(seconds=-1)}),
    ("scope_type", {"scope_type": "s" * 257}),
    ("scope_id", {"scope_id": "s" * 257}),
]


async def test_an_invalid_definition_is_refused_and_names_the_field_in_create_and_change(
    conn: Connection, given: Given
) -> None:
    await make(conn)

    async with given.nothing_changes():
        for field, options in BAD:
            with pytest.raises(errors.InvalidBudget) as refused:
                await make(conn, "team-b", **options)
            assert refused.value.fields == {"field": field}
            with pytest.raises(errors.InvalidBudget) as refused:
                await budgets.change_budget(conn, TEAM, by="ops", **options)
            assert refused.value.fields == {"field": field}


async def test_an_invalid_name_is_refused(conn: Connection, given: Given) -> None:
    async with given.nothing_changes():
        for name in ("", " a", "a" * 129, "617bd629-27c4-8fb4-afcc-f12b16c7ed65", "é", "a\0"):
            with pytest.raises(errors.InvalidName):
                await make(conn, name)
        with pytest.raises(errors.InvalidNamespace):
            await make(conn, namespace="")
        with pytest.raises(errors.InvalidBody):
            await make(conn, by="b" * 257)
        with pytest.raises(errors.InvalidBudget):
            await make(conn, reset_interval=timedelta(0))


async def test_a_change_replaces_the_given_fields_and_keeps_the_rest(conn: Connection, given: Given) -> None:
    await make(conn, soft_limits={"tokens": 10}, scope_type="team", scope_id="a")
    await spend(conn, 7)

    await budgets.change_budget(conn, TEAM, hard_limits={"calls": 5}, mode="observe", by="ops")

    found = await read(conn)
    assert (found.hard_limits, found.soft_limits, found.mode) == ({"calls": 5}, {"tokens": 10}, "observe")
    assert (found.used, found.scope_type, found.scope_id, found.on_hard_limit) == ({"tokens": 7}, "team", "a", "refuse")
    changed = await given.event("budget_changed")
    assert (changed["hard_limits"], changed["mode"]) == ({"calls": 5}, "observe")
    assert "soft_limits" not in changed


async def test_a_budget_that_does_not_exist_is_not_found(conn: Connection, given: Given) -> None:
    await make(conn, namespace="acme")

    async with given.nothing_changes():
        with pytest.raises(errors.BudgetNotFound):
            await budgets.describe_budget(conn, TEAM)
        with pytest.raises(errors.BudgetNotFound):
            await budgets.change_budget(conn, TEAM, by="ops")
        with pytest.raises(errors.BudgetNotFound):
            await budgets.reset_budget(conn, TEAM, by="ops")
        with pytest.raises(errors.InvalidBody):
            await budgets.reset_budget(conn, TEAM, by="b" * 257, namespace="acme")


async def test_budgets_are_listed_by_name_page_by_page(conn: Connection) -> None:
    for name in ("c", "a", "b"):
        await make(conn, name)
    await make(conn, "d", namespace="acme")
    await spend(conn, 5, "b")

    first = await budgets.list_budgets(conn, limit=2)
    assert [(budget.name, budget.used) for budget in first.items] == [("a", {}), ("b", {"tokens": 5})]
    second = await budgets.list_budgets(conn, limit=2, cursor=first.next_cursor)
    assert ([budget.name for budget in second.items], second.next_cursor) == (["c"], None)
    assert (await budgets.list_budgets(conn, limit=0)).items == []
    with pytest.raises(errors.InvalidLimit):
        await budgets.list_budgets(conn, limit=-1)


async def test_a_reset_clears_the_used_amounts_and_keeps_the_counters(conn: Connection, given: Given) -> None:
    await make(conn, soft_limits={"tokens": 10})
    await spend(conn, 60)
    await spend(conn, 60)

    assert (await budgets.reset_budget(conn, TEAM, by="ops")).next_reset_at is None
    found = await read(conn)
    assert (found.used, found.breach_count, found.soft_breach_count, found.last_breach) == ({}, 1, 1, None)
    assert (await given.event("budget_reset"))["used"] == {"tokens": 60}
    assert (await spend(conn, 60)).outcome == "soft_breach"


async def test_a_due_reset_takes_effect_at_its_due_time_before_any_sweep(conn: Connection, given: Given) -> None:
    await make(conn, reset_interval=HOUR)
    first = (await read(conn)).next_reset_at
    await spend(conn, 100)
    await spend(conn, 1)
    await given.time_passes(minutes=59)
    assert (await read(conn)).is_full
    await given.time_passes(minutes=151)

    found = await read(conn)
    assert (found.used, found.is_full, found.last_breach) == ({}, False, None)
    assert first is not None
    assert found.next_reset_at == first + 3 * HOUR
    assert (await spend(conn, 100)).outcome == "ok"
    assert (await given.events()).count("budget_reset") == 1
    assert (await budgets.reset_budgets(conn)).moved == 0


async def test_the_sweep_stores_due_resets_once(conn: Connection, given: Given) -> None:
    for name in ("a", "b", "c"):
        await make(conn, name, reset_interval=HOUR)
        await spend(conn, 100, name)
    await make(conn, "d")
    await given.time_passes(minutes=61)

    assert (await budgets.reset_budgets(conn, limit=0)).moved == 0
    assert (await budgets.reset_budgets(conn, limit=2)).moved == 2
    assert (await budgets.reset_budgets(conn, limit=2)).moved == 1
    assert (await budgets.reset_budgets(conn)).moved == 0
    assert [await figures(conn, name) for name in "abc"] == [(0, 0, 0)] * 3
    assert (await given.events()).count("budget_reset") == 3


async def test_after_a_manual_reset_or_a_new_interval_the_next_reset_counts_from_now(
    conn: Connection, given: Given
) -> None:
    await make(conn, reset_interval=HOUR)
    now = await given.time_passes(minutes=30)

    by_hand = await budgets.reset_budget(conn, TEAM, by="ops")
    assert by_hand.next_reset_at is not None
    assert by_hand.next_reset_at >= now + HOUR
    await budgets.change_budget(conn, TEAM, reset_interval=HOUR, by="ops")
    assert (await read(conn)).next_reset_at == by_hand.next_reset_at
    await budgets.change_budget(conn, TEAM, reset_interval=2 * HOUR, by="ops")
    assert (await read(conn)).next_reset_at >= now + 2 * HOUR  # type: ignore[operator]
    await budgets.change_budget(conn, TEAM, reset_interval=timedelta(0), by="ops")
    assert (await read(conn)).next_reset_at is None


async def test_ending_the_resets_keeps_the_used_amounts(conn: Connection, given: Given) -> None:
    await make(conn, reset_interval=HOUR)
    await spend(conn, 40)

    await budgets.change_budget(conn, TEAM, reset_interval=timedelta(0), by="ops")
    await given.time_passes(hours=2)

    assert (await read(conn)).next_reset_at is None
    assert (await spend(conn, 61)).used == 40
    assert "budget_reset" not in await given.events()
