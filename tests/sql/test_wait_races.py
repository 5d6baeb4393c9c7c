"""Races on a wait: a signal, a timeout, an operator and a cancellation all lock the ticket, and one wins."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal

import asyncpg
import pytest

from flowfabric.engine import executions, waits
from flowfabric.errors import (
    ExecutionEnded,
    ExecutionNotActive,
    ExecutionNotSuspended,
    FlowFabricError,
    TargetNotSignalable,
    WaitpointClosed,
)
from flowfabric.model import Fence, Moved, SignalToSend, Swept
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK, Connect
from tests.engine.executions.stored import blocked
from tests.engine.waits.scene import ANY, Waiting, state, to, waiting, wish
from tests.given import Given, submission
from tests.races import Race

RACES = 10_000 if SOAK else 300
AT_ONCE = 50
HOUR = timedelta(hours=1)

Call = Callable[[Connection], Awaitable[Any]]


def signal(one: Waiting) -> Call:
    return lambda conn: waits.deliver_signal(conn, one.signal())


def resume(one: Waiting) -> Call:
    return lambda conn: waits.resume(conn, one.execution_id, by="ops")


def cancel(one: Waiting) -> Call:
    return lambda conn: executions.cancel(conn, one.execution_id, reason="not wanted", by="ops")


def time_out(_: Waiting) -> Call:
    return waits.time_out_waits


def deliver(sent: SignalToSend) -> Call:
    return lambda conn: waits.deliver_signal(conn, sent)


def suspend(fence: Fence) -> Call:
    return lambda conn: waits.suspend(conn, fence, wish(ANY))


MOVERS = {"signal": signal, "resume": resume, "cancel": cancel, "timeout": time_out}
ENDS = {"signal": "runnable", "resume": "runnable", "cancel": "cancelled", "timeout": "failed"}
REFUSED: dict[tuple[str, str], type[Exception] | Literal["cancelled"]] = {
    ("signal", "signal"): WaitpointClosed,
    ("signal", "resume"): ExecutionNotSuspended,
    ("signal", "cancel"): "cancelled",
    ("resume", "signal"): WaitpointClosed,
    ("resume", "resume"): ExecutionNotSuspended,
    ("resume", "cancel"): "cancelled",
    ("cancel", "signal"): TargetNotSignalable,
    ("cancel", "resume"): ExecutionNotSuspended,
    ("cancel", "cancel"): "cancelled",
    ("timeout", "signal"): TargetNotSignalable,
    ("timeout", "resume"): ExecutionNotSuspended,
    ("timeout", "cancel"): ExecutionEnded,
}


@pytest.mark.parametrize(("first", "second"), REFUSED)
async def test_the_second_call_learns_what_the_first_did(
    given: Given, connect: Connect, first: str, second: str
) -> None:
    """It waits for the ticket, checks the state again under the lock, and is refused with the matching error."""
    suspended = await waiting(given, timeout=HOUR)
    await given.time_passes(hours=1)
    one, two = await connect(), await connect()

    async with one.transaction():
        await MOVERS[first](suspended)(one)
        later = asyncio.ensure_future(MOVERS[second](suspended)(two))
        await blocked(given, two, later)
    answer: object = (await asyncio.gather(later, return_exceptions=True))[0]

    expected = REFUSED[first, second]
    assert isinstance(answer, Moved if expected == "cancelled" else expected)
    assert await state(given.conn, suspended.execution_id) == ("cancelled" if expected == "cancelled" else ENDS[first])


@pytest.mark.parametrize("first", ["signal", "resume", "cancel", "timeout"])
async def test_a_sweep_skips_a_wait_that_another_transaction_is_ending(
    given: Given, connect: Connect, first: str
) -> None:
    """It neither waits for the lock nor acts on the wait afterwards."""
    suspended = await waiting(given, timeout=HOUR)
    await given.time_passes(hours=1)
    one, two = await connect(), await connect()

    async with one.transaction():
        await MOVERS[first](suspended)(one)
        async with asyncio.timeout(10):
            assert await waits.time_out_waits(two) == Swept(moved=0, locked=1)
    assert await waits.time_out_waits(two) == Swept(moved=0)
    assert await state(given.conn, suspended.execution_id) == ENDS[first]


MOVED = """
select e.execution, array_agg(e.kind order by e.id) as kinds
from flowfabric.events e
where e.kind in ('execution_resumed', 'execution_failed', 'execution_cancelled', 'waitpoint_closed')
group by e.execution
"""


async def many_waiting(given: Given, amount: int) -> list[Waiting]:
    await executions.submit_many(given.conn, [submission()] * amount)
    claimed = await given.claim(take=amount)
    wanted = wish(timeout=HOUR)
    return [Waiting(claim, await waits.suspend(given.conn, claim.fence, wanted)) for claim in claimed]


async def contend(conns: list[asyncpg.Connection], asked: list[Waiting], seed: random.Random) -> list[list[Any]]:
    """Signals, cancellations and timeouts for all of them, concurrently, each kind on its own connection."""
    queues: list[list[Call]] = [
        [signal(one) for one in asked],
        [cancel(one) for one in asked],
        [time_out(one) for one in asked],
    ]
    for queue in queues:
        seed.shuffle(queue)
    # The sweep takes one at a time, so that it interleaves with the others.
    queues[2] = [lambda conn: waits.time_out_waits(conn, limit=1)] * len(asked)

    async def run(conn: asyncpg.Connection, queue: list[Call]) -> list[Any]:
        return [(await asyncio.gather(call(conn), return_exceptions=True))[0] for call in queue]

    return await asyncio.gather(*(run(conn, queue) for conn, queue in zip(conns, queues, strict=True)))


async def test_of_a_signal_a_timeout_and_a_cancellation_exactly_one_wins(given: Given, connect: Connect) -> None:
    conns, seed, wins = [await connect() for _ in range(3)], random.Random(3), Counter[str]()
    for start in range(0, RACES, AT_ONCE):
        await given.rows("truncate flowfabric.events")
        asked = await many_waiting(given, min(AT_ONCE, RACES - start))
        await given.time_passes(hours=1)

        signals, cancels, sweeps = await contend(conns, asked, seed)

        accepted = sum(not isinstance(told, Exception) for told in signals)
        timed_out = sum(swept.moved for swept in sweeps)
        assert {type(told) for told in signals if isinstance(told, Exception)} <= {WaitpointClosed, TargetNotSignalable}
        assert {type(told) for told in cancels if isinstance(told, Exception)} <= {ExecutionEnded}
        await check_each(given, asked)
        moved = {row["execution"]: row["kinds"][0] for row in await given.rows(MOVED)}
        first = Counter(kind for kind in moved.values())
        assert (first["execution_resumed"], accepted + timed_out <= len(asked)) == (accepted, True)
        wins.update({"signal": accepted, "timeout": timed_out, "cancel": len(asked) - accepted - timed_out})

    assert wins.total() == RACES
    assert min(wins[who] for who in ("signal", "timeout", "cancel")) > 0


async def check_each(given: Given, asked: list[Waiting]) -> None:
    """State and events agree: one winner and one closed waitpoint each; a resumed execution may be cancelled later."""
    told = {row["execution"]: row["kinds"] for row in await given.rows(MOVED)}
    for one in asked:
        kinds = told[one.execution_id.uuid]
        ended = await state(given.conn, one.execution_id)
        assert (ended, kinds) in [
            ("runnable", ["execution_resumed", "waitpoint_closed"]),
            ("cancelled", ["execution_resumed", "waitpoint_closed", "execution_cancelled"]),
            ("cancelled", ["waitpoint_closed", "execution_cancelled"]),
            ("failed", ["waitpoint_closed", "execution_failed"]),
        ]
        if ended == "runnable":
            await executions.cancel(given.conn, one.execution_id, reason="done with", by="ops")


async def test_a_suspension_and_a_signal_never_miss_each_other(given: Given, connect: Connect) -> None:
    """Both lock the ticket, so in no interleaving is an execution suspended with a satisfying signal stored."""
    one, two = await connect(), await connect()
    for first_is_signal, commits in itertools.product((True, False), (True, False)):
        claim = await given.claimed()
        made = await waits.create_waitpoint(given.conn, claim.fence, "w")
        sent = to(claim.execution_id, made.waitpoint_id, made.token)
        calls: list[Call] = [deliver(sent), suspend(claim.fence)]
        first, second = calls if first_is_signal else reversed(calls)
        transaction = one.transaction()
        await transaction.start()
        await first(one)
        later = asyncio.ensure_future(second(two))
        await blocked(given, two, later)
        await (transaction.commit() if commits else transaction.rollback())
        answer = await later

        stored = await given.rows("select from flowfabric.signals where execution = $1", claim.execution_id.uuid)
        after = await state(given.conn, claim.execution_id)
        suspended_again = first_is_signal and not commits
        assert (len(stored), after == "suspended") == (0 if suspended_again else 1, suspended_again)
        assert not isinstance(answer, FlowFabricError)
        await executions.cancel(given.conn, claim.execution_id, reason="done with", by="ops")


async def test_concurrent_suspensions_and_signals_never_leave_an_execution_waiting(
    given: Given, connect: Connect
) -> None:
    one, two = await connect(), await connect()
    for _ in range(30):
        claim = await given.claimed()
        made = await waits.create_waitpoint(given.conn, claim.fence, "w")
        sent = to(claim.execution_id, made.waitpoint_id, made.token)

        answer, done = await asyncio.gather(waits.suspend(one, claim.fence, wish(ANY)), waits.deliver_signal(two, sent))

        assert (answer.outcome, done.effect) in [
            ("already_satisfied", "buffered_for_pending_waitpoint"),
            ("suspended", "resume_condition_satisfied"),
        ]
        await executions.cancel(given.conn, claim.execution_id, reason="done with", by="ops")


async def test_a_repeated_suspension_that_races_the_first_returns_the_same_answer(
    given: Given, connect: Connect
) -> None:
    claim = await given.claimed()
    one, two = await connect(), await connect()
    wanted = wish(idempotency_key="once")

    async with one.transaction():
        first = await waits.suspend(one, claim.fence, wanted)
        later = asyncio.ensure_future(waits.suspend(two, claim.fence, wanted))
        await blocked(given, two, later)

    assert await later == first
    assert await given.count("waits") == 1


async def test_a_signal_that_is_repeated_concurrently_counts_once(given: Given, connect: Connect) -> None:
    counting = {"kind": "count", "n": 9, "of": "distinct_signals", "waitpoints": ["w"]}
    suspended = await waiting(given, counting)
    conns = [await connect() for _ in range(4)]
    sent = suspended.signal(idempotency_key="once")

    told = await asyncio.gather(*(waits.deliver_signal(conn, sent) for conn in conns))

    assert sorted(one.outcome for one in told) == ["accepted", "duplicate", "duplicate", "duplicate"]
    assert len({one.signal_id for one in told}) == 1


async def test_a_sweep_does_not_time_out_a_wait_that_has_ended_meanwhile(given: Given, connect: Connect) -> None:
    suspended = await waiting(given, timeout=HOUR)
    await given.time_passes(hours=1)
    conn = await connect()
    try:
        swept, told = await asyncio.gather(
            waits.time_out_waits(conn), waits.resume(given.conn, suspended.execution_id, by="ops")
        )
        assert (swept.moved, told.public_state) == (0, "waiting")
    except ExecutionNotSuspended:
        assert await state(given.conn, suspended.execution_id) == "failed"
    with pytest.raises(ExecutionNotActive):
        await waits.suspend(given.conn, suspended.claim.fence, wish())


def approve(one: Waiting) -> Call:
    return lambda conn: waits.deliver_approval(conn, one.execution_id, "w", "approve", by="ann")


def end_and_remove(one: Waiting) -> Call:
    async def act(conn: Connection) -> None:
        await cancel(one)(conn)
        await executions.remove_ended(conn, retention=timedelta(0))

    return act


@pytest.mark.parametrize("send", [signal, approve])
async def test_a_signal_to_an_execution_that_is_removed_meanwhile_is_refused(
    race: Race, given: Given, send: Callable[[Waiting], Call]
) -> None:
    one = await waiting(given)

    refusal = await race.waits(end_and_remove(one), send(one))

    assert isinstance(refusal, TargetNotSignalable)


async def test_signals_to_executions_that_stay_are_delivered_beside_one_that_is_removed_meanwhile(
    race: Race, given: Given
) -> None:
    first, removed, last = [await waiting(given) for _ in range(3)]

    answers = await race.waits(
        end_and_remove(removed),
        lambda conn: waits.deliver_signals(conn, [one.signal() for one in (first, removed, last)]),
    )

    assert [getattr(answer, "effect", type(answer)) for answer in answers] == [
        "resume_condition_satisfied",
        TargetNotSignalable,
        "resume_condition_satisfied",
    ]
