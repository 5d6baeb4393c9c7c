"""Plans of calls about waits: they read as much beside a hundred thousand waits as beside a hundred."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import asyncpg
import pytest

from benchmarks.waiting import FILL
from flowfabric.engine import claims, executions, waits
from flowfabric.model import Claim, Delivered
from tests.conftest import SOAK, Connect, Server
from tests.engine.waits.scene import ANY, Waiting, approvals, waiting, wish
from tests.filled import copied, undone
from tests.given import Given, submission
from tests.sql.reading import Plan, Read
from tests.sql.reading import reading as reading_of

FEW, MANY = 100, 100_000 if SOAK else 20_000
HOUR = timedelta(hours=1)

TABLES = ["executions", "tickets", "waits", "waitpoints", "signals"]

reading = partial(reading_of, tables=TABLES)


async def asked(conn: asyncpg.Connection, amount: int, **options: Any) -> list[Waiting]:
    """So many executions that have just suspended."""
    await executions.submit_many(conn, [submission()] * amount)
    claimed = await claims.claim(conn, "w", instance="w-1", lanes=["default"], take=amount)
    return [Waiting(claim, await waits.suspend(conn, claim.fence, wish(ANY, **options))) for claim in claimed]


class Filled(NamedTuple):
    """A database with many suspended executions; for three of them we know the tokens."""

    url: str
    ours: list[Waiting]


async def fill(url: str, amount: int) -> list[Waiting]:
    conn = await asyncpg.connect(url)
    ours = await asked(conn, 3)
    await conn.execute(FILL, amount)
    await conn.execute("vacuum analyze")
    await conn.close()
    return ours


@pytest.fixture(scope="module", params=[FEW, MANY])
def filled(server: Server, template: str, request: pytest.FixtureRequest) -> Iterator[Filled]:
    with copied(server, template) as url:
        yield Filled(url, asyncio.run(fill(url, request.param)))


@pytest.fixture
async def full(filled: Filled) -> AsyncIterator[asyncpg.Connection]:
    """A connection to it, in a transaction that is rolled back."""
    async with undone(filled.url) as conn:
        yield conn


async def nothing(conn: asyncpg.Connection, filled: Filled) -> Filled:
    return filled


async def a_claim(conn: asyncpg.Connection, _: Filled) -> Claim:
    await executions.submit(conn, submission())
    [claim] = await claims.claim(conn, "w", instance="w-1", lanes=["default"])
    return claim


async def a_claim_with_a_waitpoint(conn: asyncpg.Connection, filled: Filled) -> Claim:
    claim = await a_claim(conn, filled)
    await waits.create_waitpoint(conn, claim.fence, "w")
    return claim


async def two_that_wait(conn: asyncpg.Connection, _: Filled) -> None:
    assert len(await asked(conn, 2, timeout=HOUR, timeout_behavior="auto_resume")) == 2


async def two_that_are_due(conn: asyncpg.Connection, filled: Filled) -> None:
    await two_that_wait(conn, filled)
    await conn.execute("select flowfabric.move_clock('1 hour')")


async def two_that_timed_out(conn: asyncpg.Connection, filled: Filled) -> None:
    await two_that_are_due(conn, filled)
    assert (await waits.time_out_waits(conn)).moved == 2


def signalled(number: int) -> Plan:
    """A signal to one of the three known executions, after signals to those before it."""

    async def earlier(conn: asyncpg.Connection, filled: Filled) -> Filled:
        for one in filled.ours[:number]:
            await waits.deliver_signal(conn, one.signal())
        return filled

    return Plan(
        earlier,
        lambda conn, filled: waits.deliver_signal(conn, filled.ours[number].signal()),
        60,
        lambda done: isinstance(done, Delivered) and done.effect == "resume_condition_satisfied",
    )


PLANS = {
    "deliver_signal": signalled(0),
    "deliver_signal, the second": signalled(1),
    "deliver_signal, the third": signalled(2),
    "deliver_signal with a bad token": Plan(
        nothing,
        lambda conn, filled: waits.deliver_signals(conn, [filled.ours[0].signal(token="bad")]),
        4,
        lambda answers: [one.code for one in answers] == ["invalid_token"],
    ),
    "deliver_approval": Plan(
        nothing,
        lambda conn, filled: waits.deliver_approval(conn, filled.ours[0].execution_id, "w", "approve", by="ann"),
        60,
    ),
    "resume": Plan(nothing, lambda conn, filled: waits.resume(conn, filled.ours[1].execution_id, by="ann"), 60),
    "create_waitpoint": Plan(a_claim, lambda conn, claim: waits.create_waitpoint(conn, claim.fence, "w"), 20),
    "suspend": Plan(
        a_claim_with_a_waitpoint,
        lambda conn, claim: waits.suspend(conn, claim.fence, wish(ANY, timeout=HOUR)),
        60,
    ),
    "time_out_waits, none due": Plan(
        two_that_wait, lambda conn, _: waits.time_out_waits(conn), 15, lambda swept: swept.moved == 0
    ),
    "time_out_waits, two due": Plan(
        two_that_are_due, lambda conn, _: waits.time_out_waits(conn), 80, lambda swept: swept.moved == 2
    ),
    "close_waitpoints, none due": Plan(
        two_that_timed_out, lambda conn, _: waits.close_waitpoints(conn), 15, lambda swept: swept.moved == 0
    ),
    "list_approvals": Plan(
        nothing,
        lambda conn, _: waits.list_approvals(conn, limit=10),
        40 * FEW,
    ),
    "list_suspended": Plan(
        nothing,
        lambda conn, _: waits.list_suspended(conn, limit=10),
        20 * FEW,
        lambda page: len(page.items) == 10,
    ),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
async def test_a_call_reads_no_more_however_many_executions_wait(
    full: asyncpg.Connection, filled: Filled, plan: Plan
) -> None:
    await plan.check(full, await plan.fill(full, filled), TABLES)


async def test_earlier_waits_of_an_execution_do_not_make_the_next_one_slower(connect: Connect, given: Given) -> None:
    conn = await connect()
    async with conn.transaction():
        [first] = await asked(conn, 1)
        for table in ("waits", "waitpoints"):
            await conn.execute(PAST.format(table=table))
        await conn.execute(SIGNALS)
        await conn.execute("analyze flowfabric.waits, flowfabric.waitpoints, flowfabric.signals")

        done, read = await reading(conn, waits.deliver_signal(conn, first.signal()))

    assert done.effect == "resume_condition_satisfied"
    assert (read.rows <= 60, read.whole) == (True, 0), read
    assert await given.count("signals") == 2_001


@pytest.mark.parametrize("condition", [approvals(1), approvals(2)])
async def test_a_signal_that_a_condition_cannot_count_reads_none_of_the_signals_that_have_arrived(
    conn: asyncpg.Connection, given: Given, condition: dict[str, object]
) -> None:
    waits_on = await waiting(given, condition)
    await conn.execute(SIGNALS.replace("closed", "active").replace("w where", "w, generate_series(1, 2000) where"))
    await conn.execute("analyze flowfabric.signals")

    done, read = await reading(conn, waits.deliver_signal(conn, waits_on.signal("progress")))

    assert done.effect == "signal_ignored_matcher_failed"
    assert (read.rows <= 60, read.whole) == (True, 0), read


VOTES: list[dict[str, object]] = [
    {"kind": "count", "n": 2_100, "of": of, "waitpoints": ["w"]} for of in ("distinct_signals", "distinct_sources")
]


@pytest.mark.parametrize(("sent", "effect"), [(50, "appended_to_waitpoint"), (100, "resume_condition_satisfied")])
@pytest.mark.parametrize("condition", VOTES)
async def test_a_batch_of_signals_to_a_wait_that_counts_reads_those_that_have_arrived_once(
    conn: asyncpg.Connection, given: Given, condition: dict[str, object], sent: int, effect: str
) -> None:
    waits_on = await waiting(given, condition)
    await conn.execute(SIGNALS.replace("closed", "active").replace("w where", "w, generate_series(1, 2000) where"))
    await conn.execute("update flowfabric.signals set source_identity = number::text")
    await conn.execute("vacuum analyze flowfabric.signals")
    batch = [waits_on.signal(source_identity=f"voter {number}") for number in range(sent)]

    async with conn.transaction():
        done, read = await reading(conn, waits.deliver_signals(conn, batch))

    assert [one.effect for one in done] == ["appended_to_waitpoint"] * (sent - 1) + [effect]
    looks = 2 if effect == "resume_condition_satisfied" else 1  # one more finds the signals that satisfied it
    assert (read.rows <= looks * 2 * 2_000 + 60 * sent, read.whole) == (True, 0), read


# Two thousand waits of the same execution that have ended.
PAST = """
insert into flowfabric.{table}
select (jsonb_populate_record(o.*, jsonb_build_object(
    'id', gen_random_uuid(), 'suspension', gen_random_uuid(), 'wait', gen_random_uuid(), 'state', 'closed',
    'created_at', now() - interval '1 hour', 'ended_at', now()))).*
