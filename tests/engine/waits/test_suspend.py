"""Suspending: the lease is released, nothing is reserved, and signals sent earlier count."""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from flowfabric import testing
from flowfabric.engine import attempts, claims, executions, signing_keys, waits
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    InvalidBody,
    InvalidId,
    InvalidSuspension,
    InvalidText,
    InvalidTime,
    LeaseLost,
    NoActiveKey,
    PayloadTooLarge,
    PendingWaitpointExpired,
    WaitpointClosed,
    WaitpointNotFound,
    WaitpointNotPending,
    WaitpointOfOtherExecution,
)
from flowfabric.ids import mint_execution_id
from flowfabric.model import ExecutionToSuspend, PublicState, Suspended
from flowfabric.postgres.driver import Connection
from tests.engine.waits.scene import ANY, APPROVE, OPERATOR_ONLY, to, waiting, wish
from tests.given import Given, submission

TIMEOUT_ONLY = {"kind": "timeout_only"}
HOUR = timedelta(hours=1)


def count(**fields: object) -> dict[str, object]:
    return {"kind": "count", "n": 1, "of": "distinct_signals", "waitpoints": ["w"], **fields}


def nested(depth: int) -> dict[str, object]:
    return {**ANY} if depth == 1 else {"kind": "all_of", "members": [nested(depth - 1)]}


def many(nodes: int) -> dict[str, object]:
    return {"kind": "any_of", "members": [ANY] * (nodes - 1)}


async def test_a_suspended_execution_holds_nothing(conn: Connection, given: Given) -> None:
    """It has no lease and cannot be claimed, and calls with its old fence are refused."""
    claim = await given.claimed()

    answer = await waits.suspend(conn, claim.fence, wish(about=b"look", timeout=HOUR))

    described = await executions.describe(conn, claim.execution_id)
    assert (described.state.public_state, described.lease) == (PublicState.SUSPENDED, None)
    assert described.state.blocking_reason == "waiting_for_signal"
    assert described.suspension is not None
    assert described.suspension.suspension_id == answer.suspension_id
    assert described.suspension.about_digest == sha256(b"look").hexdigest()
    assert await given.claim() == []
    assert (await given.events(claim.execution_id))[2:] == ["waitpoint_created", "execution_suspended"]
    with pytest.raises(ExecutionNotActive) as refused:
        await attempts.complete(conn, claim.fence)
    assert refused.value.fields["phase"] == "suspended"


REASONS = {
    "waiting_for_signal": "waiting_for_signal",
    "waiting_for_approval": "waiting_for_approval",
    "waiting_for_callback": "waiting_for_callback",
    "waiting_for_tool_result": "waiting_for_tool_result",
    "waiting_for_operator_review": "paused_by_operator",
    "manual_pause": "paused_by_operator",
    "paused_by_policy": "paused_by_policy",
    "paused_by_budget": "waiting_for_budget",
    "step_boundary": "waiting_for_signal",
}


@pytest.mark.parametrize("code", REASONS)
async def test_a_reason_code_stands_for_a_blocking_reason(conn: Connection, given: Given, code: str) -> None:
    suspended = await waiting(given, reason_code=code)

    described = await executions.describe(conn, suspended.execution_id)
    assert described.state.blocking_reason == REASONS[code]


