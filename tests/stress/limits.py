"""Acts on budgets and quotas: spend, reserve, settle, release, reset, and change the limits."""

from datetime import timedelta

from flowfabric.engine import budgets, quotas
from flowfabric.model import UsageReport
from tests.stress.harness import Actor
from tests.stress.work import BUDGETS, some_claim

LEDGERS = [name for name in BUDGETS if name != "spent"]


async def prepare(actor: Actor) -> None:
    """Budgets and quotas. Only limits named `…sinking` are lowered, and only `spent` is used without a claim."""
    hard = {"tokens": 200, "cents": 1_000}
    for name in BUDGETS:
        action = next((word for word in ("fail", "suspend") if name.startswith(word)), "refuse")
        await budgets.create_budget(
            actor.conn, name, hard_limits=hard, soft_limits={"tokens": 100}, on_hard_limit=action,
            reset_interval=timedelta(minutes=1),
        )  # fmt: skip
    await quotas.create_quota(actor.conn, "slots", max_concurrent=5)
    await quotas.create_quota(actor.conn, "window", max_requests_per_window=20, window_seconds=10)
    await quotas.create_quota(actor.conn, "sinking", max_requests_per_window=50, window_seconds=10, max_concurrent=8)


def random_amounts(actor: Actor) -> dict[str, int]:
    return {"tokens": actor.dice.randint(0, 30)} | ({"cents": actor.dice.randint(1, 50)} if actor.chance(0.3) else {})


async def report_usage(actor: Actor) -> None:
    """Report under a claim, or without one, which only the budget without a ledger may see."""
    one = some_claim(actor)
    name = actor.dice.choice(LEDGERS) if one else "spent"
    await actor.call(
        budgets.report_usage,
        UsageReport(
            budget=name,
            amounts=random_amounts(actor),
            fence=None if one is None else one.fence,
            dedup_key=f"u-{actor.dice.randint(0, 500)}" if actor.chance(0.3) else None,
        ),
    )


async def report_many(actor: Actor) -> None:
    """Many reports in one call, on any of the budgets, by executions that may be members of one flow."""
    reports = [
        UsageReport(budget=actor.dice.choice(LEDGERS), amounts=random_amounts(actor), fence=one.fence)
        for one in actor.some_of(actor.world.claims)
    ]
    await actor.call_many(budgets.report_usage, budgets.report_usage_many, reports)


async def reserve(actor: Actor) -> None:
    one = some_claim(actor) if actor.chance(0.8) else None
    name = actor.dice.choice(LEDGERS) if one else "spent"
    ttl = timedelta(seconds=actor.dice.choice([5, 60, 600]))
    made = await actor.call(budgets.reserve, name, random_amounts(actor), fence=one and one.fence, ttl=ttl)
    if made is not None and made.reservation_id is not None:
        actor.world.reservations.append((made.reservation_id, one))


async def end_reservation(actor: Actor) -> None:
    """Settle or release a reservation, maybe one that has ended."""
    if (found := actor.one_of(actor.world.reservations)) is None:
        return
    reservation_id, one = found
    if actor.chance(0.7):
        await actor.call(budgets.settle, reservation_id, random_amounts(actor), fence=one and one.fence)
    else:
        await actor.call(budgets.release, reservation_id, fence=one and one.fence)


async def spend_in_a_transaction(actor: Actor) -> None:
    """A report in a transaction that stays open a while, as a handler that joins its own."""
    if (one := some_claim(actor)) is not None:
        async with actor.open_transaction():
            report = UsageReport(budget="ledger", amounts=random_amounts(actor), fence=one.fence)
            await actor.call(budgets.report_usage, report)


async def change_budget(actor: Actor) -> None:
    tokens = actor.dice.choice([50, 200, 400])
    await actor.call(budgets.change_budget, "ledger-sinking", by="ops", hard_limits={"tokens": tokens}, soft_limits={})


async def operate_a_budget(actor: Actor) -> None:
    """Reset a budget, or undo what one execution has spent."""
    name = actor.dice.choice(BUDGETS)
    if actor.chance(0.5):
        await actor.call(budgets.reset_budget, name, by="ops")
    elif (target := actor.one_of(actor.world.executions)) is not None:
        await actor.call(budgets.release_usage, name, target, by="ops")


async def change_quota(actor: Actor) -> None:
    await actor.call(
        quotas.change_quota, "sinking", by="ops",
        max_concurrent=actor.dice.choice([2, 8, 20]), max_requests_per_window=actor.dice.choice([5, 50, 500]),
    )  # fmt: skip


BUDGET_ACTS = {
    report_usage: 12,
    report_many: 6,
    reserve: 8,
    end_reservation: 8,
    spend_in_a_transaction: 3,
    change_budget: 1,
    operate_a_budget: 1,
}
QUOTA_ACTS = {change_quota: 2}
