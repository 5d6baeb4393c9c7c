"""Claiming: which worker gets which execution, under which lease, and what a claim refuses."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from flowfabric import testing
from flowfabric.engine import attempts, claims, executions, holds, lanes, workers
from flowfabric.errors import (
    InvalidCapabilities,
    InvalidLane,
    InvalidLease,
    InvalidLimit,
    InvalidText,
    InvalidWorker,
    LaneDraining,
)
from flowfabric.ids import ExecutionId
from flowfabric.model import PublicState
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given, submission

CAPABILITIES = msgspec.json.decode(Path(__file__).parents[2].joinpath("vectors.json").read_bytes())["capabilities"]
RETRY = {"retry": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def test_an_execution_is_submitted_claimed_and_completed(conn: Connection, given: Given) -> None:
    """The public state goes waiting, active, completed; the result reads back unchanged; the ticket is deleted."""
    states = []
    execution_id = await given.submitted()
    states.append((await executions.describe(conn, execution_id)).state.public_state)
    [claim] = await given.claim()
    states.append((await executions.describe(conn, execution_id)).state.public_state)
    await attempts.complete(conn, claim.fence, b"\0\xffP")
    described = await executions.describe(conn, execution_id, result=True)
    states.append(described.state.public_state)

    assert states == [PublicState.WAITING, PublicState.ACTIVE, PublicState.COMPLETED]
    assert described.result == b"\0\xffP"
    assert await given.count("tickets") == 0


async def test_a_claim_has_everything_a_worker_needs(conn: Connection, given: Given) -> None:
    policy = {"attempt_timeout_ms": 60_000, "max_reclaim_count": 3}
    execution_id = await given.submitted(
        task="draw", lane="art", namespace="acme", payload=b"\0\x01", encoding="raw", priority=7, tags={"a.b": "c"},
        policy=policy, deadline=timedelta(hours=1),
    )  # fmt: skip
    now = await testing.now(conn)
    [claim] = await given.claim(lanes=["art"], lease=timedelta(seconds=10))
    ticket = await given.ticket(execution_id)

    assert (claim.execution_id, claim.task, claim.namespace, claim.lane) == (execution_id, "draw", "acme", "art")
    assert (claim.payload, claim.encoding, claim.priority) == (b"\0\x01", "raw", 7)
    assert (claim.tags, claim.policy) == ({"a.b": "c"}, policy)
    assert (claim.fence.lease_id, claim.fence.epoch, claim.fence.attempt) == (ticket["lease_id"], 1, 1)
    assert (claim.attempt.number, claim.attempt.type, claim.resumed) == (1, "initial", False)
    assert (claim.route, claim.deadline_at) == (ticket["route"], ticket["deadline_at"])
    assert claim.expires_at == ticket["expires_at"] == claim.attempt.started_at + timedelta(seconds=10)
    assert claim.attempt_deadline == claim.attempt.started_at + timedelta(minutes=1)
    assert claim.attempt.started_at >= now


async def test_omitted_fields_of_a_submission_are_empty_in_the_claim(given: Given) -> None:
    claim = await given.claimed()

    assert (claim.payload, claim.encoding, claim.tags, claim.policy) == (None, "json", {}, {})
    assert claim.attempt_deadline is claim.deadline_at is None


async def test_a_claim_is_written_on_the_ticket_and_in_the_log(conn: Connection, given: Given) -> None:
    claim = await given.claimed(tags={"a.b": "c"})
    ticket = await given.ticket(claim.execution_id)
    event = await given.event("lease_acquired")

    assert (ticket["phase"], ticket["attempt_state"], ticket["reason"]) == ("active", "running_attempt", "none")
    assert (ticket["worker"], ticket["instance"]) == (given.worker, given.instance)
    assert event == {
        "worker": given.worker, "instance": given.instance, "lease_id": str(claim.fence.lease_id), "epoch": 1,
        "attempt": 1, "attempt_type": "initial", "resumed": False,
    }  # fmt: skip
    [row] = await given.rows("select tags::text from flowfabric.events where kind = 'lease_acquired'")
    assert row["tags"] == '{"a.b": "c"}'


async def test_a_delayed_execution_is_claimed_when_it_is_due_without_a_sweep(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(delay=timedelta(hours=1))

    assert (await executions.describe(conn, execution_id)).state.public_state is PublicState.DELAYED
    await given.time_passes(minutes=59)
    assert await given.claim() == []
    await given.time_passes(minutes=1)
    [claim] = await given.claim()
    assert claim.execution_id == execution_id


async def test_of_two_workers_racing_for_one_execution_one_gets_it(given: Given, connect: Connect) -> None:
    await given.submitted()
    one, two = await connect(), await connect()
    async with one.transaction():
        first = await claims.claim(one, "w", instance="w-1", lanes=["default"])
        second = await claims.claim(two, "w", instance="w-2", lanes=["default"])
    third = await claims.claim(two, "w", instance="w-2", lanes=["default"])

    assert (len(first), second, third) == (1, [], [])


async def test_many_workers_claiming_at_once_lose_and_double_nothing(given: Given, connect: Connect) -> None:
    await executions.submit_many(given.conn, [submission(namespace=f"n{at % 7}") for at in range(200)])

    async def work(number: int) -> list[ExecutionId]:
        conn, taken = await connect(), []
        while got := await claims.claim(conn, "w", instance=f"w-{number}", lanes=["default"], take=5):
            taken += [claim.execution_id for claim in got]
        return taken

    taken = [one for some in await asyncio.gather(*map(work, range(8))) for one in some]
    assert len(taken) == len(set(taken)) == 200


async def test_tickets_locked_by_another_claim_do_not_hide_other_routes(given: Given, connect: Connect) -> None:
    """A claim locks only the rows it takes, so other claims do not see an empty lane."""
    await given.submitted(namespace="a", priority=5)
    second = await given.submitted(namespace="b", priority=5)
    await given.submitted(namespace="c", priority=1)
    other = await connect()
    async with other.transaction():
        await claims.claim(other, "w", instance="w-1", lanes=["default"])
        [claim] = await given.claim()

    assert claim.execution_id == second


async def test_a_worker_gets_only_executions_whose_needs_it_covers(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(needs=["gpu", "llm"])

    assert await given.claim() == []
    assert await given.claim(capabilities=["gpu"]) == []
    described = (await executions.describe(conn, execution_id)).state
    assert (described.eligibility_state, described.blocking_reason) == (
        "blocked_by_route",
        "waiting_for_capable_worker",
    )
    [claim] = await given.claim(capabilities={"llm", "gpu", "disk"})
    assert claim.execution_id == execution_id


@pytest.mark.parametrize("case", CAPABILITIES["subset"], ids=str)
async def test_the_vectors_of_capabilities(given: Given, case: dict[str, Any]) -> None:
    await given.submitted(needs=case["required"])

    assert len(await given.claim(capabilities=case["worker"])) == case["may_take"]


async def test_executions_a_worker_cannot_run_hide_nothing_and_are_not_written(conn: Connection, given: Given) -> None:
    """Capabilities are part of the query: rows the worker cannot run neither fill the limit nor are changed."""
    await executions.submit_many(conn, [submission(needs=["gpu"], priority=at) for at in range(300)])
    plain = await given.submitted()
    before = await given.rows(
        "select * from flowfabric.tickets where route <> (select max(route) from flowfabric.tickets)"
    )

    [claim] = await given.claim(take=10)

    assert claim.execution_id == plain
    assert before == await given.rows("select * from flowfabric.tickets where phase = 'runnable'")


async def test_one_capable_worker_opens_a_route_and_two_with_half_each_do_not(conn: Connection, given: Given) -> None:
    """One single worker must cover all needs; the union of all workers does not count."""
    execution_id = await given.submitted(needs=["gpu", "llm"])

    async def seen() -> str:
        return (await executions.describe(conn, execution_id)).state.eligibility_state

    for half in ("gpu", "llm"):
        await workers.register_worker(conn, "w", instance=half, lanes=["default"], capabilities=[half])
        assert await seen() == "blocked_by_route"
    await workers.register_worker(conn, "w", instance="whole", lanes=["default"], capabilities=["llm", "gpu"])
    assert await seen() == "eligible_now"


async def test_a_paused_lane_gives_no_work_and_accepts_submissions(conn: Connection, given: Given) -> None:
    running = await given.claimed()
    await lanes.pause_lane(conn, "default", by="ops")
    waiting = await given.submitted()

    assert await given.claim() == []
    assert (await executions.describe(conn, waiting)).state.eligibility_state == "blocked_by_lane_state"
    await attempts.complete(conn, running.fence)
    await lanes.resume_lane(conn, "default", by="ops")
    assert [claim.execution_id for claim in await given.claim()] == [waiting]


async def test_a_draining_lane_refuses_submissions_and_gives_its_existing_work(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(policy=RETRY)
    await lanes.drain_lane(conn, "default", by="ops")

    with pytest.raises(LaneDraining):
        await given.submitted()
    [first] = await given.claim()
    await attempts.fail(conn, first.fence, "no")
    [second] = await given.claim()
    assert (second.execution_id, second.attempt.type) == (execution_id, "retry")


async def test_a_paused_lane_does_not_stop_the_others(conn: Connection, given: Given) -> None:
    await given.submitted(lane="a", priority=9)
    other = await given.submitted(lane="b")
    await lanes.pause_lane(conn, "a", by="ops")

    assert [claim.execution_id for claim in await given.claim(lanes=["a", "b"], take=5)] == [other]


async def test_an_unknown_lane_has_no_work(given: Given) -> None:
    await given.submitted()

    async with given.nothing_changes():
        assert await given.claim(lanes=["nowhere"]) == []


async def test_a_held_execution_is_not_claimed(conn: Connection, given: Given) -> None:
    execution_id = await given.held()

    assert await given.claim() == []
    await holds.unhold(conn, execution_id, by="ops")
    assert [claim.execution_id for claim in await given.claim()] == [execution_id]


async def test_a_claim_may_be_for_one_namespace(given: Given) -> None:
    await given.submitted(namespace="a", priority=9)
    other = await given.submitted(namespace="b")

    assert await given.claim(namespace="c") == []
    assert [claim.execution_id for claim in await given.claim(namespace="b", take=5)] == [other]


async def test_a_claim_may_be_for_some_partitions(given: Given) -> None:
    ids = [ExecutionId(partition, uuid4()) for partition in (0, 7, 255)]
    for one in ids:
        await given.submitted(execution_id=one)

    assert await given.claim(partitions=[], take=9) == []
    assert await given.claim(partitions=[1, 70_000], take=9) == []
    assert [claim.execution_id for claim in await given.claim(partitions=[7, 255], take=9)] == ids[1:]
    assert [claim.execution_id for claim in await given.claim(take=9)] == ids[:1]


async def test_a_claim_stops_at_16_mib_of_payload(given: Given) -> None:
    batch = [submission(payload=b"x" * 1_048_576) for _ in range(20)]
    await executions.submit_many(given.conn, batch)

    first, second = await given.claim(take=20), await given.claim(take=20)

    assert (len(first), len(second)) == (16, 4)
    assert len({claim.execution_id for claim in first + second}) == 20
    assert {claim.payload for claim in first + second} == {b"x" * 1_048_576}


async def test_a_single_payload_over_16_mib_is_claimed_alone(given: Given) -> None:
    for size in (17, 1):
        await executions.submit(given.conn, submission(payload=b"x" * (size << 20)), payload_limit=1 << 25)

    assert [len(claim.payload or b"") >> 20 for claim in await given.claim(take=5)] == [17]
    assert [len(claim.payload or b"") >> 20 for claim in await given.claim(take=5)] == [1]


async def test_executions_past_their_deadline_are_ended_and_others_are_claimed_instead(
    conn: Connection, given: Given
) -> None:
    late = [await given.submitted(deadline=timedelta(minutes=1)) for _ in range(3)]
    good = await given.submitted()
    await given.time_passes(minutes=1)

    [claim] = await given.claim()

    assert claim.execution_id == good
    for execution_id in late:
        described = await executions.describe(conn, execution_id)
        assert described.state.public_state is PublicState.EXPIRED
        assert described.failure is not None
        assert described.failure.reason == "execution_deadline"
        assert await given.events(execution_id) == ["execution_submitted", "execution_expired"]


async def test_a_claim_that_finds_very_many_expired_executions_leaves_the_rest_to_the_sweep(given: Given) -> None:
    batch = [submission(deadline=timedelta(minutes=1), priority=1) for _ in range(150)]
    await executions.submit_many(given.conn, batch)
    good = await given.submitted()
    await given.time_passes(minutes=1)

    assert [claim.execution_id for claim in await given.claim()] == [good]
    assert 1 < await given.count("tickets") < 100


@pytest.mark.parametrize("name", ["", "a b", "a\tb", "a\x7f", "a|b", "a\u00a0b", "x" * 257, "ä" * 129])
async def test_an_invalid_worker_name_is_refused(given: Given, name: str) -> None:
    await given.submitted()

    async with given.nothing_changes():
        with pytest.raises(InvalidWorker):
            await given.claim(worker=name)
        with pytest.raises(InvalidWorker):
            await given.claim(instance=name)


@pytest.mark.parametrize("name", ["x" * 256, "ä" * 128, "a:b,c/d"])
async def test_a_valid_worker_name_is_accepted(given: Given, name: str) -> None:
    await given.submitted()

    assert len(await given.claim(worker=name, instance=name)) == 1


@pytest.mark.parametrize("lane_names", [[], [""], ["x" * 65], ["ä"], ["default", "a\nb"], ["default\n"]])
async def test_invalid_lanes_are_refused(given: Given, lane_names: list[str]) -> None:
    await given.submitted()

    async with given.nothing_changes():
        with pytest.raises(InvalidLane):
            await given.claim(lanes=lane_names)


@pytest.mark.parametrize("take", [-1, 0, 1_001])
async def test_a_claim_takes_1_to_1000(given: Given, take: int) -> None:
    await given.submitted()

    async with given.nothing_changes():
        with pytest.raises(InvalidLimit):
            await given.claim(take=take)
    assert len(await given.claim(take=1_000)) == 1


@pytest.mark.parametrize("milliseconds", [-1, 0, 999, 3_600_001])
async def test_a_lease_lasts_from_a_second_to_an_hour(given: Given, milliseconds: int) -> None:
    await given.submitted()

    async with given.nothing_changes():
        with pytest.raises(InvalidLease):
            await given.claim(lease=timedelta(milliseconds=milliseconds))


@pytest.mark.parametrize("milliseconds", [1_000, 3_600_000])
async def test_the_shortest_and_the_longest_lease_are_accepted(given: Given, milliseconds: int) -> None:
    await given.submitted()
    [claim] = await given.claim(lease=timedelta(milliseconds=milliseconds))

    assert claim.expires_at - claim.attempt.started_at == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        *[(case["in"], case["cause"]) for case in CAPABILITIES["invalid"]],
        ({"gpu": 1}, "not_array"),
        ([b"gpu"], "non_string_token"),
        ([f"c{number:03}" for number in range(257)], "too_many_tokens"),
        (["x" * 4_097], "too_many_bytes"),
        (["x" * 2_048, "y" * 2_048], "too_many_bytes"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_invalid_capabilities_are_refused_with_their_cause(given: Given, bad: Any, cause: str) -> None:
    await given.submitted()

    async with given.nothing_changes():
        with pytest.raises(InvalidCapabilities) as refused:
            await given.claim(capabilities=bad)
        assert refused.value.fields == {"cause": cause}


async def test_capabilities_at_the_limit_are_accepted(given: Given) -> None:
    for good in (
        [f"c{number:03}" for number in range(256)],
        [f"c{number % 256:03}" for number in range(512)],
        ["x" * 4_096],
        ["x" * 2_047, "y" * 2_048],
    ):
        await given.submitted(needs=good)
        assert len(await given.claim(capabilities=good)) == 1


async def test_text_that_postgres_cannot_store_is_refused(given: Given) -> None:
    for bad in ({"worker": "\0"}, {"instance": "\ud800"}, {"lanes": ["\0"]}, {"capabilities": ["\0"]}):
        with pytest.raises(InvalidText):
            await given.claim(**bad)


async def test_a_reused_worker_name_does_not_inherit_leases(conn: Connection, given: Given) -> None:
    first = await given.claimed()

    assert await given.claim() == []
    await given.time_passes(minutes=1)
    await claims.expire_leases(conn)
    [second] = await given.claim()
    assert second.fence.lease_id != first.fence.lease_id
