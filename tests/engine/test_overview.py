"""Overview: waiting, running and stuck executions, with the reason."""

from datetime import timedelta

import pytest

from flowfabric.engine import claims, executions, lanes, quotas, workers
from flowfabric.engine.overview import overview
from flowfabric.model import Stuck
from flowfabric.postgres.driver import Connection
from tests.engine.budgets.scene import TEAM, make, spend
from tests.engine.stuck import everything_stuck
from tests.given import Given, submission


async def stuck(conn: Connection) -> dict[str, Stuck]:
    """The stuck entries of the overview, by reason."""
    found = (await overview(conn)).stuck
    by_reason = {each.reason: each for each in found}
    assert len(by_reason) == len(found)
    return by_reason


async def test_an_empty_database_has_an_empty_overview(conn: Connection) -> None:
    frame = await overview(conn)

    assert (frame.lanes, frame.lane_count, frame.workers, frame.worker_count, frame.stuck) == ([], 0, [], 0, [])
    assert frame.rates.span_s == 10
    assert frame.rates.submitted == frame.rates.completed == frame.rates.failed == 0
    assert (frame.ages.running_since, frame.ages.suspended_since, frame.ages.next_due_at) == (None, None, None)


async def test_every_stuck_execution_is_listed_with_its_reason(conn: Connection, given: Given) -> None:
    await everything_stuck(given)

    found = await stuck(conn)

    assert {reason: each.lane for reason, each in found.items()} == {
        "worker_lost": "lost",
        "due": "due",
        "waiting_for_retry_backoff": "later",
        "waiting_for_signal": "waits",
        "blocked_by_operator": "held",
        "blocked_by_lane_state": "paused",
        "blocked_by_route": "gpus",
        "no_worker": "lonely",
    }
    assert {each.amount for each in found.values()} == {1}
    named = {
        "worker_lost": ["worker pool", "instance pool-1", "lease"],
        "due": ["due since ", "it broke"],
        "waiting_for_retry_backoff": ["retry 1 of 3", "it broke"],
        "waiting_for_signal": ["signal approve", "waitpoint w"],
        "blocked_by_operator": ["held by ops since "],
        "blocked_by_lane_state": ["lane paused", "by ada", "the printer burns"],
        "blocked_by_route": ["lane gpus", "{cuda, gpu}", "worker crew lacks {gpu}"],
        "no_worker": ["no live worker serves lane lonely"],
    }
    assert [text for reason, texts in named.items() for text in texts if text not in found[reason].sentence] == []


async def test_released_executions_are_not_stuck(conn: Connection, given: Given) -> None:
    await given.submitted(lane="a", needs={"gpu"})
    await given.submitted(lane="b")
    await lanes.pause_lane(conn, "b", by="ada")
    assert set(await stuck(conn)) == {"blocked_by_route", "blocked_by_lane_state"}

    await workers.register_worker(conn, "pool", instance="pool-1", lanes=["a", "b"], capabilities=["gpu"])
    await lanes.resume_lane(conn, "b", by="ada")

    assert await stuck(conn) == {}


async def test_executions_blocked_by_a_budget_or_a_quota_are_listed(conn: Connection, given: Given) -> None:
    await workers.register_worker(conn, "pool", instance="pool-1", lanes=["spending", "busy"])
    await make(conn, hard_limits={"tokens": 100})
    await spend(conn, 100)
    await given.submitted(lane="spending", budgets=[TEAM])
    await quotas.create_quota(conn, "model", max_concurrent=1)
    await given.claimed(lane="busy", quotas=["model"])
    await given.submitted(lane="busy", quotas=["model"])

    found = await stuck(conn)

    assert {reason: each.lane for reason, each in found.items()} == {
        "blocked_by_budget": "spending",
        "blocked_by_quota": "busy",
    }
    assert "budget team-a has used 100 of 100 tokens" in found["blocked_by_budget"].sentence
    assert "quota model" in found["blocked_by_quota"].sentence


async def test_a_lane_served_for_another_namespace_only_is_stuck(conn: Connection, given: Given) -> None:
    await workers.register_worker(conn, "pool", instance="pool-1", lanes=["default"], namespace="red")
    await given.submitted(namespace="red")
    await given.submitted(namespace="blue")

    found = (await stuck(conn))["no_worker"]

    assert (found.sentence, found.amount) == ("no live worker serves lane default for namespace blue", 1)


