"""Acts on executions: submit, claim and report them, operate on them, sweep, move the clock, kill sessions."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

from flowfabric.engine import attempts, claims, executions, holds, lanes, schedules, steps, workers
from flowfabric.model import Claim, Completion, Delay, FailureClass, FailureReport, Step, Submission, Timing
from flowfabric.testing import move_clock
from tests.given import submission
from tests.stress import invariants
from tests.stress.harness import SWEEPS, Actor

LANES = ["red", "green", "blue"]
BUDGETS = ["ledger", "ledger-sinking", "spent", "fail-ledger", "suspend"]
QUOTAS = ["slots", "window", "sinking"]
UNLIMITED: dict[str, Any] = {"budgets": [], "quotas": []}


def random_policy(actor: Actor) -> dict[str, Any]:
    """A policy with any of the limits that end or repeat an attempt."""
    dice = actor.dice
    policy: dict[str, Any] = {"dedup_window_ms": 5_000}
    if actor.chance(0.5):
        backoff = {"type": "fixed", "delay_ms": dice.choice([0, 1_000, 20_000])}
        policy["retry"] = {"max_retries": dice.randint(0, 3), "backoff": backoff}
    if actor.chance(0.3):
        policy["max_reclaim_count"] = dice.randint(0, 3)
    if actor.chance(0.2):
        policy["attempt_timeout_ms"] = dice.choice([1_000, 30_000])
    if actor.chance(0.3):
        policy["retention_ms"] = dice.choice([60_000, 600_000])
    return policy


def random_submission(actor: Actor, **options: Any) -> Submission:
    """A submission with random options, limits and policy."""
    dice = actor.dice
    drawn: dict[str, Any] = {"lane": dice.choice(LANES), "priority": dice.randint(0, 2)}
    if actor.chance(0.8):
        drawn["policy"] = random_policy(actor)
    if actor.chance(0.2):
        drawn["delay"] = timedelta(seconds=dice.randint(0, 30))
    if actor.chance(0.2):
        drawn["deadline"] = timedelta(seconds=dice.randint(1, 120))
    if actor.chance(0.3):
        drawn["budgets"] = sorted(dice.sample(BUDGETS, dice.randint(1, 2)))
    if actor.chance(actor.stress.share_of_quotas):
        drawn["quotas"] = sorted(dice.sample(QUOTAS, dice.randint(1, 2)))
    return submission(**(drawn | options))


async def submit(actor: Actor, **options: Any) -> None:
    key = f"key-{actor.dice.randint(0, 30)}" if actor.chance(0.3) else None
    options |= {"key": key, "policy": {"dedup_window_ms": 5_000}} if key else {}
    created = await actor.call(executions.submit, random_submission(actor, **options))
    if created is not None:
        actor.world.executions.append(created.execution_id)


async def submit_in_a_transaction(actor: Actor) -> None:
    """Several submissions, one of them with a key, in savepoints of a transaction that stays open a while.

    Only of routes that exist, and one key: as with any rows, two transactions that create them in different orders
    can deadlock.
    """
    async with actor.open_transaction():
        await submit(actor, **UNLIMITED)
        for _ in range(actor.dice.randint(0, 3)):
            async with actor.open_transaction():
                created = await actor.call(executions.submit, random_submission(actor, **UNLIMITED))
                if created is not None:
                    actor.world.executions.append(created.execution_id)


async def submit_many(actor: Actor) -> None:
    """Many submissions in one call, with keys in any order; other calls use the same keys."""
    keys = [f"key-{number}" for number in actor.dice.sample(range(30), actor.dice.randint(2, 8))]
    policy = {"dedup_window_ms": 5_000}
    asked = [random_submission(actor, key=actor.dice.choice([key, None]), policy=policy) for key in keys]
    created = await actor.call_many(executions.submit, executions.submit_many, asked)
    actor.world.executions += [each.execution_id for each in created]


async def claim(actor: Actor) -> None:
    taken = await actor.call(
        claims.claim,
        actor.worker,
        instance=actor.instance,
        lanes=actor.dice.sample(LANES, actor.dice.randint(1, 3)),
        take=actor.dice.randint(1, 6),
        lease=timedelta(seconds=actor.dice.choice([5, 30, 120])),
    )
    actor.world.claims += taken or ()


async def repeat_a_claim(actor: Actor) -> None:
    """Claim, and claim again as if the reply were lost: what is left of the same leases, or new ones if none is."""
    who: dict[str, Any] = {"instance": actor.instance, "lanes": LANES, "take": 3, "request": uuid4()}
    first = await claims.claim(actor.conn, actor.worker, **who)
    again = await claims.claim(actor.conn, actor.worker, **who, repeated=True)
    actor.world.claims += again
    kept = {(one.execution_id, one.fence.epoch) for one in again}
    leased = {(one.execution_id, one.fence.epoch) for one in first}
    assert kept <= leased or kept.isdisjoint(leased), f"{first} became {again}"


async def use_grant(actor: Actor) -> None:
    """Get a grant, or use one that any worker got before, maybe too late."""
    if actor.world.grants and actor.chance(0.5):
        grant, worker, instance = actor.world.grants.pop(actor.dice.randrange(len(actor.world.grants)))
        taken = await actor.call(claims.claim_granted, grant.grant_key, worker, instance=instance)
        actor.world.claims += [taken] if taken is not None else []
        return
    who = {"instance": actor.instance, "lanes": LANES, "take": actor.dice.randint(1, 3)}
    issued = await actor.call(claims.issue_grant, actor.worker, ttl=timedelta(seconds=10), **who)
    actor.world.grants += [(grant, actor.worker, actor.instance) for grant in issued or ()]


def some_claim(actor: Actor) -> Claim | None:
    """A claim that any worker got: with luck it is its own and valid, else late or already used."""
    known = actor.world.claims
    if not known:
        return None
    return known[-1 - actor.dice.randrange(min(len(known), 30))] if actor.chance(0.5) else known.pop()


async def complete(actor: Actor) -> None:
    if (one := some_claim(actor)) is not None:
        await actor.call(attempts.complete, one.fence, b"1")


async def complete_in_a_transaction(actor: Actor) -> None:
    """Complete one execution and submit another, all or nothing."""
    if (one := some_claim(actor)) is not None:
        async with actor.open_transaction():
            await actor.call(attempts.complete, one.fence, b"1")
            await actor.call(executions.submit, random_submission(actor, **UNLIMITED))


async def fail(actor: Actor) -> None:
    if (one := some_claim(actor)) is not None:
        kind = actor.dice.choice([FailureClass.TRANSIENT, FailureClass.PERMANENT])
        await actor.call(attempts.fail, one.fence, "it broke", class_=kind)


async def delay(actor: Actor) -> None:
    if (one := some_claim(actor)) is not None:
        until = actor.dice.choice([None, timedelta(seconds=5)])
        await actor.call(attempts.delay, one.fence, until)


async def report_many(actor: Actor) -> None:
    """Report the ends of many runs in one call, as a worker does that merges them, in any order."""
    fences, wait = [one.fence for one in actor.some_of(actor.world.claims)], actor.chance(0.5)
    match actor.dice.choice(["complete", "complete", "fail", "delay"]):
        case "complete":
            done = [Completion(fence=fence) for fence in fences]
            await actor.call_many(attempts.complete, attempts.complete_many, done, wait=wait)
        case "fail":
            broken = [FailureReport(fence=fence, reason="it broke") for fence in fences]
            await actor.call_many(attempts.fail, attempts.fail_many, broken, wait=wait)
        case "delay":
            later = [Delay(fence=fence, until=timedelta(seconds=3)) for fence in fences]
            await actor.call_many(attempts.delay, attempts.delay_many, later, wait=wait)


async def save_steps(actor: Actor) -> None:
    """Save a step in a transaction of the handler, which stays open a while, or many steps in one call."""
    made = [Step(fence=one.fence, name=f"step {actor.dice.randint(0, 9)}", occurrence=1)
            for one in actor.some_of(actor.world.claims)]  # fmt: skip
    if made and actor.chance(0.3):
        async with actor.open_transaction():
            await actor.call(steps.save_step, made[0])
    else:
        await actor.call_many(steps.save_step, steps.save_step_many, made, wait=actor.chance(0.5))


async def fire(actor: Actor) -> None:
    """Fire a schedule, pause it or resume it."""
    act: Any = actor.dice.choice([schedules.fire_schedule, schedules.pause_schedule, schedules.resume_schedule])
    await actor.call(act, actor.dice.choice(["allow", "skip", "replace"]), by="ops")


async def renew(actor: Actor) -> None:
    fences = [one.fence for one in actor.some_of(actor.world.claims)]
    await actor.call_many(claims.renew, claims.renew_many, fences)


ACTS_OF_OPERATORS: list[Callable[..., Awaitable[Any]]] = [
    executions.cancel,
    executions.replay,
    executions.replay,
    holds.hold,
    holds.unhold,
    claims.revoke,
    executions.change_priority,
]


async def operate(actor: Actor) -> None:
    """Any act of an operator on one execution."""
    target = actor.one_of(actor.world.executions)
    if target is None:
        return
    act = actor.dice.choice(ACTS_OF_OPERATORS)
    more: tuple[Any, ...] = (actor.dice.randint(0, 3),) if act is executions.change_priority else ()
    if actor.chance(0.2):
        async with actor.open_transaction():
            await actor.call(act, target, *more, by="ops")
    else:
        await actor.call(act, target, *more, by="ops")


async def operate_a_lane(actor: Actor) -> None:
    act = actor.dice.choice([lanes.pause_lane, lanes.drain_lane, *[lanes.resume_lane] * 4])
    await actor.call(act, actor.dice.choice(LANES), by="ops")


async def register(actor: Actor) -> None:
    """Register, with the lock that ends with the session, or be declared dead."""
    if actor.chance(0.8):
        await workers.hold_lock(actor.conn, actor.instance)
        await actor.call(workers.register_worker, actor.worker, instance=actor.instance, lanes=LANES, holds_lock=True)
    else:
        await actor.call(workers.mark_dead, actor.instance, by="ops")


async def sweep(actor: Actor) -> None:
    one = SWEEPS[actor.dice.choice(list(SWEEPS))]
    await one.run(actor.conn, limit=min(actor.dice.choice([1, 10, 500]), one.limit), passing=0)


async def let_time_pass(actor: Actor) -> None:
    await move_clock(actor.conn, timedelta(seconds=actor.dice.choice([1, 1, 5, 20, 60])))


async def kill(actor: Actor) -> None:
    """End the session of another actor, whatever it does at the moment."""
    victim = actor.dice.choice(actor.stress.actors)
    if victim is not actor and not victim.conn.is_closed():
        await actor.conn.execute("select pg_terminate_backend($1)", victim.conn.get_server_pid())


async def inspect(actor: Actor) -> None:
    await invariants.hold(actor.conn, actor.dice.choice(invariants.STATE))


async def read_log(actor: Actor) -> None:
    if not actor.world.reading.locked():
        await actor.stress.read_log(actor)


ACTS = {
    submit: 60,
    submit_many: 15,
    submit_in_a_transaction: 8,
    claim: 80,
    repeat_a_claim: 6,
    use_grant: 12,
    complete: 40,
    complete_in_a_transaction: 5,
    report_many: 15,
    fail: 20,
    delay: 8,
    renew: 12,
    save_steps: 12,
    fire: 4,
    operate: 50,
    operate_a_lane: 3,
    register: 4,
    sweep: 120,
    let_time_pass: 6,
    kill: 1,
    inspect: 8,
    read_log: 16,
}


async def prepare(actor: Actor) -> None:
    """Lanes, each with its first execution, and schedules, which a sweep fires."""
    await executions.submit_many(actor.conn, [submission(lane=lane) for lane in LANES])
    for overlap in ("allow", "skip", "replace"):
        timing = Timing(every=timedelta(seconds=15), overlap=overlap)
        await schedules.create_schedule(actor.conn, overlap, submission(lane="red"), timing)
