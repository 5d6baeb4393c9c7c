"""Workers: registration, heartbeats, expiry, and what happens to their leases."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowfabric import testing
from flowfabric.engine import attempts, claims, executions, workers
from flowfabric.errors import (
    InstanceReassigned,
    InvalidBody,
    InvalidCapabilities,
    InvalidLane,
    InvalidLimit,
    InvalidText,
    InvalidWorker,
    LeaseLost,
)
from flowfabric.model import Beat, MarkedDead, PublicState, Registered, Worker
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.given import Given

CAPABILITIES = msgspec.json.decode(Path(__file__).parents[1].joinpath("vectors.json").read_bytes())["capabilities"]


async def register(conn: Connection, instance: str = "w-1", **options: Any) -> Registered:
    return await workers.register_worker(
        conn, options.pop("worker", "w"), instance=instance, lanes=options.pop("lanes", ["default"]), **options
    )


async def names(conn: Connection, **options: Any) -> list[str]:
    return [worker.instance for worker in (await workers.list_workers(conn, **options)).items]


async def entry(conn: Connection) -> Worker:
    [only] = (await workers.list_workers(conn, expired=True)).items
    return only


async def test_the_life_of_a_worker_entry(conn: Connection, given: Given) -> None:
    """Register, refresh, heartbeat, expire; a heartbeat after that answers `not_registered`."""
    registered = await register(conn)
    refreshed = await register(conn)
    await given.time_passes(seconds=20)
    [beat] = await workers.beat(conn, ["w-1"])
    await given.time_passes(seconds=29)
    assert await names(conn) == ["w-1"]
    await given.time_passes(seconds=1)

    assert (registered.outcome, refreshed.outcome) == ("registered", "refreshed")
    assert (beat.outcome, beat.expires_at is not None) == ("refreshed", True)
    assert await names(conn) == []
    assert await workers.beat(conn, ["w-1"]) == [Beat(instance="w-1", outcome="not_registered")]
    assert (await given.events()).count("worker_registered") == 1


async def test_an_entry_shows_its_registration(conn: Connection, given: Given) -> None:
    now = await testing.now(conn)
    registered = await register(
        conn, lanes=["b", "a", "b"], capabilities={"llm", "gpu"}, namespace="acme", ttl=timedelta(minutes=2)
    )
    shown = await entry(conn)

    assert (shown.worker, shown.instance, shown.namespace) == ("w", "w-1", "acme")
    assert (shown.lanes, shown.capabilities) == (["a", "b"], ["gpu", "llm"])
    assert now <= shown.registered_at == shown.beat_at
    assert shown.expires_at == registered.expires_at == shown.beat_at + timedelta(minutes=2)
    assert shown.active_count == 0
    assert await given.event("worker_registered") == {
        "worker": "w", "lanes": ["a", "b"], "capabilities": ["gpu", "llm"], "namespace": "acme",
    }  # fmt: skip


@pytest.mark.parametrize("change", [{"lanes": ["other"]}, {"capabilities": ["gpu"]}, {"namespace": "acme"}])
async def test_a_changed_registration_is_an_event_and_a_repeat_is_not(
    conn: Connection, given: Given, change: dict[str, Any]
) -> None:
    await register(conn)
    first = await entry(conn)
    await given.time_passes(seconds=5)
    assert (await register(conn, **change)).outcome == "refreshed"
    await register(conn, **change)

    assert (await given.events()).count("worker_registered") == 2
    shown = await entry(conn)
    assert shown.registered_at == first.registered_at < shown.beat_at


async def test_a_worker_whose_entry_expired_registers_again(conn: Connection, given: Given) -> None:
    """Whether or not the sweep has run."""
    await register(conn)
    for is_swept in (False, True):
        await given.time_passes(seconds=30)
        if is_swept:
            await workers.expire_workers(conn)
        assert (await register(conn)).outcome == "registered"
        assert await names(conn) == ["w-1"]

    assert (await given.events()).count("worker_registered") == 3


async def test_an_instance_belongs_to_one_worker(conn: Connection, given: Given) -> None:
    await register(conn)

    async with given.nothing_changes():
        with pytest.raises(InstanceReassigned):
            await register(conn, worker="other")


async def test_concurrent_registrations_of_one_instance_do_not_both_succeed(given: Given, connect: Connect) -> None:
    one, two = await connect(), await connect()
    async with one.transaction():
        await register(one)
        later = asyncio.create_task(register(two, worker="other"))
        await blocked(given, two, later)

    with pytest.raises(InstanceReassigned):
        await later
    assert (await entry(given.conn)).worker == "w"


@pytest.mark.parametrize("name", ["", "a b", "a\n", "a|b", "x" * 257])
async def test_invalid_names_are_refused(conn: Connection, given: Given, name: str) -> None:
    async with given.nothing_changes():
        with pytest.raises(InvalidWorker):
            await register(conn, name)
        with pytest.raises(InvalidWorker):
            await register(conn, worker=name)


async def test_invalid_lanes_and_lifetimes_are_refused(conn: Connection, given: Given) -> None:
    async with given.nothing_changes():
        for lane_names in ([], ["x" * 65], ["ä"]):
            with pytest.raises(InvalidLane):
                await register(conn, lanes=lane_names)
        for milliseconds in (0, 999, 600_001):
            with pytest.raises(InvalidLimit):
                await register(conn, ttl=timedelta(milliseconds=milliseconds))
        with pytest.raises(InvalidText):
            await register(conn, namespace="\0")


@pytest.mark.parametrize("case", CAPABILITIES["invalid"], ids=str)
async def test_invalid_capabilities_are_refused_with_their_cause(
    conn: Connection, given: Given, case: dict[str, Any]
) -> None:
    async with given.nothing_changes():
        with pytest.raises(InvalidCapabilities) as refused:
            await register(conn, capabilities=case["in"])
    assert refused.value.fields == {"cause": case["cause"]}


async def test_the_limits_of_capabilities(conn: Connection) -> None:
    for bad, cause in (([f"c{n:03}" for n in range(257)], "too_many_tokens"), (["x" * 4_097], "too_many_bytes")):
        with pytest.raises(InvalidCapabilities) as refused:
            await register(conn, capabilities=bad)
        assert refused.value.fields == {"cause": cause}
    for good in ([f"c{n:03}" for n in range(256)], ["x" * 4_096]):
        await register(conn, capabilities=good)


async def test_heartbeats_are_answered_in_order_and_write_no_event(conn: Connection, given: Given) -> None:
    for number in (3, 1, 2):
        await register(conn, f"w-{number}", ttl=timedelta(seconds=number * 10))
    before = await given.events()
    await given.time_passes(seconds=15)

    beats = await workers.beat(conn, ["w-3", "nobody", "w-1", "w-2", "w-3"])

    assert [(beat.instance, beat.outcome) for beat in beats] == [
        ("w-3", "refreshed"), ("nobody", "not_registered"), ("w-1", "not_registered"), ("w-2", "refreshed"),
        ("w-3", "refreshed"),
    ]  # fmt: skip
    assert beats[0].expires_at is not None
    assert beats[3].expires_at is not None
    assert beats[0].expires_at - beats[3].expires_at == timedelta(seconds=10)
    assert await workers.beat(conn, []) == []
    assert await given.events() == before


async def test_workers_are_listed_by_what_they_serve(conn: Connection, given: Given) -> None:
    await register(conn, "any", lanes=["a", "b"])
    await register(conn, "acme", lanes=["b"], namespace="acme")
    await register(conn, "other", lanes=["a"], namespace="other")

    assert await names(conn) == ["acme", "any", "other"]
    assert await names(conn, lane="a") == ["any", "other"]
    assert await names(conn, namespace="acme") == ["acme", "any"]
    assert await names(conn, namespace="acme", lane="a") == ["any"]
    await given.time_passes(seconds=30)
    assert (await names(conn), await names(conn, expired=True, lane="b")) == ([], ["acme", "any"])


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 1 << 40])
async def test_pages_lose_and_repeat_nothing(conn: Connection, limit: int) -> None:
    everybody = [f"w-{number}" for number in range(5)]
    for name in everybody:
        await register(conn, name)
    listed: list[str] = []
    cursor: str | None = None
    for _ in range(6):
        page = await workers.list_workers(conn, limit=limit, cursor=cursor)
        listed += [worker.instance for worker in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert (listed, cursor) == (everybody, None)


async def test_limits_of_a_list(conn: Connection) -> None:
    await register(conn)

    assert await names(conn, limit=0) == []
    with pytest.raises(InvalidLimit):
        await workers.list_workers(conn, limit=-1)


async def test_a_list_counts_the_leases(conn: Connection, given: Given) -> None:
    await register(conn, given.instance, worker=given.worker)
    first, _ = await given.claimed(), await given.claimed()
    await attempts.complete(conn, first.fence)

    assert (await entry(conn)).active_count == 1


async def test_marking_an_instance_dead_revokes_its_leases(conn: Connection, given: Given) -> None:
    await register(conn, given.instance, worker=given.worker)
    mine = [await given.claimed(policy={"max_reclaim_count": 0}) for _ in range(2)]
    await given.submitted(lane="other")
    [other] = await given.claim(lanes=["other"], instance="pool-2")

    marked = await workers.mark_dead(conn, given.instance, by="ops", reason="the machine burnt")

    assert marked == MarkedDead(outcome="marked", revoked=2)
    assert await names(conn, expired=True) == []
    for claim in mine:
        with pytest.raises(LeaseLost) as refused:
            await claims.renew(conn, claim.fence)
        assert refused.value.fields == {"cause": "revoked"}
    await claims.renew(conn, other.fence)
    assert await given.event("worker_marked_dead") == {"reason": "the machine burnt", "revoked": 2}
    assert (await given.event("lease_revoked"))["reason"] == "the machine burnt"
    assert [claim.attempt.type for claim in await given.claim(take=5)] == ["reclaim"] * 2
    async with given.nothing_changes():
        assert (await workers.mark_dead(conn, given.instance, by="ops")).outcome == "not_registered"


async def test_marking_dead_leaves_expired_leases_to_the_sweep(conn: Connection, given: Given) -> None:
    await register(conn, given.instance, worker=given.worker, ttl=timedelta(minutes=10))
    claim = await given.claimed(policy={"max_reclaim_count": 0})
    await given.time_passes(seconds=30)

    assert (await workers.mark_dead(conn, given.instance, by="ops")).revoked == 0
    await claims.expire_leases(conn)
    assert (await executions.describe(conn, claim.execution_id)).state.public_state is PublicState.FAILED


@pytest.mark.parametrize("reason", ["x" * 257, "a\nb", "a\x7f"])
async def test_an_invalid_reason_is_refused(conn: Connection, given: Given, reason: str) -> None:
    await register(conn)

    async with given.nothing_changes():
        with pytest.raises(InvalidBody) as refused:
            await workers.mark_dead(conn, "w-1", by="ops", reason=reason)
        with pytest.raises(InvalidBody):
            await workers.mark_dead(conn, "w-1", by="x" * 257)
    assert refused.value.fields == {"field": "reason"}
    assert (await workers.mark_dead(conn, "w-1", by="ops", reason="x" * 256)).outcome == "marked"


async def test_two_operators_marking_one_instance_dead_mark_it_once(given: Given, connect: Connect) -> None:
    await register(given.conn)
    one, two = await connect(), await connect()
    async with one.transaction():
        await workers.mark_dead(one, "w-1", by="ops")
        later = asyncio.create_task(workers.mark_dead(two, "w-1", by="ops"))
        await blocked(given, two, later)

    assert (await later).outcome == "not_registered"
    assert (await given.events()).count("worker_marked_dead") == 1


async def test_expired_entries_are_swept_and_their_leases_stay(conn: Connection, given: Given) -> None:
    await register(conn, given.instance, worker=given.worker, ttl=timedelta(seconds=1))
    await register(conn, "lives", ttl=timedelta(minutes=1))
    claim = await given.claimed()
    await given.time_passes(seconds=1)

    assert (await workers.expire_workers(conn)).moved == 1

    assert await names(conn, expired=True) == ["lives"]
    await claims.renew(conn, claim.fence)
    assert (await given.events())[-1] == "worker_expired"
    async with given.nothing_changes():
        assert (await workers.expire_workers(conn)).moved == 0


async def test_the_sweep_of_expired_workers_honours_its_limit_and_offset(conn: Connection, given: Given) -> None:
    for number in range(5):
        await register(conn, f"w-{number}", ttl=timedelta(seconds=10 + number))
    await given.time_passes(minutes=1)

    assert (await workers.expire_workers(conn, limit=2, passing=1)).moved == 2
    assert await names(conn, expired=True) == ["w-0", "w-3", "w-4"]
    assert (await workers.expire_workers(conn)).moved == 3