CAUSES: list[tuple[str, object, list[str], dict[str, Any]]] = [
    ("waitpoints_empty", APPROVE, [], {}),
    ("waitpoints_empty", nested(2), [], {}),
    ("waitpoints_empty", many(2), [], {}),
    ("waitpoints_empty", count(), [], {}),
    ("waitpoint_key_empty", APPROVE, ["w", ""], {}),
    ("waitpoint_key_empty", {"kind": "single", "waitpoint": ""}, ["w"], {}),
    ("waitpoint_key_empty", {"kind": "single"}, ["w"], {}),
    ("waitpoint_key_empty", count(waitpoints=["w", ""]), ["w"], {}),
    ("waitpoint_key_duplicate", APPROVE, ["w", "w"], {}),
    ("waitpoint_key_duplicate", count(waitpoints=["w", "w"]), ["w"], {}),
    ("waitpoint_key_too_long", APPROVE, ["w", "é" * 64 + "x"], {}),
    ("referenced_waitpoint_key_missing_binding", {"kind": "single", "waitpoint": "v"}, ["w"], {}),
    ("referenced_waitpoint_key_missing_binding", count(waitpoints=["v", "w"]), ["w"], {}),
    ("extra_binding_not_referenced_by_condition", APPROVE, ["w", "v"], {}),
    ("signal_name_empty", {**ANY, "name": ""}, ["w"], {}),
    ("signal_name_empty", count(name=""), ["w"], {}),
    ("allof_empty_members", {"kind": "all_of", "members": []}, ["w"], {}),
    ("allof_empty_members", {"kind": "all_of"}, ["w"], {}),
    ("anyof_empty_members", {"kind": "any_of", "members": []}, ["w"], {}),
    ("count_n_zero", count(n=0), ["w"], {}),
    ("count_n_zero", count(n=-(10**30)), ["w"], {}),
    ("count_n_zero", count(n=None), ["w"], {}),
    ("count_n_too_large", count(n=10_001), ["w"], {}),
    ("count_n_too_large", count(n=10**18), ["w"], {}),
    ("count_waitpoints_empty", count(waitpoints=[]), ["w"], {}),
    ("count_exceeds_waitpoint_set", count(n=2, of="distinct_waitpoints"), ["w"], {}),
    ("condition_too_deep", nested(5), ["w"], {}),
    ("condition_too_deep", nested(900), ["w"], {}),
    ("condition_too_large", many(65), ["w"], {}),
    ("condition_too_large", count(), [f"w{n}" for n in range(65)], {}),
    ("timeout_only_without_deadline", TIMEOUT_ONLY, [], {}),
    ("timeout_at_in_past", APPROVE, ["w"], {"timeout": timedelta(0)}),
    ("timeout_at_in_past", APPROVE, ["w"], {"timeout": timedelta.min}),
    ("timeout_at_in_past", APPROVE, ["w"], {"timeout": datetime(2020, 1, 1, tzinfo=UTC)}),
    ("unknown_reason_code", APPROVE, ["w"], {"reason_code": "bored"}),
    ("unknown_timeout_behavior", APPROVE, ["w"], {"timeout_behavior": "shrug"}),
    ("nested_standalone", {"kind": "any_of", "members": [ANY, OPERATOR_ONLY]}, ["w"], {}),
    ("nested_standalone", {"kind": "all_of", "members": [ANY, TIMEOUT_ONLY]}, ["w"], {}),
    ("unknown_condition", {"kind": "some_of"}, ["w"], {}),
    ("unknown_condition", {}, ["w"], {}),
    ("unknown_condition", [ANY], ["w"], {}),
    ("unknown_condition", "single", ["w"], {}),
    ("unknown_condition", 5, ["w"], {}),
    ("unknown_condition", None, ["w"], {}),
    ("unknown_condition", {"kind": ["single"]}, ["w"], {}),
    ("unknown_condition", {"kind": "all_of", "members": ["single"]}, ["w"], {}),
    ("unknown_condition", {"kind": "all_of", "members": [None]}, ["w"], {}),
    ("malformed_condition", {"kind": "all_of", "members": {"kind": "single"}}, ["w"], {}),
    ("malformed_condition", {"kind": "any_of", "members": "w"}, ["w"], {}),
    ("malformed_condition", {**ANY, "waitpoint": 5}, ["w"], {}),
    ("malformed_condition", {**ANY, "waitpoint": ["w"]}, ["w"], {}),
    ("malformed_condition", {**ANY, "names": ["x"]}, ["w"], {}),
    ("malformed_condition", {**ANY, "n": 1}, ["w"], {}),
    ("malformed_condition", {**ANY, "name": 5}, ["w"], {}),
    ("malformed_condition", {**ANY, "name": "x" * 129}, ["w"], {}),
    ("malformed_condition", {**ANY, "source_type": ""}, ["w"], {}),
    ("malformed_condition", {**ANY, "source_type": {}}, ["w"], {}),
    ("malformed_condition", {**OPERATOR_ONLY, "by": "ann"}, ["w"], {}),
    ("malformed_condition", count(waitpoints="w"), ["w"], {}),
    ("malformed_condition", count(waitpoints={"w": 1}), ["w"], {}),
    ("malformed_condition", count(waitpoints=["w", 5]), ["w"], {}),
    ("malformed_condition", count(of="distinct_moods"), ["w"], {}),
    ("malformed_condition", count(of=None), ["w"], {}),
    ("malformed_condition", count(n=1.5), ["w"], {}),
    ("malformed_condition", count(n="2"), ["w"], {}),
    ("malformed_condition", {**ANY, "name": object()}, ["w"], {}),
]


