"""Grants: who gets which, who may use one, and what happens to unused ones."""

import itertools
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rich.pretty import pretty_repr

from flowfabric import errors, signing, testing
from flowfabric.engine import attempts, claims, executions, holds, lanes, signing_keys, waits
from flowfabric.errors import GrantExpired, InvalidGrant, InvalidGrantLifetime, InvalidLease, InvalidWorker
from flowfabric.model import Grant, PublicState, Suspension, Swept
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission

SECRET = "5ecb0017" * 8
MILLISECOND = timedelta(milliseconds=1)


async def grants(given: Given, **options: Any) -> list[Grant]:
    """Issue grants to the worker, of the lane `default` unless given."""
    asked: dict[str, Any] = {"instance": given.instance, "lanes": ["default"], **options}
    return await claims.issue_grant(given.conn, asked.pop("worker", given.worker), **asked)


async def granted(given: Given, **options: Any) -> Grant:
    """A grant for an execution just submitted; nothing else may be ready."""
    await given.submitted(**options)
    [grant] = await grants(given, lanes=[options.get("lane", "default")])
    return grant


async def use(given: Given, grant_key: str, **options: Any) -> Any:
    asked = {"worker": given.worker, "instance": given.instance, **options}
    return await claims.claim_granted(given.conn, grant_key, **asked)


async def cause(given: Given, grant_key: str, **options: Any) -> Any:
    """The cause for which a grant is refused; nothing may change. Any caller may verify it."""
    async with given.nothing_changes():
        with pytest.raises(InvalidGrant) as raised:
            await use(given, grant_key, **options)
        if raised.value.fields != {"cause": "other_worker"}:
            with pytest.raises(InvalidGrant) as verified:
                await claims.verify_grant(given.conn, grant_key)
            assert verified.value == raised.value
    assert grant_key[-64:] not in str(raised.value) or grant_key == ""
    return raised.value.fields["cause"]


