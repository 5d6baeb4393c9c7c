"""Concurrent use of budgets: the limit always holds, nothing is counted twice, and nothing deadlocks."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from msgspec.structs import replace

from flowfabric import errors
from flowfabric.engine import attempts, budgets, children, claims, executions, schedules, waits, workers
from flowfabric.model import Claim, Completion, FailureReport, Fence, PublicState
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK, Connect
from tests.engine.budgets.scene import TEAM, figures, make, report_of, spend
from tests.engine.executions.stored import blocked
from tests.engine.schedules.scene import create
from tests.engine.test_children import born
from tests.engine.waits.scene import OPERATOR_ONLY, wish
from tests.given import Given, state, submission

Call = Callable[[Connection], Awaitable[Any]]

TASKS, CONNECTIONS = 64, 8
ACTS = 200 if SOAK else 8
HARD = 300
SECOND = timedelta(seconds=1)

SAMPLE = """
select (b.used ->> 'tokens')::bigint as used, (b.reserved ->> 'tokens')::bigint as reserved,
       (select sum((s.spent ->> 'tokens')::bigint) from flowfabric.spending s
        where s.budget = b.id and s.period = b.period) as ledger,
       (select sum((r.estimate ->> 'tokens')::bigint) from flowfabric.reservations r
        where r.budget = b.id and r.ended_at is null) as open
