"""Signals: the token is checked first, then duplicates, then the state; each signal has exactly one effect."""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from flowfabric import signing
from flowfabric.engine import attempts, executions, waits
from flowfabric.errors import (
    FlowFabricError,
    InvalidId,
    InvalidSignal,
    InvalidText,
    InvalidToken,
    MissingToken,
    PayloadTooLarge,
    SignalLimitExceeded,
    TargetNotSignalable,
    WaitpointClosed,
)
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import Delivered, SignalToSend
from flowfabric.postgres.driver import Connection
from flowfabric.signing import Verification
from tests.conftest import SOAK, Connect
from tests.engine.waits.scene import ANY, APPROVE, OPERATOR_ONLY, Waiting, state, to, waiting, wish
from tests.given import Given

FORGED = 1_000_000 if SOAK else 50_000
COUNT = {"kind": "count", "n": 3, "of": "distinct_signals", "waitpoints": ["w"]}


async def effects(conn: Connection, *signals: SignalToSend) -> list[str | None]:
    """The effect of each signal, or the code of its refusal."""
    answers = await waits.deliver_signals(conn, signals)
    return [one.code if isinstance(one, FlowFabricError) else one.effect or one.outcome for one in answers]


async def test_a_matching_signal_resumes_the_same_attempt(conn: Connection, given: Given) -> None:
    suspended = await waiting(given)
    sent = suspended.signal(
        payload=b"\0\xff", encoding="raw", correlation_id="c-1", category="callback", source_type="webhook"
    )

    done = await waits.deliver_signal(conn, sent)

    assert (done.outcome, done.effect, done.lane) == ("accepted", "resume_condition_satisfied", "default")
    [taken] = await given.claim()
    assert (taken.attempt, taken.fence.epoch, taken.resumed) == (suspended.claim.attempt, 2, True)
    [signal] = await suspended.signals(conn)
    assert (await given.event("execution_resumed"))["by"] == "signal"
    assert (signal.signal_id, signal.payload, signal.encoding) == (done.signal_id, b"\0\xff", "raw")
    assert (signal.correlation_id, signal.category, signal.source_type) == ("c-1", "callback", "webhook")
    assert (await given.events(taken.execution_id))[4:] == [
        "signal_delivered",
        "execution_resumed",
        "waitpoint_closed",
        "lease_acquired",
    ]


async def test_a_signal_with_another_name_does_not_resume_the_execution(conn: Connection, given: Given) -> None:
    suspended = await waiting(given)

    assert await effects(conn, suspended.signal("reject")) == ["signal_ignored_matcher_failed"]
    assert await state(conn, suspended.execution_id) == "suspended"
    assert (await given.event("signal_delivered"))["effect"] == "signal_ignored_matcher_failed"


async def test_a_repeated_signal_is_a_duplicate_even_after_the_wait_or_the_execution_has_ended(
    conn: Connection, given: Given
) -> None:
    suspended = await waiting(given)
    sent = suspended.signal(idempotency_key="once")
    first = await waits.deliver_signal(conn, sent)
    by_id = suspended.signal(signal_id=first.signal_id)

    async def still_known() -> None:
        async with given.nothing_changes():
            for repeated in (sent, by_id):
                told = await waits.deliver_signal(conn, repeated)
                assert (told.outcome, told.signal_id, told.effect) == ("duplicate", first.signal_id, None)

    await still_known()
    [taken] = await given.claim()
    await still_known()
    await attempts.complete(conn, taken.fence)
    await still_known()


async def test_a_duplicate_counts_neither_for_the_condition_nor_for_the_limit(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, COUNT, submitted={"policy": {"max_signals": 3}})
    one = suspended.signal(idempotency_key="k")

    told = await effects(conn, one, one, one, suspended.signal(), one, suspended.signal())

    assert told == [
        "appended_to_waitpoint",
        "duplicate",
        "duplicate",
        "appended_to_waitpoint",
        "duplicate",
        "resume_condition_satisfied",
    ]


