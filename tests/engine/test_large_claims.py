"""What comes with a claim is bounded in bytes; the rest is read on demand, and the lease begins after all reading."""

import asyncio
from datetime import timedelta
from uuid import UUID

from flowfabric import testing
from flowfabric.engine import attempts, steps, waits
from flowfabric.model import Claim, Signal, Step, Suspension
from tests.engine.waits.scene import to
from tests.given import Given
from tests.races import Race

MIB = 1_048_576
COUNT = {"kind": "count", "of": "distinct_signals", "waitpoints": ["w"]}


async def resumed(given: Given, signals: int, size: int, name: str | None = "many") -> tuple[Claim, UUID]:
    """An execution that waited for so many signals of that size, claimed again; and its wait."""
    claim = await given.claimed()
    made = await waits.create_waitpoint(given.conn, claim.fence, "w")
    sent = [
        to(claim.execution_id, made.waitpoint_id, made.token, payload=b"%05d" % number + b"x" * (size - 5))
        for number in range(signals)
    ]
    wish = Suspension(
        condition={**COUNT, "n": signals}, waitpoints=["w"], name=name, occurrence=None if name is None else 1
    )
    answer = await waits.suspend(given.conn, claim.fence, wish)
    await waits.deliver_signals(given.conn, sent)
    [claim] = await given.claim()
    return claim, answer.suspension_id


def numbers(signals: list[Signal]) -> list[int]:
    return [int((signal.payload or b"")[:5]) for signal in signals]


async def test_large_signals_of_a_wait_do_not_come_with_the_claim(given: Given) -> None:
    claim, wait = await resumed(given, 40, 60_000)

    assert claim.journal is None
    read = await waits.read_signals(given.conn, claim.execution_id, wait)
    assert numbers(read) == list(range(40))
    [entry] = await steps.read_journal(given.conn, claim.execution_id, begun=claim.journal)
    assert (entry.name, entry.by, entry.signals) == ("many", "signal", read)


async def test_every_page_of_a_journal_and_of_signals_stays_below_a_mebibyte(given: Given) -> None:
    claim, wait = await resumed(given, 40, 60_000)
    await steps.save_step_many(
        given.conn, [Step(fence=claim.fence, name=f"s{n}", occurrence=1, result=b"x" * 300_000) for n in range(4)]
    )
    where = claim.execution_id.partition, claim.execution_id.uuid

    [journal] = await given.rows("select octet_length(flowfabric.read_journal($1, $2)) as size", *where)
    [signals] = await given.rows("select octet_length(flowfabric.read_signals($1, $2, $3)) as size", *where, wait)
    assert journal["size"] <= MIB
    assert MIB / 2 < signals["size"] <= MIB
    assert len(await steps.read_journal(given.conn, claim.execution_id)) == 5


async def test_small_signals_come_with_the_claim(given: Given) -> None:
    claim, _ = await resumed(given, 5, 100)

    assert claim.journal is not None
    [entry] = claim.journal.entries
    assert (entry.name, entry.by, numbers(list(entry.signals))) == ("many", "signal", list(range(5)))
    assert claim.journal.entries == await steps.read_journal(given.conn, claim.execution_id)


async def test_the_signals_of_one_execution_take_no_room_from_its_neighbours(given: Given) -> None:
    large, _ = await resumed(given, 40, 60_000, name=None)
    small, _ = await resumed(given, 2, 100)
    await steps.save_step(given.conn, Step(fence=large.fence, name="s", occurrence=1, result=b"1"))
    for claim in (large, small):
        await attempts.delay(given.conn, claim.fence)

    first, second = await given.claim(take=2)

    assert [claim.execution_id for claim in (first, second)] == [large.execution_id, small.execution_id]
    for claim in (first, second):
        assert claim.journal is not None
        assert [entry.name for entry in claim.journal.entries] == ["s"] if claim is first else ["many"]


async def test_a_lease_begins_when_everything_the_claim_returns_has_been_read(given: Given, race: Race) -> None:
    """Whatever the claim waits for, here for the log, must not use up the lease."""
    await given.submitted()
    await race.two.execute("set flowfabric.direct = on")  # as in the worker's own sessions, which lock the log first
    async with race.one.transaction():
        await race.one.execute("select pg_advisory_xact_lock(17990, 1)")
        claiming = asyncio.ensure_future(Given(race.two).claim())
        await given.blocked(race.two, claiming)
        await given.time_passes(seconds=20)
    [claim] = await claiming

    assert claim.expires_at - await testing.now(given.conn) > timedelta(seconds=25)