from flowfabric.{table} o cross join generate_series(1, 2000)
"""
SIGNALS = """
insert into flowfabric.signals (partition, number, at, execution, id, waitpoint, name, category, source_type,
                                source_identity, effect)
select w.partition, row_number() over (), now(), w.execution, gen_random_uuid(), w.id, 'x', 'signal',
       'external', 'x', 'no_op'
from flowfabric.waitpoints w where w.state = 'closed'
"""


async def cycle(conn: asyncpg.Connection, amount: int) -> dict[str, Read]:
    """Every call about waits, on so many executions, and what its last call read."""
    read: dict[str, Read] = {}
    await executions.submit_many(conn, [submission()] * amount)
    taken: list[Claim] = await claims.claim(conn, "w", instance="w-1", lanes=["default"], take=amount)
    for claim in taken:
        _, read["create_waitpoint"] = await reading(conn, waits.create_waitpoint(conn, claim.fence, "w"))
    suspended = []
    for claim in taken:
        answer, read["suspend"] = await reading(conn, waits.suspend(conn, claim.fence, wish(ANY, timeout=HOUR)))
        suspended.append(Waiting(claim, answer))
    signals = [one.signal(idempotency_key="k") for one in suspended]
    _, read["deliver_signal"] = await reading(conn, waits.deliver_signals(conn, signals))
    _, read["claim"] = await reading(conn, claims.claim(conn, "w", instance="w-1", lanes=["default"], take=amount))
    _, read["time_out_waits"] = await reading(conn, waits.time_out_waits(conn))
    _, read["close_waitpoints"] = await reading(conn, waits.close_waitpoints(conn))
    for claim in taken:
        _, read["cancel"] = await reading(
            conn, executions.cancel(conn, claim.execution_id, reason="done with", by="ops")
        )
    return read


async def test_plans_made_on_empty_tables_read_little_of_full_ones(connect: Connect, given: Given) -> None:
    conn = await connect()
    for table in TABLES:
        await conn.execute(f"alter table flowfabric.{table} set (autovacuum_enabled = off)")
    async with conn.transaction():
        for _ in range(8):
            await cycle(conn, 1)
    await asked(given.conn, 1)
    await given.rows(FILL, MANY)

    async with conn.transaction():
        read = await cycle(conn, 20)

    assert {name: each.whole for name, each in read.items()} == dict.fromkeys(read, 0)
    assert {name: each.rows for name, each in read.items() if each.rows > 50 * 20} == {}