async def test_an_idempotency_key_is_remembered_for_24_hours_per_waitpoint(conn: Connection, given: Given) -> None:
    members = [{"kind": "single", "waitpoint": key, "name": "never"} for key in "ab"]
    suspended = await waiting(given, {"kind": "all_of", "members": members}, ["a", "b"])
    on_a, on_b = (suspended.signal(key=key, idempotency_key="k") for key in "ab")
    ignored = "signal_ignored_matcher_failed"

    assert await effects(conn, on_a, on_b) == [ignored, ignored]
    await given.time_passes(hours=23, minutes=59)
    assert await effects(conn, on_a) == ["duplicate"]
    await given.time_passes(minutes=1)
    assert await effects(conn, on_a, on_a) == [ignored, "duplicate"]
    assert (
        await effects(conn, suspended.signal(key="a", idempotency_key=""), suspended.signal(key="a")) == [ignored] * 2
    )


async def test_a_signal_id_is_remembered_for_ever_per_execution(conn: Connection, given: Given) -> None:
    one, other = await waiting(given, COUNT), await waiting(given, COUNT)
    signal_id = uuid4()

    told = await effects(conn, one.signal(signal_id=signal_id), other.signal(signal_id=signal_id))
    await given.time_passes(days=2)

    assert told == ["appended_to_waitpoint"] * 2
    assert await effects(conn, one.signal(signal_id=signal_id)) == ["duplicate"]


INVALID: list[tuple[str, dict[str, Any]]] = [
    ("name", {"name": ""}),
    ("name", {"name": "n" * 129}),
    ("category", {"category": ""}),
    ("category", {"category": "c" * 65}),
    ("source_type", {"source_type": ""}),
    ("source_type", {"source_type": "operator"}),
    ("source_type", {"source_type": "system"}),
    ("source_type", {"source_type": "s" * 65}),
    ("source_identity", {"source_identity": ""}),
    ("source_identity", {"source_identity": "é" * 129}),
    ("correlation_id", {"correlation_id": "c" * 257}),
    ("idempotency_key", {"idempotency_key": "k" * 257}),
    ("encoding", {"encoding": ""}),
    ("digest", {"digest": b"short"}),
]


@pytest.mark.parametrize(("field", "options"), INVALID)
async def test_an_invalid_signal_is_refused_before_its_token_is_checked(
    conn: Connection, given: Given, field: str, options: dict[str, Any]
) -> None:
    """The source types `operator` and `system` are reserved, so a token holder cannot pose as an approver."""
    suspended = await waiting(given)

    async with given.nothing_changes():
        for token in (suspended.point().token, "nonsense", ""):
            with pytest.raises(InvalidSignal) as refused:
                await waits.deliver_signal(conn, suspended.signal(**{**options, "token": token}))
            assert refused.value.fields == {"field": field}


async def test_a_payload_may_have_65_536_bytes(conn: Connection, given: Given) -> None:
    suspended = await waiting(given)

    with pytest.raises(PayloadTooLarge) as refused:
        await waits.deliver_signal(conn, suspended.signal(payload=b"x" * 65_537, token=""))

    assert refused.value.fields == {"limit": 65_536}
    assert await effects(conn, suspended.signal(payload=b"x" * 65_536)) == ["resume_condition_satisfied"]


async def test_text_that_postgres_cannot_store_is_refused_for_that_signal_only(conn: Connection, given: Given) -> None:
    suspended = await waiting(given)
    nowhere = ExecutionId(70_000, uuid4())
    good = suspended.signal()
    bad_id: Any = "not an id"

    told = await waits.deliver_signals(
        conn,
        [
            suspended.signal("\0"),
            suspended.signal(token="\ud800"),
            to(nowhere, uuid4(), "k1:0"),
            msgspec.structs.replace(good, waitpoint_id=bad_id),
            good,
        ],
    )

    assert [type(one) for one in told] == [InvalidText, InvalidText, InvalidToken, InvalidId, Delivered]
    assert await waits.deliver_signals(conn, []) == []


