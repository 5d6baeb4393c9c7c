"""The remedies of `ff top`: every stuck execution comes with the command that releases it."""

from flowfabric.cli.remedies import remedy as executions_remedy
from flowfabric.cli.remedies import stuck_remedy, with_remedies
from flowfabric.engine import executions, quotas
from flowfabric.engine.overview import overview
from flowfabric.postgres.driver import Connection
from tests.cli import scene
from tests.engine.budgets.scene import TEAM, make, spend
from tests.engine.stuck import everything_stuck
from tests.given import Given


async def remedies(conn: Connection) -> dict[str, str]:
    """The remedies of the overview, by reason."""
    return {each.reason: stuck_remedy(each) for each in (await overview(conn)).stuck}


async def test_every_stuck_execution_has_its_remedy(conn: Connection, given: Given) -> None:
    await everything_stuck(given)

    subjects = {each.reason: each.subject for each in (await overview(conn)).stuck}
    commands = {
        "worker_lost": "ff workers mark-dead pool-1",
        "due": "ff sweep --once",
        "waiting_for_retry_backoff": f"ff executions attempts {subjects['waiting_for_retry_backoff']}",
        "waiting_for_signal": f"ff waitpoints describe {subjects['waiting_for_signal']}",
        "blocked_by_operator": f"ff executions unhold {subjects['blocked_by_operator']}",
        "blocked_by_lane_state": "ff lanes resume paused",
        "blocked_by_route": "ff worker FILE.py:app --lanes gpus --capabilities cuda,gpu",
        "no_worker": "ff worker FILE.py:app --lanes lonely",
    }

    found = await remedies(conn)

    assert found.keys() == commands.keys()
    assert [reason for reason, command in commands.items() if not found[reason].endswith(f": {command}")] == []


async def test_a_budget_and_a_quota_have_their_remedy(conn: Connection, given: Given) -> None:
    await make(conn, hard_limits={"tokens": 100})
    await spend(conn, 100)
    await given.submitted(lane="spending", budgets=[TEAM])
    await quotas.create_quota(conn, "model", max_concurrent=1)
    await given.claimed(lane="busy", quotas=["model"])
    await given.submitted(lane="busy", quotas=["model"])

    found = await remedies(conn)

    assert found["blocked_by_budget"].endswith(": ff budgets list")
    assert found["blocked_by_quota"].endswith(": ff quotas list")


async def test_a_version_that_no_worker_has_has_its_remedies(conn: Connection, given: Given) -> None:
    await scene.versioned(given)

    remedy = (await remedies(conn))["no_version"]
    assert "has version 1: ff worker FILE.py:app --lanes default" in remedy
    assert remedy.endswith(": ff tasks describe report")
    one = executions_remedy(await executions.describe(conn, scene.OLD), served=True)
    assert one.endswith(f": ff executions replay {scene.OLD} --from-scratch")


async def test_a_lane_is_quoted_for_the_shell(conn: Connection, given: Given) -> None:
    await given.submitted(lane="a $(lane)")

    assert (await remedies(conn))["no_worker"].endswith(" --lanes 'a $(lane)'")


async def test_the_json_of_the_overview_has_the_remedies(conn: Connection, given: Given) -> None:
    await given.submitted(lane="lonely")

    seen = with_remedies(await overview(conn))

    assert [getattr(each, "remedy", None) for each in seen.stuck] == [*(await remedies(conn)).values()]
