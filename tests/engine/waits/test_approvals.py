"""Approvals: authenticated people decide, each once, on what they were shown."""

import asyncio
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import testing
from flowfabric.engine import executions, waits
from flowfabric.errors import (
    ApprovalDigestMismatch,
    ExecutionNotFound,
    FlowFabricError,
    InvalidSignal,
    PayloadTooLarge,
    SignalLimitExceeded,
    TargetNotSignalable,
    WaitpointClosed,
    WaitpointNotFound,
    WrongLane,
)
from flowfabric.ids import mint_execution_id
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.waits.scene import Waiting, approvals, state, to, waiting, wish
from tests.given import Given

ABOUT = b'{"send": 100}'
DIGEST = sha256(ABOUT).digest()


async def decide(conn: Connection, asked: Waiting, by: str, decision: str = "approve", **options: Any) -> str | None:
    """The effect of a decision, or `duplicate`."""
    done = await waits.deliver_approval(conn, asked.execution_id, "w", decision, by=by, **options)
    return done.effect or done.outcome


async def verdict(given: Given, asked: Waiting) -> list[tuple[str, str]]:
    """Who decided what, as the handler receives it when it resumes."""
    [_] = await given.claim()
    return [(signal.name, signal.source_identity) for signal in await asked.signals(given.conn)]


async def test_two_people_approve(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(2), reason_code="waiting_for_approval")

    assert await decide(conn, asked, "ann") == "appended_to_waitpoint"
    assert await decide(conn, asked, "ann") == "duplicate"
    assert await decide(conn, asked, "ann", suffix="again") == "appended_to_waitpoint_duplicate"
    assert await state(conn, asked.execution_id) == "suspended"
    sentence = (await executions.explain(conn, asked.execution_id)).sentence
    assert sentence == "has 1 of 2 approvals on waitpoint w"
    assert await decide(conn, asked, "bob") == "resume_condition_satisfied"
    assert await verdict(given, asked) == [("approve", "ann"), ("approve", "bob")]


async def test_one_rejection_at_any_moment_rejects(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(2))
    await decide(conn, asked, "ann")

    assert await decide(conn, asked, "bob", "reject") == "resume_condition_satisfied"
    assert await verdict(given, asked) == [("reject", "bob")]


async def test_a_token_holder_does_not_count_among_several_approvers(conn: Connection, given: Given) -> None:
    """A holder of one token could claim to be two people, so only authenticated people count."""
    asked = await waiting(given, approvals(2))

    told = await waits.deliver_signals(
        conn,
        [
            asked.signal(source_identity="ann"),
            asked.signal(source_identity="bob"),
            asked.signal("reject", source_identity="bob"),
            asked.signal(source_type="operator", source_identity="ann"),
            asked.signal(source_type="system", source_identity="bob"),
        ],
    )

    said = [one.code if isinstance(one, FlowFabricError) else one.effect for one in told]
    assert said == [*["signal_ignored_matcher_failed"] * 3, *["invalid_signal"] * 2]
    assert await state(conn, asked.execution_id) == "suspended"


async def test_a_single_approver_may_decide_with_the_token(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(1))

    done = await waits.deliver_signal(conn, asked.signal(source_identity="link"))

    assert done.effect == "resume_condition_satisfied"


async def test_a_token_holder_cannot_use_up_the_decision_of_an_approver(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(2))
    await waits.deliver_signal(conn, asked.signal("noise", idempotency_key="approval:approve:ann", category="approval"))

    assert await decide(conn, asked, "ann") == "appended_to_waitpoint"
    assert await decide(conn, asked, "bob") == "resume_condition_satisfied"


async def test_a_bound_approval_counts_only_what_carries_the_digest(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(1), about=ABOUT, bind=True)

    async with given.nothing_changes():
        for digest in (None, sha256(b"other").digest()):
            with pytest.raises(ApprovalDigestMismatch):
                await decide(conn, asked, "ann", digest=digest)
            with pytest.raises(ApprovalDigestMismatch):
                await decide(conn, asked, "ann", "reject", digest=digest)
            with pytest.raises(ApprovalDigestMismatch):
                await waits.deliver_signal(conn, asked.signal(digest=digest))

    assert await decide(conn, asked, "ann", digest=DIGEST) == "resume_condition_satisfied"


async def test_a_token_holder_with_the_digest_can_satisfy_a_bound_approval(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(1), about=ABOUT, bind=True)

    done = await waits.deliver_signal(conn, asked.signal(digest=DIGEST))

    assert done.effect == "resume_condition_satisfied"


async def test_the_digest_does_not_make_a_token_holder_one_of_several_approvers(conn: Connection, given: Given) -> None:
    """Only authenticated people count."""
    asked = await waiting(given, approvals(2), about=ABOUT, bind=True)

    for who in ("ann", "bob"):
        done = await waits.deliver_signal(conn, asked.signal(digest=DIGEST, source_identity=who))
        assert done.effect == "signal_ignored_matcher_failed"