def tampered(token: str, message: str, seed: random.Random) -> str:
    """A token that is almost valid."""
    kid, _, digest = token.partition(":")
    place = seed.randrange(len(digest))
    flipped = digest[:place] + f"{int(digest[place], 16) ^ (1 << seed.randrange(4)):x}" + digest[place + 1 :]
    one, two = sorted(seed.sample(range(64), 2))
    swapped = digest[:one] + digest[two] + digest[one + 1 : two] + digest[one] + digest[two + 1 :]
    return seed.choice(
        [
            f"{kid}:{flipped}",
            f"{kid}:{swapped}" if swapped != digest else f"{kid}:{flipped}",
            f"{kid}:{seed.getrandbits(256):064x}",
            token[: seed.randrange(1, len(token))],
            f"{kid}:{digest.upper()}" if digest.upper() != digest else digest,
            f"{kid}x:{digest}",
            f"{digest}:{kid}",
            f"{kid}:{digest}{seed.choice('0 :f')}",
            f" {token}",
            f"{kid}:{kid}:{digest}",
            signing.sign(seed.randbytes(32), kid, message),
        ]
    )


def test_no_forged_token_verifies() -> None:
    seed = random.Random(20)
    secret, execution_id, waitpoint_id = seed.randbytes(32), str(mint_execution_id()), uuid4()
    message = signing.waitpoint_message(execution_id, waitpoint_id)
    token = signing.sign(secret, "k1", message)
    assert signing.verify(secret, "k1", message, token) is Verification.OK

    verdicts = {signing.verify(secret, "k1", message, tampered(token, message, seed)) for _ in range(FORGED)}

    assert verdicts == {Verification.MALFORMED, Verification.WRONG_KID, Verification.SIGNATURE_MISMATCH}


async def test_a_bad_token_is_told_nothing_and_writes_nothing(conn: Connection, given: Given) -> None:
    """One answer for every bad token, so that nobody can find out which executions or waitpoints exist."""
    live, ended, other = [await waiting(given, ANY) for _ in range(3)]
    await executions.cancel(conn, ended.execution_id, reason="not wanted", by="ops")
    seed, good = random.Random(7), live.point().token or ""
    message = signing.waitpoint_message(str(live.execution_id), live.point().id)
    forged = [tampered(good, message, seed) for _ in range(300)]
    signals = [live.signal(token=token) for token in (*forged, other.point().token, "k9:" + "0" * 64)]
    signals += [ended.signal(token=token) for token in (*forged[:50], other.point().token)]
    signals += [to(live.execution_id, uuid4(), good), to(mint_execution_id(), live.point().id, good)]
    signals += [to(mint_execution_id(), uuid4(), token) for token in forged[:50]]
    signals += [other.signal(token=good), to(other.execution_id, live.point().id, good)]

    async with given.nothing_changes():
        before = await versions(conn)
        told = await waits.deliver_signals(conn, signals)
        assert await versions(conn) == before

    said = {(type(one), str(one), msgspec.json.encode(one.fields)) for one in told if isinstance(one, FlowFabricError)}
    [(refusal, message, fields)] = said
    assert (refusal, fields) == (InvalidToken, b"{}")
    assert "invalid for this waitpoint" in message
    assert len([one for one in told if isinstance(one, FlowFabricError)]) == len(signals)


async def versions(conn: Any) -> list[str]:
    """The transaction that wrote each row, in all tables that a signal could write to."""
    tables = ["tickets", "waits", "waitpoints", "signals", "executions", "events"]
    found = [await conn.fetch(f"select ctid::text, xmin::text, xmax::text from flowfabric.{name}") for name in tables]
    return sorted(str(tuple(row)) for rows in found for row in rows)


async def test_a_missing_token_is_refused_also_when_the_execution_has_ended(conn: Connection, given: Given) -> None:
    live, ended = await waiting(given), await waiting(given)
    await executions.cancel(conn, ended.execution_id, reason="not wanted", by="ops")
    messages: set[str] = set()

    async with given.nothing_changes():
        for signal in (live.signal(token=""), ended.signal(token=""), to(mint_execution_id(), uuid4(), "")):
            with pytest.raises(MissingToken) as refused:
                await waits.deliver_signal(conn, signal)
            messages.add(str(refused.value))
            assert refused.value.fields == {}
    [message] = messages
    assert "pass the token of its waitpoint" in message


