"""`ff budgets` and `ff quotas`: making, changing and looking at what may be spent, how often, and how many at once."""

from datetime import timedelta

import msgspec
import pytest

from flowfabric.cli.bars import bar
from flowfabric.engine import budgets, quotas
from flowfabric.model import PublicState
from tests.cli.conftest import Run
from tests.cli.looks import Looks
from tests.cli.scene import DONE, PAUSED
from tests.engine.budgets.scene import TEAM, make, read, spend
from tests.given import Given

MONTH = timedelta(days=30, hours=12, minutes=40)


async def spent(given: Given) -> None:
    """Three budgets: one of which much is spent, one that is full and keeps somebody waiting, one without limits."""
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


async def test_looks_of_budgets(look: Looks, given: Given) -> None:
    await spent(given)

    await look("budgets list", "", "--json --limit 1", "--limit 1", "--namespace nowhere")
    await look("budgets show", "team-a", "team-a --json", "team-b", "watched", "nowhere")


async def test_looks_of_acts_on_budgets(look: Looks, given: Given) -> None:
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


async def test_looks_of_quotas(look: Looks, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_requests_per_window=2, window_seconds=86_000)
    await quotas.create_quota(given.conn, "writers", max_concurrent=3)
    for _ in range(2):
        await given.claimed(quotas=["model", "writers"])

    await look("quotas list", "", "--json --limit 1", "--limit 1", "--namespace nowhere")
    await look("quotas show", "model", "model --json", "writers", "nowhere")
    await look(
        "quotas create",
        *("vendor --max-concurrent 5", "vendor --max-concurrent 5 --json", "vendor --max-concurrent 6"),
        *("empty", "bad --max-concurrent 0", "bad --max-concurrent many"),
    )
    await look("quotas change", "model --max-requests-per-window 9", "model --window-seconds 60 --json", "model",
               "nowhere --max-concurrent 2")  # fmt: skip


async def test_a_change_leaves_the_limits_it_does_not_name_and_takes_one_away(here: Run, given: Given) -> None:
    await make(given.conn, hard_limits={"tokens": 100, "requests": 9, "wall_ms": 5}, soft_limits={"tokens": 50})

    done = await here("budgets change team-a --hard-limit tokens=200 --hard-limit wall_ms=none --by ann")

    assert (done.code, done.out) == (0, "budget team-a: changed\n")
    found = await read(given.conn)
    assert (found.hard_limits, found.soft_limits) == ({"tokens": 200, "requests": 9}, {"tokens": 50})
    [row] = await given.rows("select by from flowfabric.events where kind = 'budget_changed'")
    assert row["by"] == "ann"


async def test_a_raised_limit_lets_who_waited_go_on(here: Run, given: Given) -> None:
    await spent(given)

    done = await here("budgets change team-b --hard-limit tokens=101 --json")

    assert msgspec.json.decode(done.out) == {"budget": "team-b", "outcome": "changed", "lanes": ["mail"]}
    [claim] = await given.claim(lanes=["mail"])
    assert (claim.execution_id, claim.resumed) == (PAUSED, True)


async def test_what_an_execution_spent_comes_back(here: Run, given: Given) -> None:
    await spent(given)

    done = await here(f"budgets release team-a {DONE}")
    again = await here(f"budgets release team-a {DONE}")

    assert done.out.startswith("budget team-a: released ")
    assert again.out == "budget team-a: noop\n"
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
        "quotas create q",
        "quotas create q --max-concurrent -1",
        "quotas change q --max-concurrent 1",
    ],
)
async def test_what_is_refused_changes_nothing(here: Run, given: Given, line: str) -> None:
    await make(given.conn)

    async with given.nothing_changes():
        assert (await here(line)).code in (1, 2)


async def test_an_explanation_leads_to_the_budget_and_to_the_quota(here: Run, given: Given) -> None:
    await make(given.conn)
    await spend(given.conn, 100)
    await quotas.create_quota(given.conn, "one", max_concurrent=1)
    await given.claimed(quotas=["one"])
    by_budget = await given.submitted(budgets=[TEAM])
    by_quota = await given.submitted(quotas=["one"])

    said = (await here(f"executions explain {by_budget}")).out
    assert said.startswith(f"{PublicState.RATE_LIMITED}: budget team-a has used 100 of 100 tokens")
    assert "`ff budgets list` shows it" in said
    assert "`ff quotas list` shows it" in (await here(f"executions explain {by_quota}")).out


async def test_top_leads_to_the_budget_that_has_suspended_somebody(here: Run, given: Given) -> None:
    await spent(given)

    said = (await here("top --once")).out

    assert "needs 1 tokens of budget team-b, which has 0 left" in said
    assert "raise the budget or reset it, or wait until it resets: ff budgets list" in said


@pytest.mark.parametrize(
    ("used", "reserved", "limit", "drawn"),
    [
        (0, 0, 100, "[....................] 0%"),
        (1, 0, 1_000_000, "[#...................] 0%"),
        (50, 25, 100, "[##########=====.....] 75%"),
        (999_999, 0, 1_000_000, "[###################.] 99%"),
        (100, 0, 100, "[####################] 100%"),
        (90, 60, 100, "[##################==] 150%"),
        (0, 2**53 - 1, 2**53 - 1, "[====================] 100%"),
    ],
)
def test_a_bar_is_full_only_when_nothing_is_left(used: int, reserved: int, limit: int, drawn: str) -> None:
    assert bar(used, limit, reserved) == drawn


def test_what_has_no_limit_has_no_bar() -> None:
    assert bar(5, None) == ""