async def test_an_unregistered_worker_with_a_lease_serves_the_lane(conn: Connection, given: Given) -> None:
    await given.claimed()
    await given.submitted()

    assert await stuck(conn) == {}

    await given.time_passes(seconds=31)
    assert set(await stuck(conn)) == {"lease_expired", "no_worker"}


async def test_an_instance_whose_lock_is_missing_is_lost(conn: Connection, given: Given) -> None:
    await workers.hold_lock(conn, "pool-1")
    await workers.register_worker(conn, "pool", instance="pool-1", lanes=["default"], holds_lock=True)
    await given.claimed()
    assert await stuck(conn) == {}

    await conn.execute("select pg_advisory_unlock_all()")
    await workers.return_orphans(conn)

    assert (await stuck(conn))["worker_lost"].subject == "pool-1"
    assert [worker.is_lost for worker in (await overview(conn)).workers] == [True]


async def test_lanes_show_their_counts_and_lanes_with_work_come_first(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "an-empty-one")
    await given.claimed(lane="work")
    await given.submitted(lane="work")
    await given.submitted(lane="work", delay=timedelta(hours=1))
    await given.held(lane="work")

    frame = await overview(conn)
    busy, empty = frame.lanes

    assert (busy.name, empty.name, frame.lane_count) == ("work", "an-empty-one", 2)
    counts = (busy.waiting_count, busy.active_count, busy.delayed_count, busy.held_count, busy.suspended_count)
    assert counts == (1, 1, 1, 1, 0)
    assert (busy.oldest_at is None, empty.oldest_at) == (False, None)
    assert [lane.name for lane in (await overview(conn, limit=1)).lanes] == ["work"]


async def test_rates_are_those_of_the_last_ten_seconds(conn: Connection, given: Given) -> None:
    await given.completed()
    await given.time_passes(seconds=11)
    await given.completed()
    await given.failed()
    await executions.submit_many(conn, [submission() for _ in range(10)])

    rates = (await overview(conn)).rates

    assert (rates.span_s, rates.submitted, rates.claimed, rates.completed, rates.failed) == (10, 1.2, 0.2, 0.1, 0.1)


async def test_rates_of_a_busy_log_cover_its_last_five_thousand_events(conn: Connection, given: Given) -> None:
    await given.rows(
        "insert into flowfabric.events (at, kind) select flowfabric.clock() - (20000 - n) * interval '100 us', "
        "'execution_submitted' from generate_series(1, 20000) n"
    )

    rates = (await overview(conn)).rates

    assert rates.span_s < 2
    assert rates.submitted * rates.span_s == pytest.approx(5_000, rel=0.01)


async def test_workers_show_what_they_run_and_whether_they_are_lost(conn: Connection, given: Given) -> None:
    await workers.register_worker(conn, "a", instance="a-1", lanes=["default"], capabilities=["gpu"])
    await workers.register_worker(conn, "b", instance="b-1", lanes=["other"], ttl=timedelta(seconds=5))
    await given.submitted()
    await claims.claim(conn, "a", instance="a-1", lanes=["default"])
    await given.time_passes(seconds=6)

    lost, live = (await overview(conn)).workers

    assert (lost.instance, lost.is_lost, lost.running_count) == ("b-1", True, 0)
    assert (live.instance, live.is_lost, live.running_count) == ("a-1", False, 1)
    assert (live.lanes, live.capabilities) == (["default"], ["gpu"])


async def test_ages_are_those_of_the_oldest(conn: Connection, given: Given) -> None:
    await given.claimed()
    await given.time_passes(minutes=1)
    await given.claimed()
    await given.submitted(delay=timedelta(hours=1))

    frame = await overview(conn)

    assert frame.ages.running_since is not None
    assert frame.at - frame.ages.running_since >= timedelta(minutes=1)
    assert frame.ages.next_due_at is not None
    assert frame.ages.next_due_at - frame.at > timedelta(minutes=59)


async def test_an_overview_changes_nothing(conn: Connection, given: Given) -> None:
    await everything_stuck(given)

    async with given.nothing_changes():
        await overview(conn)
        await conn.execute("begin read only")
        await overview(conn)
        await conn.execute("rollback")