async def test_an_execution_that_has_ended_or_resumed_accepts_no_signals(conn: Connection, given: Given) -> None:
    cancelled, resumed = await waiting(given), await waiting(given)
    await executions.cancel(conn, cancelled.execution_id, reason="not wanted", by="ops")
    await waits.resume(conn, resumed.execution_id, by="ops")

    async with given.nothing_changes():
        with pytest.raises(TargetNotSignalable) as refused:
            await waits.deliver_signal(conn, cancelled.signal())
        with pytest.raises(WaitpointClosed):
            await waits.deliver_signal(conn, resumed.signal())

    assert refused.value.fields == {"outcome": "cancelled"}
    assert await state(conn, cancelled.execution_id) == "cancelled"


async def test_an_execution_accepts_as_many_signals_as_its_policy_allows(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, submitted={"policy": {"max_signals": 2}})
    first = suspended.signal("x", idempotency_key="k")

    told = await effects(conn, first, suspended.signal("x"), suspended.signal(), first)

    assert told == [*["signal_ignored_matcher_failed"] * 2, "signal_limit_exceeded", "duplicate"]
    with pytest.raises(SignalLimitExceeded):
        await waits.deliver_signal(conn, suspended.signal())
    assert await given.count("signals") == 2


async def test_an_execution_accepts_10_000_signals_by_default(conn: Connection, given: Given) -> None:
    suspended = await waiting(given)
    await effects(conn, suspended.signal("x"))
    await given.rows("update flowfabric.signals set number = 9999")

    assert await effects(conn, suspended.signal("x"), suspended.signal()) == [
        "signal_ignored_matcher_failed",
        "signal_limit_exceeded",
    ]


