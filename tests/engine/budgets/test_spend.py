"""Usage reports: counted in full or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest

from flowfabric import errors
from flowfabric.engine import budgets
from flowfabric.ids import budget_id
from flowfabric.model import Usage, UsageReport
from flowfabric.postgres.driver import Connection
from tests.engine.budgets.scene import TEAM, figures, make, read, report_of, spend
from tests.given import Given

VECTORS = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["budget_reports"]["calls"]
MOST = 9_007_199_254_740_991


async def test_a_report_that_does_not_fit_is_not_counted_and_one_that_fills_the_budget_is(conn: Connection) -> None:
    await make(conn)

    assert (await spend(conn, 60)).outcome == "ok"
    assert await spend(conn, 50) == Usage(
        outcome="hard_breach", dimension="tokens", used=60, reserved=0, hard_limit=100, action="refuse"
    )
    found = await read(conn)
    assert (found.used, found.breach_count, found.is_full) == ({"tokens": 60}, 1, False)
    assert found.last_breach is not None
    assert found.last_breach.dimension == "tokens"
    assert (await spend(conn, 40)).outcome == "ok"
    assert (await read(conn)).is_full


async def test_a_report_over_the_soft_limit_is_counted_and_reports_a_soft_breach(
    conn: Connection, given: Given
) -> None:
    await make(conn, soft_limits={"tokens": 50})

    assert (await spend(conn, 50)).outcome == "ok"
    assert await spend(conn, 1) == Usage(outcome="soft_breach", dimension="tokens", used=51, reserved=0, soft_limit=50)
    found = await read(conn)
    assert (found.used, found.soft_breach_count, found.breach_count) == ({"tokens": 51}, 1, 0)
    assert (await given.event("budget_soft_breached"))["used"] == 51


async def test_a_soft_limit_can_be_ignored(conn: Connection, given: Given) -> None:
    await make(conn, soft_limits={"tokens": 50}, on_soft_limit="ignore")

    assert await spend(conn, 60) == Usage(outcome="ok")
    assert (await read(conn)).soft_breach_count == 1
    assert "budget_soft_breached" not in await given.events()


async def test_when_one_dimension_does_not_fit_none_is_counted(conn: Connection) -> None:
    await make(conn, hard_limits={"calls": 10, "tokens": 100})

    assert (await spend(conn, {"calls": 11, "tokens": 1, "other": 5})).outcome == "hard_breach"
    assert (await read(conn)).used == {}
    assert (await spend(conn, {"calls": 10, "tokens": 1, "other": 5})).outcome == "ok"
    assert (await read(conn)).used == {"calls": 10, "tokens": 1, "other": 5}


async def test_of_several_dimensions_over_their_limit_the_first_by_name_is_reported(conn: Connection) -> None:
    await make(conn, hard_limits={"b": 1, "a": 1, "c": 1})

    assert (await spend(conn, {"c": 2, "b": 2, "a": 1})).dimension == "b"


async def test_the_reports_of_the_test_vectors_get_the_expected_answers(conn: Connection) -> None:
    await make(conn, hard_limits={"tokens": 100, "calls": 3}, soft_limits={"tokens": 50})

    for call in VECTORS:
        answer = await spend(conn, call["amounts"])
        told = {"outcome": answer.outcome, "dimension": answer.dimension, "used": answer.used}
        told["limit"] = answer.soft_limit or answer.hard_limit
        assert {name: value for name, value in told.items() if value is not None} == {
            name: call[name] for name in ("outcome", "dimension", "used", "limit") if name in call
        }
        found = await read(conn)
        assert (found.used, not found.is_full) == (call["used_after"], call["route_open"])


async def test_every_standard_dimension_is_counted_and_any_other_too(conn: Connection) -> None:
    await make(conn, hard_limits={})
    amounts = {"tokens": 1, "input_tokens": 2, "output_tokens": 3, "wall_ms": 4, "cost_micros": 5, "requests": 6}
    amounts["pages_read"] = 7

    await spend(conn, amounts)

    assert (await read(conn)).used == amounts


async def test_input_and_output_tokens_count_as_tokens_unless_tokens_are_given(conn: Connection) -> None:
    reports: list[tuple[dict[str, Any], int]] = [
        ({"input_tokens": 10, "output_tokens": 5}, 15),
        ({"output_tokens": 5}, 5),
        ({"input_tokens": 10, "output_tokens": 5, "tokens": 1}, 1),
    ]
    for number, (amounts, tokens) in enumerate(reports):
        await make(conn, f"b{number}")
        await spend(conn, amounts, f"b{number}")

        assert (await read(conn, f"b{number}")).used == {**amounts, "tokens": tokens}


BAD_AMOUNTS: list[Any] = [
    {},
    {"tokens": -1},
    {"tokens": 1.5},
    {"tokens": MOST + 1},
    {"tokens": 10**400},
    {"input_tokens": MOST, "output_tokens": 1},
    {"tokens": float("nan")},
    {"tokens": True},
    {"tokens": "7"},
    {"tokens": None},
    {"Tokens": 1},
    {"": 1},
    {"a" * 65: 1},
    {"7up": 1},
    {f"d{number}": 1 for number in range(33)},
    {3: 1},
    7,
    "tokens",
]


async def test_invalid_amounts_are_refused_and_change_nothing(conn: Connection, given: Given) -> None:
    """Numbers must not wrap or turn negative."""
    await make(conn)

    async with given.nothing_changes():
        for amounts in BAD_AMOUNTS:
            with pytest.raises(errors.InvalidUsage):
                await budgets.report_usage(conn, UsageReport(budget=TEAM, amounts=amounts))


async def test_a_sum_beyond_exact_json_numbers_is_refused_and_names_its_dimension(
    conn: Connection, given: Given
) -> None:
    await make(conn, hard_limits={})
    await spend(conn, {"tokens": MOST - 5})

    async with given.nothing_changes():
        with pytest.raises(errors.InvalidUsage) as refused:
            await spend(conn, {"other": 1, "tokens": 6})
    assert refused.value.fields == {"dimension": "tokens"}
    assert (await spend(conn, 5)).outcome == "ok"
    assert (await read(conn)).used == {"tokens": MOST}


async def test_a_text_that_postgres_cannot_store_is_refused(conn: Connection, given: Given) -> None:
    await make(conn)

    async with given.nothing_changes():
        with pytest.raises(errors.InvalidText):
            await spend(conn, {"to\0kens": 1})
        with pytest.raises(errors.InvalidText):
            await spend(conn, 1, dedup_key="\ud800")
        with pytest.raises(errors.InvalidBody):
            await spend(conn, 1, dedup_key="k" * 257)


async def test_a_report_on_an_unknown_budget_is_refused(conn: Connection, given: Given) -> None:
    await make(conn)

    async with given.nothing_changes():
        for name in ("team-b", "", "x" * 200):
            with pytest.raises(errors.BudgetNotFound):
                await spend(conn, 1, name)


async def test_a_budget_can_be_named_by_its_id(conn: Connection) -> None:
    await make(conn)

    assert (await spend(conn, 7, str(budget_id("default", TEAM)).upper())).outcome == "ok"
    assert (await figures(conn))[0] == 7


async def test_a_budget_in_observe_mode_refuses_nothing_and_counts_breaches_as_soft(conn: Connection) -> None:
    await make(conn, mode="observe")

    assert await spend(conn, 150) == Usage(
        outcome="soft_breach", dimension="tokens", used=150, reserved=0, hard_limit=100
    )
    found = await read(conn)
    assert (found.used, found.is_full, found.breach_count, found.soft_breach_count) == ({"tokens": 150}, False, 0, 1)
    assert found.last_breach is None


async def test_in_a_batch_only_the_reports_that_fit_are_counted(conn: Connection) -> None:
    await make(conn)

    answers = await budgets.report_usage_many(conn, [report_of(30)] * 5)

    assert [answer.outcome for answer in answers if isinstance(answer, Usage)] == ["ok"] * 3 + ["hard_breach"] * 2
    found = await read(conn)
    assert (found.used, found.breach_count) == ({"tokens": 90}, 2)


async def test_an_invalid_report_does_not_affect_the_others(conn: Connection) -> None:
    """Each item of a batch has its own outcome."""
    await make(conn)
    await make(conn, "team-b")
    bad = [
        report_of({"tokens": -1}),
        report_of(1, "nobody"),
        report_of({"to\0kens": 1}),
        report_of(1, dedup_key="k" * 300),
    ]

    answers = await budgets.report_usage_many(conn, [report_of(1), *bad, report_of(2, "team-b"), report_of(3)])

    assert [getattr(answer, "outcome", type(answer).__name__) for answer in answers] == [
        "ok", "InvalidUsage", "BudgetNotFound", "InvalidText", "InvalidBody", "ok", "ok",
    ]  # fmt: skip
    assert ((await figures(conn))[0], (await figures(conn, "team-b"))[0]) == (4, 2)


async def test_a_hundred_reports_of_a_tenth_of_a_dollar_on_five_dollars_admit_fifty(conn: Connection) -> None:
    await make(conn, hard_limits={"cost_micros": 5_000_000})

    answers = await budgets.report_usage_many(conn, [report_of({"cost_micros": 100_000})] * 100)

    assert [getattr(answer, "outcome", None) for answer in answers] == ["ok"] * 50 + ["hard_breach"] * 50
    assert (await read(conn)).used == {"cost_micros": 5_000_000}


async def test_above_a_lowered_limit_nothing_fits_but_other_dimensions_are_counted(conn: Connection) -> None:
    await make(conn)
    await spend(conn, 100)
    await budgets.change_budget(conn, TEAM, hard_limits={"tokens": 10}, by="ops")

    assert (await spend(conn, {"tokens": 0, "requests": 1})).outcome == "hard_breach"
    assert (await spend(conn, {"requests": 1})).outcome == "ok"
    assert (await read(conn)).used == {"tokens": 100, "requests": 1}


async def test_a_call_with_more_than_a_thousand_reports_is_refused_and_python_sends_several(conn: Connection) -> None:
    await make(conn, hard_limits={})
    with pytest.raises(Exception, match="invalid_limit"):
        await conn.fetch(
            "select * from flowfabric.report_usage($1, $2)",
            [budget_id("default", TEAM)] * 1_001,
            ['{"tokens": 1}'] * 1_001,
        )

    answers = await budgets.report_usage_many(conn, [report_of(1)] * 1_001)

    assert {getattr(answer, "outcome", None) for answer in answers} == {"ok"}
    assert (await figures(conn))[0] == 1_001