async def test_a_grant_becomes_a_lease(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    [grant] = await grants(given)
    state = (await executions.describe(conn, execution_id)).state
    ticket = await given.ticket(execution_id)

    assert (state.public_state, state.eligibility_state, state.ownership_state) == (
        PublicState.WAITING, "eligible_now", "unowned")  # fmt: skip
    assert (ticket["eligibility"], ticket["epoch"], ticket["attempt"]) == ("granted", 0, 0)
    assert await given.claim() == []
    assert await grants(given) == []
    claim = await use(given, grant.grant_key, lease=timedelta(seconds=10))
    assert (claim.execution_id, claim.fence.epoch, claim.attempt.number, claim.attempt.type) == (
        execution_id, 1, 1, "initial")  # fmt: skip
    assert claim.expires_at == claim.attempt.started_at + timedelta(seconds=10)
    await attempts.complete(conn, claim.fence, b"1")
    assert await given.events(execution_id) == [
        "execution_submitted", "grant_issued", "lease_acquired", "execution_completed"]  # fmt: skip


async def test_a_grant_key_has_the_wire_format_and_python_can_sign_it(conn: Connection, given: Given) -> None:
    await signing_keys.rotate_key(conn, "k2", SECRET)
    grant = await granted(given)
    expires_ms = round(grant.expires_at.timestamp() * 1000)
    message = signing.grant_message(str(grant.execution_id), given.worker, given.instance, expires_ms)

    signed = signing.sign(bytes.fromhex(SECRET), "k2", message)
    assert grant.grant_key == signing.grant_key(str(grant.execution_id), expires_ms, signed)
    assert grant.partition_key == f"{{fp:{grant.execution_id.partition}}}"
    assert grant.expires_at.microsecond % 1000 == 0
    assert timedelta(seconds=9) < grant.expires_at - await testing.now(conn) <= timedelta(seconds=10)
    for shown in (repr(grant), str(grant), pretty_repr(grant)):
        assert grant.grant_key[-64:] not in shown


async def test_verify_grant_returns_what_the_grant_says(conn: Connection, given: Given) -> None:
    grant = await granted(given)
    async with given.nothing_changes():
        first, again = [await claims.verify_grant(conn, grant.grant_key) for _ in range(2)]

    assert first == again
    assert (first.execution_id, first.worker, first.instance) == (grant.execution_id, given.worker, given.instance)
    assert first.expires_at == grant.expires_at


async def test_a_grant_is_logged_without_its_signature(conn: Connection, given: Given) -> None:
    grant = await granted(given, tags={"a.b": "c"})
    [row] = await given.rows("select e::text as line, tags::text from flowfabric.events e where kind = 'grant_issued'")
    detail = await given.event("grant_issued", grant.execution_id)

    assert (detail["worker"], detail["instance"], detail["kid"]) == (given.worker, given.instance, "k1")
    assert row["tags"] == '{"a.b": "c"}'
    assert grant.grant_key[-64:] not in row["line"]


async def test_a_grant_is_for_one_worker_instance(given: Given) -> None:
    key = (await granted(given)).grant_key

    assert await cause(given, key, worker="other") == "other_worker"
    assert await cause(given, key, instance="pool-2") == "other_worker"
    assert await cause(given, key, worker=given.instance, instance=given.worker) == "other_worker"
    assert (await use(given, key)).fence.epoch == 1


async def test_a_grant_is_used_once(given: Given) -> None:
    key = (await granted(given)).grant_key
    await use(given, key)

    assert await cause(given, key) == "unknown_grant"


async def test_an_altered_grant_is_refused_with_its_cause(given: Given) -> None:
    key = (await granted(given)).grant_key
    head, digest = key[:-64], key[-64:]
    flipped = f"{int(digest[0], 16) ^ 1:x}{digest[1:]}"
    expiry = head.split(":")[-3]

    assert await cause(given, head + flipped) == "signature_mismatch"
    assert await cause(given, key.replace(f":{expiry}:", f":{int(expiry) + 1}:")) == "signature_mismatch"
    assert await cause(given, key.replace(":k1:", ":k2:")) == "unknown_kid"
    for cut in (key[:-1], key[3:], head, "pg:", ""):
        assert await cause(given, cut) == "malformed"


async def test_a_grant_is_checked_in_the_documented_order(conn: Connection, given: Given) -> None:
    grant = await granted(given)
    key = grant.grant_key
    wrong = key[:-64] + "0" * 64
    later = {"worker": "other"}

    assert await cause(given, wrong.replace(":k1:", ":k9:")[:-1], **later) == "malformed"
    assert await cause(given, wrong.replace(":k1:", ":k9:"), **later) == "unknown_kid"
    assert await cause(given, wrong, **later) == "signature_mismatch"
    await given.time_passes(seconds=11)
    assert await cause(given, wrong, **later) == "signature_mismatch"
    with pytest.raises(GrantExpired):
        await use(given, key, **later)
    await claims.expire_grants(conn)
    assert await cause(given, wrong, **later) == "unknown_grant"


async def test_a_grant_for_another_execution_is_refused(given: Given) -> None:
    one, two = [(await granted(given, lane=lane)).grant_key for lane in "ab"]
    name = ":".join(two.split(":")[1:4])

    assert await cause(given, one.replace(":".join(one.split(":")[1:4]), name)) == "signature_mismatch"
    assert await cause(given, one[:-64] + two[-64:]) == "signature_mismatch"
    assert len({(await use(given, key)).execution_id for key in (one, two)}) == 2


async def test_an_expired_grant_is_refused_and_any_worker_can_claim_its_execution(
    conn: Connection, given: Given
) -> None:
    grant = await granted(given)
    await given.time_passes(seconds=10)
    async with given.nothing_changes():
        for call in (use(given, grant.grant_key), claims.verify_grant(conn, grant.grant_key)):
            with pytest.raises(GrantExpired, match=r"expired at .* UTC; request another"):
                await call
    [claim] = await given.claim(worker="other", instance="other-1")

    assert (claim.execution_id, claim.fence.epoch) == (grant.execution_id, 1)
    assert (await given.events(grant.execution_id))[1:] == ["grant_issued", "grant_expired", "lease_acquired"]
    assert await given.event("grant_expired") == {"worker": given.worker, "instance": given.instance}
    assert await cause(given, grant.grant_key) == "unknown_grant"


async def test_an_execution_is_granted_again_after_its_grant_expired(given: Given) -> None:
    first = await granted(given)
    await given.time_passes(seconds=10)
    [second] = await grants(given)

    assert second.execution_id == first.execution_id
    assert await cause(given, first.grant_key) == "unknown_grant"
    assert (await use(given, second.grant_key)).fence.epoch == 1


async def test_a_grant_is_valid_during_the_grace_of_its_key_and_not_after(conn: Connection, given: Given) -> None:
    one, two, three = [await granted(given, lane=lane) for lane in "abc"]
    await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(seconds=5))
    four = await granted(given, lane="d")
    await use(given, one.grant_key)
    await given.time_passes(seconds=5)

    assert await cause(given, two.grant_key) == "unknown_kid"
    assert ":k2:" in four.grant_key
    assert (await use(given, four.grant_key)).fence.epoch == 1
    await given.time_passes(seconds=5)
    assert Counter(await granted_lanes(given)) == {"b": 1, "c": 1}
    assert three.execution_id in {claim.execution_id for claim in await given.claim(lanes=["b", "c"], take=2)}


