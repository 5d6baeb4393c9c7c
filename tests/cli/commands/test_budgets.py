"""`ff budgets`: creating, changing, resetting and describing budgets."""

from datetime import timedelta

import pytest

from flowfabric.engine import budgets
from flowfabric.model import PublicState
from tests.cli.conftest import Run
from tests.cli.looks import Looks
from tests.cli.scene import DONE, PAUSED
from tests.engine.budgets.scene import TEAM, make, read, spend
from tests.given import Given

MONTH = timedelta(days=30, hours=12, minutes=40)


async def spent(given: Given) -> None:
    """Three budgets: one mostly used, one exhausted with a suspended execution, one without limits."""
    await make(
        given.conn,
        hard_limits={"tokens": 1_000_000, "cost_micros": 5_000_000},
        soft_limits={"tokens": 600_000},
        reset_interval=MONTH,
        scope_type="team",
        scope_id="a",
    )
    claim = await given.claimed(execution_id=DONE)
    await spend(
        given.conn, {"input_tokens": 600_000, "output_tokens": 100_000, "cost_micros": 20_000}, fence=claim.fence
    )
    await budgets.reserve(given.conn, TEAM, {"tokens": 150_000}, fence=claim.fence)
    await make(given.conn, "team-b", on_hard_limit="suspend")
    await spend(given.conn, 100, "team-b")
    other = await given.claimed(execution_id=PAUSED, lane="mail")
    await spend(given.conn, 1, "team-b", fence=other.fence)
    await make(given.conn, "watched", hard_limits={}, mode="observe")


async def test_snapshots_of_lists_and_cards(look: Looks, given: Given) -> None:
    await spent(given)

    await look("budgets list", "", "--json --limit 1", "--limit 1", "--namespace nowhere")
    await look("budgets describe", "team-a", "team-a --json", "team-b", "watched", "nowhere")


async def test_snapshots_of_changes(look: Looks, given: Given) -> None:
    await spent(given)

    limits = "--hard-limit tokens=1_000 --soft-limit tokens=800 --reset-interval 1d"
    await look(
        "budgets create",
        *(f"team-c {limits}", f"team-c {limits} --json", "team-c", "team-d --hard-limit tokens=0"),
        *("team-d --hard-limit tokens", "team-d --hard-limit tokens=1 --hard-limit tokens=2", "'' --json"),
    )
    await look(
        "budgets change",
        *("team-b --hard-limit tokens=101", "team-c --mode observe --reset-interval 0s --json", "team-c"),
        *("team-c --soft-limit tokens=1001", "nowhere --mode observe"),
    )
    await look("budgets release", f"team-a {DONE}", f"team-a {DONE} --json", "team-a nonsense")
    await look("budgets reset", "team-a", "team-a --json", "nowhere")


async def test_a_change_keeps_the_limits_it_does_not_name_and_none_removes_one(here: Run, given: Given) -> None:
    await make(given.conn, hard_limits={"tokens": 100, "requests": 9, "wall_ms": 5}, soft_limits={"tokens": 50})

    done = await here("budgets change team-a --hard-limit tokens=200 --hard-limit wall_ms=none --by ann --json")

    assert (done.code, done.document["outcome"]) == (0, "changed")
    found = await read(given.conn)
    assert (found.hard_limits, found.soft_limits) == ({"tokens": 200, "requests": 9}, {"tokens": 50})
    [row] = await given.rows("select by from flowfabric.events where kind = 'budget_changed'")
    assert row["by"] == "ann"


async def test_a_raised_limit_resumes_suspended_executions(here: Run, given: Given) -> None:
    await spent(given)

    done = await here("budgets change team-b --hard-limit tokens=101 --json")

    assert done.document == {"budget": "team-b", "outcome": "changed", "lanes": ["mail"]}
    [claim] = await given.claim(lanes=["mail"])
    assert (claim.execution_id, claim.resumed) == (PAUSED, True)


async def test_the_usage_of_an_execution_is_released_once(here: Run, given: Given) -> None:
    await spent(given)

    done = await here(f"budgets release team-a {DONE} --json")
    again = await here(f"budgets release team-a {DONE} --json")

    assert done.document["outcome"] == "released"
    assert done.document["amounts"]["tokens"] == 700_000
    assert again.document["outcome"] == "noop"
    assert (await read(given.conn)).used == {}


@pytest.mark.parametrize(
    "line",
    [
        "budgets create team-a --hard-limit tokens=0",
        "budgets create team-a --hard-limit Tokens=1",
        "budgets create team-a --hard-limit tokens=99999999999999999999",
        "budgets change team-a --soft-limit tokens=101",
        "budgets change team-a --by ''",
        "budgets change team-a",
    ],
)
async def test_an_error_changes_nothing(here: Run, given: Given, line: str) -> None:
    await make(given.conn)

    async with given.nothing_changes():
        assert (await here(line)).code in (1, 2)


async def test_explain_names_the_exhausted_budget_and_its_commands(here: Run, given: Given) -> None:
    await make(given.conn)
    await spend(given.conn, 100)
    blocked = await given.submitted(budgets=[TEAM])

    explained = (await here(f"executions explain {blocked} --json")).document
    assert (explained["state"], explained["released_by"]) == (PublicState.RATE_LIMITED, "change_budget")
    assert "team-a" in explained["sentence"]
    assert [
        command for command in ("list", "change", "reset") if f"ff budgets {command}" not in explained["remedy"]
    ] == []


async def test_top_names_the_budget_that_has_suspended_an_execution(here: Run, given: Given) -> None:
    await spent(given)

    out = (await here("top --once")).out

    assert "team-b" in out
    assert "ff budgets list" in out