@pytest.mark.parametrize(("cause", "condition", "waitpoints", "options"), CAUSES)
async def test_an_invalid_suspension_is_refused_with_its_cause(
    conn: Connection, given: Given, cause: str, condition: Any, waitpoints: list[str], options: dict[str, Any]
) -> None:
    """Nothing is written and the lease is kept."""
    claim = await given.claimed()

    async with given.nothing_changes():
        with pytest.raises(InvalidSuspension) as refused:
            await waits.suspend(conn, claim.fence, wish(condition, waitpoints, **options))

    assert refused.value.fields == {"cause": cause}
    await claims.renew(conn, claim.fence)


async def test_a_condition_nested_100_000_levels_deep_is_refused(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    condition: dict[str, object] = dict(ANY)
    for _ in range(100_000):
        condition = {"kind": "all_of", "members": [condition]}

    with pytest.raises(InvalidSuspension) as refused:
        await waits.suspend(conn, claim.fence, wish(condition))

    assert refused.value.fields == {"cause": "condition_too_deep"}


@pytest.mark.parametrize("condition", [nested(4), many(64), count(n=10_000), {**ANY, "name": None}])
async def test_a_condition_at_the_limits_is_accepted(given: Given, condition: dict[str, object]) -> None:
    suspended = await waiting(given, condition)

    assert [point.key for point in suspended.answer.waitpoints] == ["w"]


async def test_sixty_four_waitpoints_can_be_waited_for_at_once(given: Given) -> None:
    wanted = [f"w{number:02}" for number in range(64)]

    suspended = await waiting(given, count(waitpoints=wanted), wanted)

    assert [point.key for point in suspended.answer.waitpoints] == wanted
    assert len({point.token for point in suspended.answer.waitpoints}) == 64


INVALID: list[tuple[type[Exception], dict[str, Any]]] = [
    (InvalidBody, {"requested_by": "nobody"}),
    (InvalidBody, {"idempotency_key": "k" * 257}),
    (InvalidBody, {"name": "n" * 129, "occurrence": 1}),
    (InvalidBody, {"name": "n", "occurrence": 0}),
    (InvalidBody, {"name": "n", "occurrence": 1 << 31}),
    (InvalidBody, {"bind": True}),
    (InvalidTime, {"timeout": timedelta(days=3651)}),
    (InvalidTime, {"timeout": timedelta.max}),
    (InvalidTime, {"timeout": datetime(9999, 1, 1, tzinfo=UTC)}),
    (InvalidTime, {"timeout": "1h"}),
    (InvalidTime, {"resume_delay": timedelta(milliseconds=-1)}),
    (InvalidTime, {"resume_delay": timedelta.max}),
    (InvalidTime, {"resume_delay": timedelta.min}),
    (PayloadTooLarge, {"about": b"x" * 65_537}),
    (InvalidText, {"reason_code": "\0"}),
    (InvalidText, {"waitpoints": ["w\0"]}),
    (InvalidText, {"condition": {**ANY, "name": "\0"}}),
    (InvalidText, {"condition": {**ANY, "name": "\ud800"}}),
    (InvalidId, {"waitpoints": [("w", "not an id")]}),
]


@pytest.mark.parametrize(("refusal", "options"), INVALID)
async def test_other_invalid_arguments_are_refused(
    conn: Connection, given: Given, refusal: type[Exception], options: dict[str, Any]
) -> None:
    claim = await given.claimed()

    async with given.nothing_changes():
        with pytest.raises(refusal):
            await waits.suspend(conn, claim.fence, wish(**options))

    await claims.renew(conn, claim.fence)


@pytest.mark.parametrize(("refusal", "options"), INVALID)
async def test_an_invalid_suspension_harms_no_other_of_its_call(
    conn: Connection, given: Given, refusal: type[Exception], options: dict[str, Any]
) -> None:
    await executions.submit_many(conn, [submission()] * 2)
    wishes = [wish(**options), wish()]
    items = [ExecutionToSuspend(fence=claim.fence, waits=[wanted])
             for claim, wanted in zip(await given.claim(take=2), wishes, strict=True)]  # fmt: skip

    invalid, valid = await waits.suspend_many(conn, items)

    assert isinstance(invalid, refusal)
    assert isinstance(valid, Suspended)


async def test_about_may_have_65_536_bytes(given: Given) -> None:
    await waiting(given, about=b"x" * 65_536, idempotency_key="k" * 256, name="n" * 128, occurrence=True)


async def test_a_stale_fence_is_refused_before_the_suspension_is_validated(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    stale = msgspec.structs.replace(claim.fence, epoch=9)
    nowhere = msgspec.structs.replace(claim.fence, execution_id=mint_execution_id())

    async with given.nothing_changes():
        with pytest.raises(LeaseLost):
            await waits.suspend(conn, stale, wish([], []))  # type: ignore[arg-type]
        with pytest.raises(ExecutionNotFound):
            await waits.suspend(conn, nowhere, wish())
    await given.time_passes(seconds=30)
    with pytest.raises(LeaseLost):
        await waits.suspend(conn, claim.fence, wish())


async def test_without_a_signing_key_nothing_can_suspend(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await given.rows("delete from flowfabric.keys")

    async with given.nothing_changes():
        with pytest.raises(NoActiveKey):
            await waits.suspend(conn, claim.fence, wish())
        with pytest.raises(NoActiveKey):
            await waits.create_waitpoint(conn, claim.fence, "w")


async def test_a_repeated_suspension_returns_the_first_answer(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    wanted = wish({"kind": "all_of", "members": [ANY, {**ANY, "waitpoint": "a"}]}, ["w", "a"], idempotency_key="once")
    first = await waits.suspend(conn, claim.fence, wanted)
    other_wish = wish(OPERATOR_ONLY, [], idempotency_key="once")

    async with given.nothing_changes():
        assert await waits.suspend(conn, claim.fence, wanted) == first
        assert await waits.suspend(conn, claim.fence, other_wish) == first
    await waits.resume(conn, claim.execution_id, by="ops")
    [again] = await given.claim()
    assert await waits.suspend(conn, again.fence, wanted) == first
    await attempts.complete(conn, again.fence)
    async with given.nothing_changes():
        assert await waits.suspend(conn, claim.fence, wanted) == first


async def test_without_an_idempotency_key_a_second_suspension_is_refused(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await waits.suspend(conn, claim.fence, wish(idempotency_key=""))

    async with given.nothing_changes():
        for key in (None, "", "another"):
            with pytest.raises(ExecutionNotActive) as refused:
                await waits.suspend(conn, claim.fence, wish(idempotency_key=key))
            assert refused.value.fields["phase"] == "suspended"


async def test_the_same_idempotency_key_on_another_execution_is_unrelated(given: Given) -> None:
    """The idempotency key is scoped by execution, so no execution gets the tokens of another."""
    one = await waiting(given, idempotency_key="once")
    other = await waiting(given, idempotency_key="once")

    assert one.answer.suspension_id != other.answer.suspension_id
    assert one.point().token != other.point().token


async def test_signals_sent_before_the_suspension_satisfy_it_and_the_lease_is_kept(
    conn: Connection, given: Given
) -> None:
    claim = await given.claimed()
    made = await waits.create_waitpoint(conn, claim.fence, "w")
    early = await waits.deliver_signal(conn, to(claim.execution_id, made.waitpoint_id, made.token, payload=b"\0yes"))
    assert early.effect == "buffered_for_pending_waitpoint"

    answer = await waits.suspend(conn, claim.fence, wish(idempotency_key="once"))

    assert (answer.outcome, [signal.signal_id for signal in answer.signals]) == ("already_satisfied", [early.signal_id])
    assert answer.signals[0].payload == b"\0yes"
    assert await waits.suspend(conn, claim.fence, wish(idempotency_key="once")) == answer
    assert (await given.ticket(claim.execution_id))["phase"] == "active"
    assert (await given.events(claim.execution_id))[2:] == ["waitpoint_created", "signal_delivered", "waitpoint_closed"]
    with pytest.raises(WaitpointClosed):
        await waits.deliver_signal(conn, to(claim.execution_id, made.waitpoint_id, made.token))
    await attempts.complete(conn, claim.fence)


async def test_buffered_signals_that_do_not_satisfy_the_condition_count_later(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    made = await waits.create_waitpoint(conn, claim.fence, "w")
    early = await waits.deliver_signal(conn, to(claim.execution_id, made.waitpoint_id, made.token))

    answer = await waits.suspend(conn, claim.fence, wish(count(n=2)))
    late = await waits.deliver_signal(conn, to(claim.execution_id, made.waitpoint_id, made.token))

    assert (answer.outcome, late.effect) == ("suspended", "resume_condition_satisfied")
    arrived = await waits.read_signals(conn, claim.execution_id, answer.suspension_id)
    assert [signal.signal_id for signal in arrived] == [early.signal_id, late.signal_id]


async def test_a_pending_waitpoint_is_adopted_with_its_existing_token(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    made = await waits.create_waitpoint(conn, claim.fence, "w")
    await signing_keys.rotate_key(conn, "k2", "ab" * 32)

    answer = await waits.suspend(conn, claim.fence, wish(waitpoints=[("w", made.waitpoint_id)]))

    assert [(point.id, point.token) for point in answer.waitpoints] == [(made.waitpoint_id, made.token)]
    [listed] = (await waits.list_waitpoints(conn, claim.execution_id)).items
    assert (listed.state, listed.expires_at, listed.kid) == ("active", None, "k1")
    assert (await given.events(claim.execution_id)).count("waitpoint_created") == 1


async def test_a_token_given_away_before_a_crash_resumes_the_next_attempt(conn: Connection, given: Given) -> None:
    first = await given.claimed()
    made = await waits.create_waitpoint(conn, first.fence, "w")
    await given.time_passes(seconds=30)
    await claims.expire_leases(conn)
    [second] = await given.claim()
    assert second.attempt.number == 2

    answer = await waits.suspend(conn, second.fence, wish())
    done = await waits.deliver_signal(conn, to(first.execution_id, made.waitpoint_id, made.token))

    assert (answer.waitpoints[0].token, done.effect) == (made.token, "resume_condition_satisfied")


async def test_a_waitpoint_requested_by_id_must_be_pending_on_this_execution(conn: Connection, given: Given) -> None:
    other = await given.claimed()
    foreign = await waits.create_waitpoint(conn, other.fence, "w")
    claim = await given.claimed()
    mine = await waits.create_waitpoint(conn, claim.fence, "w")

    async def refused(refusal: type[Exception], key: str, waitpoint_id: Any) -> None:
        async with given.nothing_changes():
            with pytest.raises(refusal) as caught:
                await waits.suspend(conn, claim.fence, wish({**ANY, "waitpoint": key}, [(key, waitpoint_id)]))
        assert refusal is not InvalidSuspension or caught.value.fields == {"cause": "waitpoint_key_mismatch"}  # type: ignore[attr-defined]

    await refused(WaitpointNotFound, "w", uuid4())
    await refused(WaitpointOfOtherExecution, "w", foreign.waitpoint_id)
    await refused(InvalidSuspension, "v", mine.waitpoint_id)
    await given.rows("update flowfabric.waitpoints set state = 'closed', close_reason = 'resumed' where key = 'w'")
    await refused(WaitpointNotPending, "w", mine.waitpoint_id)


async def test_a_waitpoint_past_its_expiry_is_refused_by_id_and_replaced_by_key(conn: Connection, given: Given) -> None:
    claim = await given.claimed(lease=HOUR)
    made = await waits.create_waitpoint(conn, claim.fence, "w", expires_in=timedelta(minutes=1))
    await given.time_passes(minutes=1)

    with pytest.raises(PendingWaitpointExpired):
        await waits.suspend(conn, claim.fence, wish(waitpoints=[("w", made.waitpoint_id)]))
    assert (await waits.close_waitpoints(conn)).moved == 1
    with pytest.raises(PendingWaitpointExpired):
        await waits.suspend(conn, claim.fence, wish(waitpoints=[("w", made.waitpoint_id)]))
    answer = await waits.suspend(conn, claim.fence, wish())

    assert answer.waitpoints[0].id != made.waitpoint_id


async def test_the_attempt_timeout_does_not_run_while_the_execution_waits(conn: Connection, given: Given) -> None:
    policy = {"attempt_timeout_ms": 600_000}
    claim = await given.claimed(policy=policy, lease=HOUR)
    await given.time_passes(minutes=4)
    await waits.suspend(conn, claim.fence, wish())
    await given.time_passes(days=2)
    assert (await attempts.time_out_attempts(conn)).moved == 0
    await waits.resume(conn, claim.execution_id, by="ops")
    [again] = await given.claim(lease=HOUR)
    assert again.attempt == claim.attempt

    await given.time_passes(minutes=5)
    assert (await attempts.time_out_attempts(conn)).moved == 0
    await given.time_passes(minutes=1, seconds=1)
    assert (await attempts.time_out_attempts(conn)).moved == 1


async def test_explain_says_what_a_suspended_execution_waits_for(conn: Connection, given: Given) -> None:
    plain = await waiting(given)
    assert (await executions.explain(conn, plain.execution_id)).sentence == "waits for signal approve on waitpoint w"
    timed = await waiting(given, timeout=HOUR, timeout_behavior="auto_resume")
    sentence = (await executions.explain(conn, timed.execution_id)).sentence
    assert sentence.startswith("waits for signal approve on waitpoint w; at ")
    assert sentence.endswith(" it times out and resumes")
    operated = await waiting(given, OPERATOR_ONLY, [])
    explained = await executions.explain(conn, operated.execution_id)
    assert (explained.sentence, explained.waits_for, explained.released_by) == (
        "waits for an operator",
        "operator",
        "resume",
    )
    assert explained.since is not None
    assert explained.since <= await testing.now(conn)