async def granted_lanes(given: Given) -> list[str]:
    """The lanes of granted tickets, including expired ones not swept yet."""
    rows = await given.rows("select lane from flowfabric.tickets where eligibility = 'granted' order by 1")
    return [row["lane"] for row in rows]


async def test_a_key_retired_with_grace_0_invalidates_its_grants(conn: Connection, given: Given) -> None:
    grant = await granted(given)
    await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(0))

    assert await cause(given, grant.grant_key) == "unknown_kid"


async def test_a_secret_in_its_grace_signs_no_new_grant(conn: Connection, given: Given) -> None:
    await signing_keys.rotate_key(conn, "leaked", SECRET)
    await signing_keys.rotate_key(conn, "k3", "0ddba115" * 8, grace=timedelta(hours=1))
    grant = await granted(given)
    expires_ms = round(grant.expires_at.timestamp() * 1000)
    message = signing.grant_message(str(grant.execution_id), given.worker, given.instance, expires_ms)
    forged = signing.sign(bytes.fromhex(SECRET), "leaked", message)

    assert await cause(given, signing.grant_key(str(grant.execution_id), expires_ms, forged)) == "unknown_grant"


async def cancel(given: Given, grant: Grant) -> None:
    await executions.cancel(given.conn, grant.execution_id, by="ops")


async def hold(given: Given, grant: Grant) -> None:
    await holds.hold(given.conn, grant.execution_id, by="ops")


async def reach_deadline(given: Given, grant: Grant) -> None:
    await given.time_passes(seconds=5)


async def expire(given: Given, grant: Grant) -> None:
    await given.time_passes(seconds=5)
    await executions.expire_executions(given.conn)


@pytest.mark.parametrize("void", [cancel, hold, reach_deadline, expire])
async def test_stopping_an_execution_invalidates_its_grant(given: Given, void: Callable[..., Any]) -> None:
    grant = await granted(given, deadline=timedelta(seconds=5))
    await void(given, grant)

    assert await cause(given, grant.grant_key) == "unknown_grant"


async def test_an_invalidated_grant_stays_invalid(conn: Connection, given: Given) -> None:
    first = await granted(given)
    await hold(given, first)
    await holds.unhold(conn, first.execution_id, by="ops")
    assert await cause(given, first.grant_key) == "unknown_grant"
    await given.time_passes(seconds=1)
    [second] = await grants(given)

    assert await cause(given, first.grant_key) == "unknown_grant"
    assert (await use(given, second.grant_key)).fence.epoch == 1


async def test_the_sweep_releases_unused_grants(conn: Connection, given: Given) -> None:
    for lane in "aab":
        await given.submitted(lane=lane)
    first = await grants(given, lanes=["a", "b"], take=3, ttl=timedelta(seconds=5))
    assert await claims.expire_grants(conn) == Swept(moved=0)
    await given.time_passes(seconds=5)
    swept = [
        await claims.expire_grants(conn, limit=2),
        await claims.expire_grants(conn),
        await claims.expire_grants(conn),
    ]

    assert [pass_.moved for pass_ in swept] == [2, 1, 0]
    assert sorted({lane for pass_ in swept for lane in pass_.lanes}) == ["a", "b"]
    assert all(len(set(pass_.lanes)) == len(pass_.lanes) for pass_ in swept)
    assert len(first) == len(await given.claim(lanes=["a", "b"], take=3)) == 3


