"""Views of the log: lease history, completions, signals, operator acts and the timeline of one execution."""

from datetime import timedelta

import msgspec

from flowfabric.engine import attempts, claims, events, executions, holds, lanes, waits
from flowfabric.model import Event, EventFilter, Suspension
from flowfabric.postgres.driver import Connection
from tests.given import Given


async def seen(conn: Connection, view: EventFilter) -> list[Event]:
    return list((await events.read_events(conn, events.OLDEST, view, limit=1_000)).events)


async def kinds(conn: Connection, view: EventFilter) -> list[str]:
    return [event.kind for event in await seen(conn, view)]


async def test_lease_history_shows_who_held_each_lease_and_how_it_ended(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "default", keep_renewals=True)
    first = await given.claimed()
    await claims.renew(conn, first.fence)
    await given.time_passes(minutes=5)
    await claims.expire_leases(conn)
    [again] = await given.claim()
    await claims.revoke(conn, again.execution_id, by="ops")
    await given.claim()

    history = await seen(conn, events.lease_history())
    assert [event.kind.removeprefix("lease_") for event in history] == [
        "acquired",
        "renewed",
        "expired",
        "acquired",
        "revoked",
        "acquired",
    ]
    taken = [event for event in history if event.kind == "lease_acquired"]
    assert [event.detail["attempt_type"] for event in taken] == ["initial", "reclaim", "reclaim"]
    assert [event.detail["epoch"] for event in taken] == [1, 2, 3]


async def test_lease_history_covers_all_partitions(conn: Connection, given: Given) -> None:
    submitted = {await given.submitted() for _ in range(60)}
    await given.claim(take=60)

    history = await seen(conn, events.lease_history())
    assert {event.execution_id for event in history} == submitted
    assert len({event.partition for event in history}) > 20


async def test_completions_are_all_ends_whatever_caused_them(conn: Connection, given: Given) -> None:
    await given.completed(namespace="acme")
    await given.failed(namespace="acme")
    await given.cancelled(namespace="acme")
    await given.submitted(namespace="acme", deadline=timedelta(minutes=1))
    await given.time_passes(hours=1)
    await executions.expire_executions(conn)

    ends = ["execution_completed", "execution_failed", "execution_cancelled", "execution_expired"]
    assert await kinds(conn, events.completions()) == ends
    assert await kinds(conn, msgspec.structs.replace(events.completions(), namespace="acme")) == ends
    assert await kinds(conn, msgspec.structs.replace(events.completions(), namespace="other")) == []


async def test_signal_deliveries_are_the_signals_that_arrived(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    wish = Suspension(condition={"kind": "single", "waitpoint": "answer"}, waitpoints=["answer"])
    await waits.suspend(conn, claim.fence, wish)
    await waits.deliver_approval(conn, claim.execution_id, "answer", "approve", by="ada")

    [event] = await seen(conn, events.signal_deliveries())
    assert event.execution_id == claim.execution_id


async def test_operator_acts_are_the_events_that_name_an_operator(conn: Connection, given: Given) -> None:
    held = await given.held()
    await holds.unhold(conn, held, by="ada")
    await lanes.pause_lane(conn, "default", by="ops")

    acts = await seen(conn, events.operator_acts())
    assert [(event.kind, event.by) for event in acts] == [
        ("execution_held", "ops"),
        ("execution_unheld", "ada"),
        ("lane_paused", "ops"),
    ]
    assert await kinds(conn, EventFilter(by="ada")) == ["execution_unheld"]


async def test_a_timeline_holds_all_events_of_one_execution_in_order(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy={"retry": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 1000}}})
    await given.submitted(lane="elsewhere")
    await attempts.fail(conn, claim.fence, "it broke")
    await given.time_passes(minutes=1)
    [again] = await given.claim()
    await attempts.complete(conn, again.fence)

    timeline = await seen(conn, events.timeline(claim.execution_id))
    assert [event.kind for event in timeline] == [
        "execution_submitted",
        "lease_acquired",
        "attempt_failed",
        "lease_acquired",
        "execution_completed",
    ]
    assert [event.event_id for event in timeline] == sorted(event.event_id for event in timeline)