from flowfabric.budgets b
"""


async def claim(conn: Connection, lane: str) -> Claim:
    [taken] = await claims.claim(conn, "w", instance="w-1", lanes=[lane])
    return taken


class Sampler:
    """Reads the budget repeatedly while others use it, each time in one statement and therefore one snapshot."""

    def __init__(self, conn: asyncpg.Connection, hard: int) -> None:
        self.conn, self.hard, self.samples, self.fullest = conn, hard, 0, 0

    async def run(self, busy: asyncio.Event) -> None:
        while not busy.is_set():
            await self.look()

    async def look(self) -> None:
        [row] = await self.conn.fetch(SAMPLE)
        seen = {name: row[name] or 0 for name in ("used", "reserved", "ledger", "open")}
        assert seen["used"] + seen["reserved"] <= self.hard
        assert (seen["used"], seen["reserved"]) == (seen["ledger"], seen["open"])
        self.samples += 1
        self.fullest = max(self.fullest, seen["used"] + seen["reserved"])


async def watched(conn: asyncpg.Connection, hard: int, work: Awaitable[Any]) -> Sampler:
    """Run the work while a sampler checks the budget."""
    sampler, done = Sampler(conn, hard), asyncio.Event()
    looking = asyncio.ensure_future(sampler.run(done))
    await work
    done.set()
    await looking
    await sampler.look()
    return sampler


class Hammer:
    """One of many concurrent users of a budget: it reserves, settles, releases, reports, and sometimes crashes."""

    def __init__(self, number: int, conn: asyncpg.Connection, turn: asyncio.Lock) -> None:
        self.lane, self.conn, self.turn = f"lane-{number}", conn, turn
        self.random = random.Random(number)
        self.open: list[UUID] = []
        self.acts = [self.reserve, self.reserve, self.reserve, self.settle, self.settle, self.report, self.release]
        self.acts += [self.die, self.take_back]

    async def run(self, acts: int) -> None:
        async with self.turn:
            self.fence = (await claim(self.conn, self.lane)).fence
        for _ in range(acts):
            async with self.turn:
                await self.random.choice(self.acts)()

    async def reserve(self) -> None:
        tokens = self.random.randint(1, 20)
        answer = await budgets.reserve(self.conn, TEAM, {"tokens": tokens}, fence=self.fence)
        if answer.reservation_id is not None:
            self.open.append(answer.reservation_id)

    async def settle(self) -> None:
        if self.open:
            await budgets.settle(self.conn, self.open.pop(), {"tokens": self.random.randint(0, 25)}, fence=self.fence)

    async def release(self) -> None:
        if self.open:
            await budgets.release(self.conn, self.open.pop(), fence=self.fence)

    async def report(self) -> None:
        await spend(self.conn, self.random.randint(0, 5), fence=self.fence)

    async def take_back(self) -> None:
        await budgets.release_usage(self.conn, TEAM, self.fence.execution_id, by="ops")

    async def die(self) -> None:
        """Crash in the middle of a transaction, or between two calls, after which the work is reclaimed."""
        if self.random.random() < 0.5:
            with suppress(ZeroDivisionError):
                async with self.conn.transaction():
                    await budgets.reserve(self.conn, TEAM, {"tokens": 10}, fence=self.fence)
                    await spend(self.conn, 3, fence=self.fence)
                    raise ZeroDivisionError
            return
        await claims.revoke(self.conn, self.fence.execution_id, by="ops")
        self.open.clear()
        self.fence = (await claim(self.conn, self.lane)).fence


async def test_sixty_four_tasks_on_eight_connections_never_pass_the_limit_by_one_unit(
    connect: Connect, given: Given
) -> None:
    """In every snapshot, used plus reserved is within the limit and equals the ledger plus the open reservations."""
    await make(given.conn, hard_limits={"tokens": HARD})
    await executions.submit_many(given.conn, [submission(lane=f"lane-{number}") for number in range(TASKS)])
    conns = [(await connect(), asyncio.Lock()) for _ in range(CONNECTIONS)]
    hammers = [Hammer(number, *conns[number % CONNECTIONS]) for number in range(TASKS)]

    async def periods() -> None:
        working = asyncio.gather(*(hammer.run(ACTS) for hammer in hammers))
        for _ in range(ACTS // 4):
            await budgets.reset_budget(given.conn, TEAM, by="ops")
            await given.conn.fetch("select from pg_stat_activity")
        await working

    sampler = await watched(await connect(), HARD, periods())

    assert sampler.samples > 20
    assert sampler.fullest > HARD * 0.9
    fences = [hammer.fence for hammer in hammers]
    await attempts.complete_many(given.conn, [Completion(fence=fence) for fence in fences])
    await sampler.look()
    assert (await figures(given.conn))[1] == 0


async def test_of_a_hundred_concurrent_reservations_on_a_limit_of_fifty_exactly_fifty_succeed(
    connect: Connect, given: Given
) -> None:
    """In every snapshot, used plus reserved is within the hard limit."""
    await make(given.conn, hard_limits={"tokens": 50})
    conns = [await connect() for _ in range(10)]

    async def ten(conn: asyncpg.Connection) -> list[str]:
        return [(await budgets.reserve(conn, TEAM, {"tokens": 1})).outcome for _ in range(10)]

    reserving = asyncio.gather(*map(ten, conns))
    await watched(await connect(), 50, reserving)

    outcomes = [outcome for each in await reserving for outcome in each]
    assert (outcomes.count("reserved"), outcomes.count("hard_breach")) == (50, 50)


async def test_of_a_hundred_concurrent_reports_on_ten_connections_exactly_fifty_succeed(
    connect: Connect, given: Given
) -> None:
    """The limit is checked and the amount added under one lock."""
    await make(given.conn, hard_limits={"cost_micros": 5_000_000})
    conns = [await connect() for _ in range(10)]

    async def ten(conn: asyncpg.Connection) -> list[str]:
        return [(await spend(conn, {"cost_micros": 100_000})).outcome for _ in range(10)]

    outcomes = [outcome for each in await asyncio.gather(*map(ten, conns)) for outcome in each]

    assert (outcomes.count("ok"), outcomes.count("hard_breach")) == (50, 50)
    assert (await budgets.describe_budget(given.conn, TEAM)).used == {"cost_micros": 5_000_000}


class Race:
    """Two calls: the first has run but not committed when the second starts."""

    def __init__(self, given: Given, one: asyncpg.Connection, two: asyncpg.Connection) -> None:
        self.given, self.one, self.two = given, one, two

    async def waits(self, first: Call, second: Call, *, commits: bool = True) -> Any:
        """The answer of the second call, which must wait for the first, or the error it raised."""
        transaction = self.one.transaction()
        await transaction.start()
        await first(self.one)
        later = asyncio.ensure_future(second(self.two))
        await blocked(self.given, self.two, later)
        await (transaction.commit() if commits else transaction.rollback())
        return (await asyncio.gather(later, return_exceptions=True))[0]


@pytest.fixture
async def race(given: Given, connect: Connect) -> Race:
    return Race(given, await connect(), await connect())


async def test_of_two_concurrent_reports_that_do_not_fit_together_the_second_is_a_breach(race: Race) -> None:
    await make(race.given.conn)

    answer = await race.waits(lambda conn: spend(conn, 60), lambda conn: spend(conn, 60))
    assert (answer.outcome, answer.used) == ("hard_breach", 60)


async def test_a_report_that_is_rolled_back_frees_its_amount_and_its_dedup_key(race: Race) -> None:
    await make(race.given.conn)
    call: Call = lambda conn: spend(conn, 60, dedup_key="k")  # noqa: E731

    assert (await race.waits(call, call, commits=False)).outcome == "ok"
    assert (await race.waits(call, call)).outcome == "already_applied"
    assert (await figures(race.given.conn))[0] == 60


@pytest.mark.parametrize(("commits", "outcome"), [(True, "exists"), (False, "created")])
async def test_of_two_concurrent_calls_one_creates_the_budget(race: Race, commits: bool, outcome: str) -> None:
    call: Call = lambda conn: budgets.create_budget(conn, TEAM, hard_limits={"tokens": 1})  # noqa: E731

    assert (await race.waits(call, call, commits=commits)).outcome == outcome
    assert (await race.given.events()).count("budget_created") == 1


async def test_raising_the_limit_resumes_an_execution_that_was_being_suspended(race: Race) -> None:
    await make(race.given.conn, on_hard_limit="suspend")
    claim = await race.given.claimed()

    changed = await race.waits(
        lambda conn: spend(conn, 150, fence=claim.fence),
        lambda conn: budgets.change_budget(conn, TEAM, hard_limits={"tokens": 150}, by="ops"),
    )

    assert changed.lanes == ["default"]
    assert await state(race.given.conn, claim.execution_id) is PublicState.WAITING


async def test_raising_the_limit_skips_a_locked_ticket_and_the_sweep_resumes_it(race: Race) -> None:
    await make(race.given.conn, on_hard_limit="suspend")
    claim = await race.given.claimed()
    await spend(race.given.conn, 150, fence=claim.fence)

    async with race.one.transaction():
        await executions.change_priority(race.one, claim.execution_id, 7, by="ops")
        async with asyncio.timeout(10):
            await budgets.change_budget(race.two, TEAM, hard_limits={"tokens": 150}, by="ops")
    assert await state(race.given.conn, claim.execution_id) is PublicState.SUSPENDED
    assert (await budgets.resume_budget_waits(race.two)).moved == 1
    assert await state(race.given.conn, claim.execution_id) is PublicState.WAITING


async def test_a_reservation_that_expires_while_its_execution_ends_is_released_once(race: Race) -> None:
    await make(race.given.conn)
    claim = await race.given.claimed()
    await budgets.reserve(race.given.conn, TEAM, {"tokens": 60}, fence=claim.fence, ttl=SECOND)
    await budgets.reserve(race.given.conn, TEAM, {"tokens": 30})
    await race.given.time_passes(seconds=2)

    await race.waits(lambda conn: spend(conn, 1), lambda conn: attempts.complete(conn, claim.fence))
    assert await figures(race.given.conn) == (1, 30, 0)
    kinds = await race.given.events()
    assert (kinds.count("reservation_expired"), kinds.count("reservation_released")) == (1, 0)


async def test_a_settlement_that_waited_for_a_revocation_is_fenced(race: Race) -> None:
    await make(race.given.conn)
    claim = await race.given.claimed()
    held = await budgets.reserve(race.given.conn, TEAM, {"tokens": 60}, fence=claim.fence)
    assert held.reservation_id is not None
    reservation: UUID = held.reservation_id

    refusal = await race.waits(
        lambda conn: claims.revoke(conn, claim.execution_id, by="ops"),
        lambda conn: budgets.settle(conn, reservation, {"tokens": 50}, fence=claim.fence),
    )
    assert isinstance(refusal, errors.LeaseLost)
    assert await figures(race.given.conn) == (0, 0, 0)


async def in_key_order(conn: Connection, count: int, **options: Any) -> list[str]:
    """The names of new budgets, in the order in which they are locked."""
    for number in range(count):
        await make(conn, f"b{number}", hard_limits={"tokens": 1_000_000}, **options)
    return [row["name"] for row in await conn.fetch("select name from flowfabric.budgets order by partition, id")]


async def crossing(race: Race, first: str, last: str, call: Call) -> Any:
    """The answer of a call that runs while another has locked the first budget and is about to lock the last."""

    async def inside() -> Any:
        # In an explicit transaction: without one, a deadlock would be retried and go unnoticed.
        async with race.two.transaction():
            return await call(race.two)

    async with race.one.transaction():
        await spend(race.one, 1, first)
        crossed = asyncio.ensure_future(inside())
        await blocked(race.given, race.two, crossed)
        await spend(race.one, 1, last)
    return await crossed


async def test_a_batch_locks_its_budgets_in_key_order(race: Race) -> None:
    first, last = await in_key_order(race.given.conn, 2)
    reports = [report_of(1, last), report_of(1, first)]

    await crossing(race, first, last, lambda conn: budgets.report_usage_many(conn, reports))

    assert [await figures(race.given.conn, name) for name in (first, last)] == [(2, 0, 0)] * 2


async def test_a_report_that_ends_its_execution_locks_the_budgets_of_its_reservations_in_key_order(race: Race) -> None:
    first, last = await in_key_order(race.given.conn, 2, on_hard_limit="fail")
    claim = await race.given.claimed()
    await budgets.reserve(race.given.conn, first, {"tokens": 5}, fence=claim.fence)

    answer = await crossing(race, first, last, lambda conn: spend(conn, 2_000_000, last, fence=claim.fence))

    assert (answer.action, await state(race.given.conn, claim.execution_id)) == ("fail", PublicState.FAILED)
    assert (await figures(race.given.conn, first)) == (1, 0, 0)


async def test_retried_and_final_failures_release_reservations_in_key_order(race: Race) -> None:
    first, last = await in_key_order(race.given.conn, 2)
    final = await race.given.claimed()
    again = await race.given.claimed(policy={"retry": {"max_retries": 1}})
    await budgets.reserve(race.given.conn, first, {"tokens": 5}, fence=final.fence)
    await budgets.reserve(race.given.conn, last, {"tokens": 5}, fence=again.fence)
    reports = [FailureReport(fence=claim.fence, reason="it broke") for claim in (again, final)]

    answers = await crossing(race, first, last, lambda conn: attempts.fail_many(conn, reports))

    assert [answer.outcome for answer in answers] == ["retry_scheduled", "failed"]
    assert [await figures(race.given.conn, name) for name in (first, last)] == [(1, 0, 0)] * 2


@pytest.mark.parametrize("fails", [False, True])
async def test_a_batch_that_names_an_execution_twice_releases_reservations_in_key_order(
    race: Race, fails: bool
) -> None:
    first, last = await in_key_order(race.given.conn, 2)
    fences = [(await race.given.claimed()).fence for _ in range(2)]
    for name, fence in zip((last, first), fences, strict=True):
        await budgets.reserve(race.given.conn, name, {"tokens": 5}, fence=fence)
    shown = [replace(fences[1], epoch=9), *fences]

    def batch(conn: Connection) -> Awaitable[Any]:
        if fails:
            return attempts.fail_many(conn, [FailureReport(fence=fence, reason="it broke") for fence in shown])
        return attempts.complete_many(conn, [Completion(fence=fence) for fence in shown])

    answers = await crossing(race, first, last, batch)
    assert [type(answer) is errors.LeaseLost for answer in answers] == [True, False, False]
    assert [await figures(race.given.conn, name) for name in (first, last)] == [(1, 0, 0)] * 2


async def test_orphans_with_reservations_are_cancelled_one_family_per_pass(race: Race) -> None:
    first, last = await in_key_order(race.given.conn, 2)
    orphans = []
    for name in (last, first):
        parent = await race.given.claimed()
        orphans += await born(race.given, parent)
        [claim] = await race.given.claim(lanes=["nursery"])
        await budgets.reserve(race.given.conn, name, {"tokens": 5}, fence=claim.fence)
        await executions.cancel(race.given.conn, parent.execution_id, by="ops")

    async with race.one.transaction():
        await spend(race.one, 1, first)
        async with asyncio.timeout(10):
            assert (await children.deliver_child_ends(race.two)).ended == [orphans[0]]
    assert (await children.deliver_child_ends(race.two)).ended == [orphans[1]]


async def test_a_schedule_holds_no_budget_while_the_next_one_waits_for_another(race: Race) -> None:
    first, last = await in_key_order(race.given.conn, 2)
    for name in "ab":
        await create(race.given.conn, name, lane=name, overlap="replace", every=timedelta(hours=1))
    await race.given.time_passes(hours=1)
    await schedules.fire_schedules(race.given.conn)
    for lane, name in (("a", last), ("b", first)):
        await budgets.reserve(race.given.conn, name, {"tokens": 5}, fence=(await claim(race.given.conn, lane)).fence)
    await race.given.time_passes(hours=1)

    async with race.one.transaction():
        await spend(race.one, 1, first)
        later = asyncio.ensure_future(schedules.fire_schedules(race.two))
        await blocked(race.given, race.two, later)
        assert await figures(race.given.conn, last) == (0, 0, 0)
        assert (await later).moved == 1
    await race.given.time_passes(seconds=2)
    assert (await schedules.fire_schedules(race.two)).moved == 1


@pytest.mark.parametrize("behaviors", [("fail", "cancel"), ("cancel", "fail")])
async def test_waits_that_time_out_in_several_ways_release_reservations_in_key_order(
    race: Race, behaviors: tuple[str, str]
) -> None:
    first, last = await in_key_order(race.given.conn, 2)
    for name, behavior in zip((first, last), behaviors, strict=True):
        claim = await race.given.claimed()
        await budgets.reserve(race.given.conn, name, {"tokens": 5}, fence=claim.fence)
        await waits.suspend(
            race.given.conn, claim.fence, wish(OPERATOR_ONLY, [], timeout=SECOND, timeout_behavior=behavior)
        )
    await race.given.time_passes(seconds=2)

    assert (await crossing(race, first, last, waits.time_out_waits)).moved == 2
    assert [await figures(race.given.conn, name) for name in (first, last)] == [(1, 0, 0)] * 2


async def test_several_orphans_release_reservations_in_key_order(race: Race) -> None:
    first, last = await in_key_order(race.given.conn, 2)
    for conn, instance in ((race.one, "live-1"), (race.two, "live-2")):
        await workers.hold_lock(conn, instance)
        await workers.register_worker(conn, "w", instance=instance, lanes=["default"], holds_lock=True)
    for instance, name in (("w-1", last), ("w-2", first)):
        await workers.hold_lock(race.given.conn, instance)
        await workers.register_worker(race.given.conn, "w", instance=instance, lanes=["default"], holds_lock=True)
        await race.given.submitted()
        [claim] = await race.given.claim(worker="w", instance=instance)
        await budgets.reserve(race.given.conn, name, {"tokens": 5}, fence=claim.fence)
    await race.given.rows("select pg_advisory_unlock_all()")
    for _ in range(2):
        assert (await workers.return_orphans(race.given.conn)).moved == 0
        await race.given.time_passes(seconds=0.4)

    swept = await crossing(race, first, last, workers.return_orphans)
    assert (swept.moved, swept.lanes) == (2, ["default"])
    assert [await figures(race.given.conn, name) for name in (first, last)] == [(1, 0, 0)] * 2


async def test_a_claim_that_has_locked_budgets_does_not_wait_for_the_budgets_of_expired_executions(race: Race) -> None:
    first, last = await in_key_order(race.given.conn, 2)
    for name in (last, first):
        claim = await race.given.claimed(deadline=2 * SECOND)
        await budgets.reserve(race.given.conn, name, {"tokens": 5}, fence=claim.fence)
        await attempts.delay(race.given.conn, claim.fence, SECOND)
    await race.given.time_passes(seconds=3)

    async with race.one.transaction():
        await spend(race.one, 1, first)
        async with asyncio.timeout(10):
            assert await claims.claim(race.two, "w", instance="w-1", lanes=["default"]) == []
    assert [await figures(race.given.conn, name) for name in (first, last)] == [(1, 5, 0), (0, 0, 0)]
    assert (await executions.expire_executions(race.given.conn)).moved == 1


async def test_spending_ending_and_sweeping_do_not_deadlock(connect: Connect, given: Given) -> None:
    names = [f"b{number}" for number in range(4)]
    for name in names:
        await make(given.conn, name, hard_limits={"tokens": 60}, on_hard_limit="fail")
    conns = [await connect() for _ in range(4)]

    async def inside(conn: asyncpg.Connection, call: Call) -> None:
        # In an explicit transaction: without one, a deadlock would be retried and go unnoticed.
        async with conn.transaction():
            await call(conn)

    for number in range(100 if SOAK else 12):
        await executions.submit_many(given.conn, [submission()] * 12)
        fences = [each.fence for each in await given.claim(take=12)]
        shuffled = random.Random(number)
        for fence in fences:
            await budgets.reserve(given.conn, shuffled.choice(names), {"tokens": 2}, fence=fence)
        calls: list[Call] = [
            _reports(names, fences[:6]),
            _reports(names[::-1], fences[6:][::-1]),
            lambda conn, fences=fences: attempts.complete_many(conn, [Completion(fence=f) for f in fences[::2]]),  # type: ignore[misc]
            lambda conn: budgets.expire_reservations(conn),
        ]
        await asyncio.gather(*(inside(conn, call) for conn, call in zip(conns, calls, strict=True)))
        for name in names:
            await budgets.reset_budget(given.conn, name, by="ops")
        await attempts.complete_many(given.conn, [Completion(fence=fence) for fence in fences])

    assert [(await figures(given.conn, name))[1] for name in names] == [0] * 4


def _reports(names: list[str], fences: list[Fence]) -> Call:
    reports = [report_of(7, name, fence=fence) for name in names for fence in fences]
    return lambda conn: budgets.report_usage_many(conn, reports)