async def test_a_granted_execution_reads_as_waiting_even_when_the_grant_has_expired(
    conn: Connection, given: Given
) -> None:
    grant = await granted(given)
    said = [await executions.explain(conn, grant.execution_id)]
    await given.time_passes(seconds=10)
    said.append(await executions.explain(conn, grant.execution_id))
    listed = await executions.list_executions(conn, states=[PublicState.WAITING])

    until = grant.expires_at.strftime("%Y-%m-%d %H:%M:%S UTC")
    holder = f"granted to worker {given.worker} (instance {given.instance}) until {until}"
    assert said[0].sentence == f"{holder}; after that any worker can claim it"
    assert (said[0].released_by, said[0].releases_at) == ("claim_granted", grant.expires_at)
    assert said[1].sentence == "waits for a worker of lane default; 0 ahead of it"
    assert [str(item.execution_id) for item in listed.items] == [str(grant.execution_id)]
    await lanes.pause_lane(conn, "default", by="ops")
    state = (await executions.describe(conn, grant.execution_id)).state
    assert (state.public_state, state.eligibility_state) == (PublicState.WAITING, "blocked_by_lane_state")


async def test_a_grant_resumes_an_interrupted_attempt(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy={"attempt_timeout_ms": 60_000})
    wish = Suspension(condition={"kind": "single", "waitpoint": "w"}, waitpoints=["w"])
    await waits.suspend(conn, claim.fence, wish)
    await waits.resume(conn, claim.execution_id, by="ops")
    [grant] = await grants(given, worker="second", instance="second-1")
    [listed] = (await attempts.list_attempts(conn, claim.execution_id)).items
    went_on = await use(given, grant.grant_key, worker="second", instance="second-1")

    assert (listed.worker, listed.instance) == (given.worker, given.instance)
    assert (went_on.attempt.number, went_on.fence.epoch, went_on.resumed) == (1, 2, True)
    assert went_on.attempt.started_at == claim.attempt.started_at


async def test_an_attempt_stays_with_the_worker_that_ran_it_while_a_grant_is_out(
    conn: Connection, given: Given
) -> None:
    claim = await given.claimed()
    await waits.suspend(conn, claim.fence, Suspension(condition={"kind": "single", "waitpoint": "w"}, waitpoints=["w"]))
    await waits.resume(conn, claim.execution_id, by="ops")
    assert len(await grants(given, worker="second", instance="second-1")) == 1
    await executions.cancel(conn, claim.execution_id, by="ops")
    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items

    assert (attempt.lifecycle, attempt.worker, attempt.instance) == ("ended_cancelled", given.worker, given.instance)


async def test_a_reclaim_by_grant_names_the_instance_that_lost_the_lease(conn: Connection, given: Given) -> None:
    await given.claimed(lease=timedelta(seconds=1))
    await given.time_passes(seconds=1)
    await claims.expire_leases(conn)
    [grant] = await grants(given, worker="second", instance="second-1")
    again = await use(given, grant.grant_key, worker="second", instance="second-1")

    assert (again.attempt.number, again.attempt.type, again.fence.epoch) == (2, "reclaim", 2)
    assert (await given.event("lease_acquired"))["previous_instance"] == given.instance


async def test_grants_follow_priority_and_turns_as_claims_do(given: Given) -> None:
    for namespace, priority in itertools.product("ab", (1, 9, 5)):
        await executions.submit_many(given.conn, [submission(namespace=namespace, priority=priority) for _ in range(3)])
    first = await grants(given, take=10)
    claimed = [await use(given, grant.grant_key) for grant in first]

    assert [claim.priority for claim in claimed] == [9] * 6 + [5] * 4
    assert Counter(claim.namespace for claim in claimed) == {"a": 5, "b": 5}
    logged = await given.rows("select execution from flowfabric.events where kind = 'grant_issued' order by id")
    assert [row["execution"] for row in logged] == [grant.execution_id.uuid for grant in first]
    assert [grant.route for grant in first] == [claim.route for claim in claimed]