async def test_a_pending_waitpoint_buffers_1_000_signals(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    made, other = [await waits.create_waitpoint(conn, claim.fence, key) for key in ("w", "v")]

    told = await effects(conn, *[to(claim.execution_id, made.waitpoint_id, made.token)] * 1_001)

    assert told == [*["buffered_for_pending_waitpoint"] * 1_000, "signal_limit_exceeded"]
    assert await effects(conn, to(claim.execution_id, other.waitpoint_id, other.token)) == [
        "buffered_for_pending_waitpoint"
    ]


async def test_signals_to_a_wait_for_an_operator_or_a_timeout_are_recorded_without_effect(
    conn: Connection, given: Given
) -> None:
    operated = await waiting(given, OPERATOR_ONLY)
    timed = await waiting(given, {"kind": "timeout_only"}, timeout=timedelta(hours=1))

    assert await effects(conn, operated.signal(), timed.signal()) == ["no_op", "no_op"]
    assert await given.count("signals") == 2
    assert await state(conn, operated.execution_id) == "suspended"


async def test_a_signal_finds_its_waitpoint_by_the_key(conn: Connection, given: Given) -> None:
    both = {"kind": "all_of", "members": [APPROVE, {"kind": "single", "waitpoint": "other"}]}
    suspended = await waiting(given, both, ["w", "other"])
    by_key = msgspec.structs.replace(suspended.signal(), waitpoint_id=None, waitpoint="w")
    by_id = suspended.signal("x", key="other")

    refused = await waits.deliver_signals(
        conn, [msgspec.structs.replace(by_key, waitpoint=key) for key in ("other", "none", None)]
    )
    assert [type(refusal) for refusal in refused] == [InvalidToken] * 3
    done = [told for told in await waits.deliver_signals(conn, [by_id, by_key]) if isinstance(told, Delivered)]
    assert [told.effect for told in done] == ["appended_to_waitpoint", "resume_condition_satisfied"]
    with pytest.raises(WaitpointClosed):
        await waits.deliver_signal(conn, by_key)


async def test_an_open_waitpoint_has_precedence_over_a_closed_one_with_its_key(conn: Connection, given: Given) -> None:
    first = await waiting(given)
    await waits.deliver_signal(conn, first.signal())
    [claim] = await given.claim()
    again = Waiting(claim, await waits.suspend(conn, claim.fence, wish()))

    done = await waits.deliver_signal(conn, msgspec.structs.replace(again.signal(), waitpoint_id=None, waitpoint="w"))

    assert done.effect == "resume_condition_satisfied"


async def test_many_signals_behave_as_if_sent_one_after_the_other(conn: Connection, given: Given) -> None:
    one, other = await waiting(given, COUNT), await waiting(given)

    told = await effects(
        conn,
        one.signal(),
        other.signal("x"),
        one.signal(token="bad"),
        one.signal(idempotency_key="k"),
        other.signal(),
        one.signal(idempotency_key="k"),
        one.signal("y"),
        other.signal(),
        one.signal(),
        one.signal(payload=b"x" * 65_537),
    )

    assert told == [
        "appended_to_waitpoint",
        "signal_ignored_matcher_failed",
        "invalid_token",
        "appended_to_waitpoint",
        "resume_condition_satisfied",
        "duplicate",
        "resume_condition_satisfied",
        "waitpoint_closed",
        "waitpoint_closed",
        "payload_too_large",
    ]
    assert [len(await each.signals(conn)) for each in (one, other)] == [3, 1]


async def effects_and_events(given: Given, suspended: Sequence[Waiting], *batches: Sequence[SignalToSend]) -> list[Any]:
    """The effects of the signals and the events of the executions, without their ids and times."""
    told = [await effects(given.conn, *batch) for batch in batches]
    found = await given.rows(
        "select execution, kind, by, detail ? 'due_at' as is_delayed, (detail - $1::text[])::text as detail "
        "from flowfabric.events where kind ~ '^(signal|execution_resumed|waitpoint_closed)' order by id",
        ["signal_id", "waitpoint_id", "suspension_id", "signals", "due_at"],
    )
    noted = [
        [(row["kind"], row["by"], row["is_delayed"], row["detail"]) for row in found if row["execution"] == one.uuid]
        for one in (waits_on.execution_id for waits_on in suspended)
    ]
    return [[effect for batch in told for effect in batch], noted]


async def test_signals_sent_in_one_batch_have_the_same_effects_as_alone(conn: Connection, given: Given) -> None:
    either = {"kind": "any_of", "members": [{"kind": "single", "waitpoint": "w", "name": name} for name in ("x", "go")]}
    wanted: list[Any] = [ANY, COUNT, either, OPERATOR_ONLY, {**ANY, "name": "other"}]
    delayed: Any = {"about": b"shown", "bind": True, "resume_delay": timedelta(hours=1)}

    async def ask() -> list[Waiting]:
        return [await waiting(given, one) for one in wanted] + [await waiting(given, ANY, **delayed)]

    together, alone = await ask(), await ask()
    digest = sha256(b"shown").digest()

    def signals(suspended: Sequence[Waiting]) -> list[SignalToSend]:
        *plain, bound = suspended
        return [*(one.signal("go", payload=b"1") for one in plain), bound.signal("go", digest=digest)]

    at_once = await effects_and_events(given, together, signals(together))
    assert at_once == await effects_and_events(given, alone, *([signal] for signal in signals(alone)))
    assert at_once[0][-2:] == ["signal_ignored_matcher_failed", "resume_condition_satisfied"]


async def test_a_batch_that_exceeds_one_statement_is_split(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, COUNT)
    bad = [suspended.signal(token="bad")] * 1_500
    large = [suspended.signal("x", payload=b"x" * 65_536, token="bad")] * 200

    told = await effects(conn, *bad, suspended.signal(), *large, suspended.signal(), suspended.signal())

    accepted = {number: effect for number, effect in enumerate(told) if effect != "invalid_token"}
    assert accepted == {
        1_500: "appended_to_waitpoint",
        1_701: "appended_to_waitpoint",
        1_702: "resume_condition_satisfied",
    }


async def test_batches_in_opposite_order_do_not_deadlock(connect: Connect, given: Given) -> None:
    all_of_them: list[Waiting] = [await waiting(given, {**COUNT, "n": 200}) for _ in range(6)]
    forwards = [one.signal() for one in all_of_them] * 3
    backwards = [one.signal() for one in reversed(all_of_them)] * 3
    conns = [await connect() for _ in range(4)]

    async with asyncio.timeout(60):
        for _ in range(5):
            orders = [forwards, backwards, forwards, backwards]
            told = await asyncio.gather(*(effects(c, *order) for c, order in zip(conns, orders, strict=True)))
            assert {effect for some in told for effect in some} == {"appended_to_waitpoint"}

    assert await given.count("signals") == 5 * 4 * 18