async def test_decisions_made_before_a_bound_request_do_not_count(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    made = await waits.create_waitpoint(conn, claim.fence, "w")
    await waits.deliver_signal(conn, to(claim.execution_id, made.waitpoint_id, made.token))
    await waits.deliver_approval(conn, claim.execution_id, "w", "approve", by="ann", digest=sha256(b"other").digest())

    answer = await waits.suspend(conn, claim.fence, wish(approvals(1), about=ABOUT, bind=True))

    assert answer.outcome == "suspended"
    done = await waits.deliver_approval(conn, claim.execution_id, "w", "approve", by="bob", digest=DIGEST)
    assert done.effect == "resume_condition_satisfied"
    assert await verdict(given, Waiting(claim, answer)) == [("approve", "bob")]


async def test_the_event_log_records_who_decided_when_and_on_what(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(1), about=ABOUT)
    before = await testing.now(conn)

    done = await waits.deliver_approval(
        conn, asked.execution_id, str(asked.point().id).upper(), "approve", by="ann", payload=b"1", note="looks good"
    )

    [event] = await given.rows("select by, at from flowfabric.events where kind = 'signal_delivered'")
    assert event["by"] == "ann"
    assert before <= event["at"] <= await testing.now(conn)
    detail = await given.event("signal_delivered")
    assert detail == {
        "signal_id": str(done.signal_id),
        "waitpoint_id": str(asked.point().id),
        "name": "approve",
        "source_type": "operator",
        "source_identity": "ann",
        "effect": "resume_condition_satisfied",
        "kid": "k1",
        "digest": DIGEST.hex(),
        "note": "looks good",
    }
    [_] = await given.claim()
    [signal] = await asked.signals(conn)
    assert (signal.category, signal.source_type, signal.payload) == ("approval", "operator", b"1")


async def test_an_approval_is_used_once(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(1))
    await decide(conn, asked, "ann")
    [claim] = await given.claim()

    async with given.nothing_changes():
        assert await decide(conn, asked, "ann") == "duplicate"
        with pytest.raises(WaitpointClosed):
            await decide(conn, asked, "bob")
    await waits.suspend(conn, claim.fence, wish(approvals(1)))
    assert await decide(conn, asked, "ann") == "resume_condition_satisfied"


async def test_an_approval_after_the_timeout_is_refused(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(2), timeout=timedelta(days=2), timeout_behavior="auto_resume")
    await decide(conn, asked, "ann")
    await given.time_passes(days=2)
    await waits.time_out_waits(conn)

    with pytest.raises(WaitpointClosed):
        await decide(conn, asked, "bob")
    assert await verdict(given, asked) == [("timeout", "suspension_timeout")]


async def test_invalid_decisions_are_refused(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(2), submitted={"lane": "reports", "policy": {"max_signals": 1}})
    refusals: list[tuple[type[Exception], dict[str, Any]]] = [
        (ExecutionNotFound, {"execution_id": mint_execution_id()}),
        (WaitpointNotFound, {"waitpoint": "v"}),
        (WaitpointNotFound, {"waitpoint": str(uuid4())}),
        (WrongLane, {"lane": "default"}),
        (InvalidSignal, {"by": ""}),
        (InvalidSignal, {"by": "b" * 257}),
        (InvalidSignal, {"decision": ""}),
        (InvalidSignal, {"suffix": "s" * 257}),
        (InvalidSignal, {"digest": b"short"}),
        (PayloadTooLarge, {"payload": b"x" * 65_537}),
    ]

    async with given.nothing_changes():
        for refusal, options in refusals:
            arguments = {"execution_id": asked.execution_id, "waitpoint": "w", "decision": "approve", "by": "ann"}
            with pytest.raises(refusal):
                await waits.deliver_approval(conn, **{**arguments, **options})
    assert await decide(conn, asked, "ann", lane="reports", suffix="") == "appended_to_waitpoint"
    with pytest.raises(SignalLimitExceeded):
        await decide(conn, asked, "bob")


async def test_decisions_on_an_execution_that_has_ended_are_refused(conn: Connection, given: Given) -> None:
    asked = await waiting(given, approvals(1))
    await executions.cancel(conn, asked.execution_id, reason="not wanted", by="ops")

    with pytest.raises(TargetNotSignalable):
        await decide(conn, asked, "ann")


async def test_an_approval_may_arrive_before_the_request(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await waits.create_waitpoint(conn, claim.fence, "w")

    done = await waits.deliver_approval(conn, claim.execution_id, "w", "approve", by="ann")
    answer = await waits.suspend(conn, claim.fence, wish(approvals(1)))

    assert (done.effect, answer.outcome) == ("buffered_for_pending_waitpoint", "already_satisfied")


async def test_people_who_decide_at_once_count_once_each(connect: Connect, given: Given) -> None:
    asked = await waiting(given, approvals(3))
    conns = [await connect() for _ in range(4)]

    told = await asyncio.gather(
        *(decide(conn, asked, by) for conn, by in zip(conns, ["ann", "ann", "bob", "bob"], strict=True))
    )

    assert sorted(map(str, told)) == ["appended_to_waitpoint"] * 2 + ["duplicate"] * 2
    assert await decide(conns[0], asked, "cid") == "resume_condition_satisfied"
    assert len(await asked.signals(given.conn)) == 3