async def test_grants_of_one_take_turns_between_calls(given: Given) -> None:
    for namespace in "abc":
        await executions.submit_many(given.conn, [submission(namespace=namespace) for _ in range(2)])
    routes, last = [], 0
    for _ in range(6):
        [grant] = await grants(given, after_route=last)
        routes.append(last := grant.route)

    assert routes == sorted(set(routes)) * 2


async def test_grants_are_admitted_as_claims_are(conn: Connection, given: Given) -> None:
    await given.submitted(needs=["gpu"])
    await given.submitted(lane="paused")
    await lanes.pause_lane(conn, "paused", by="ops")
    late = await given.submitted(delay=timedelta(hours=1), namespace="n")
    await given.held(lane="held")

    assert await grants(given, lanes=["default", "paused", "held"], take=9) == []
    assert await grants(given, capabilities=["gpu"], namespace="n") == []
    assert len(await grants(given, capabilities=["gpu"], take=9)) == 1
    await given.time_passes(hours=1)
    assert [grant.execution_id for grant in await grants(given, namespace="n")] == [late]


async def test_an_execution_past_its_deadline_is_ended_and_not_granted(given: Given) -> None:
    late = await given.submitted(deadline=timedelta(seconds=1), priority=5)
    good = await given.submitted()
    await given.time_passes(seconds=1)

    assert [grant.execution_id for grant in await grants(given)] == [good]
    assert (await given.events(late))[-1] == "execution_expired"


async def test_a_grant_lasts_a_millisecond_to_a_minute(given: Given) -> None:
    await given.submitted()
    for ttl in (timedelta(0), -MILLISECOND, timedelta(milliseconds=60_001), timedelta.max, timedelta.min):
        async with given.nothing_changes():
            with pytest.raises(InvalidGrantLifetime, match="use 1 to 60,000 ms"):
                await grants(given, ttl=ttl)

    [short] = await grants(given, ttl=MILLISECOND)
    await given.time_passes(seconds=1)
    [long] = await grants(given, ttl=timedelta(minutes=1))
    assert long.expires_at - short.expires_at > timedelta(minutes=1)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"take": 0}, errors.InvalidLimit),
        ({"take": 1_001}, errors.InvalidLimit),
        ({"lanes": []}, errors.InvalidLane),
        ({"worker": "a|b"}, InvalidWorker),
        ({"instance": "a|b"}, InvalidWorker),
        ({"worker": ""}, InvalidWorker),
        ({"capabilities": [""]}, errors.InvalidCapabilities),
    ],
)
async def test_a_grant_is_refused_for_the_same_arguments_as_a_claim(
    conn: Connection, given: Given, options: dict[str, Any], refusal: type[errors.FlowFabricError]
) -> None:
    await given.submitted()
    await conn.execute("delete from flowfabric.keys")
    async with given.nothing_changes():
        with pytest.raises(refusal):
            await grants(given, **options)


async def test_an_invalid_lease_leaves_the_grant_valid(given: Given) -> None:
    key = (await granted(given)).grant_key
    for lease in (timedelta(milliseconds=999), timedelta(hours=2)):
        async with given.nothing_changes():
            with pytest.raises(InvalidLease):
                await use(given, key, lease=lease)

    assert (await use(given, key)).fence.epoch == 1


async def test_a_grant_is_not_turned_into_a_lease_while_its_lane_is_paused(conn: Connection, given: Given) -> None:
    grant = await granted(given)
    await lanes.pause_lane(conn, "default", by="ops")

    async with given.nothing_changes():
        with pytest.raises(InvalidGrant, match="lane default is paused") as raised:
            await use(given, grant.grant_key)
    assert raised.value.fields == {"cause": "lane_paused"}
    await lanes.resume_lane(conn, "default", by="ops")
    assert (await use(given, grant.grant_key)).execution_id == grant.execution_id
