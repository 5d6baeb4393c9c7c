"""Acts on waits: suspend in any way, signal, approve, resume, and wait for children."""

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec

from flowfabric.engine import children, waits
from flowfabric.handler.children import child_id
from flowfabric.ids import ExecutionId
from flowfabric.model import ChildToSubmit, Claim, SignalToSend, Suspension, Wish
from flowfabric.testing import now
from tests.engine.waits.scene import ANY, APPROVE, OPERATOR_ONLY, approvals
from tests.stress.harness import Actor
from tests.stress.work import random_submission, some_claim

NAMES = ["approve", "reject", "other"]
TWO: dict[str, object] = {"kind": "count", "n": 2, "of": "distinct_signals", "waitpoints": ["w"]}
BOTH: dict[str, object] = {"kind": "all_of", "members": [ANY, {"kind": "single", "waitpoint": "v"}]}
CONDITIONS: list[Mapping[str, object]] = [ANY, ANY, APPROVE, TWO, BOTH, OPERATOR_ONLY]


def random_wish(actor: Actor) -> Suspension:
    """A wait of any kind, with or without a timeout."""
    dice = actor.dice
    condition = dice.choice([*CONDITIONS, approvals(1), approvals(2)])
    keys = ["w", "v"] if condition is BOTH else [] if condition is OPERATOR_ONLY else ["w"]
    about = dice.choice([b"one", b"two"]) if keys and actor.chance(0.3) else None
    return Suspension(
        condition=condition,
        waitpoints=keys,
        timeout=timedelta(seconds=dice.choice([5, 60])) if actor.chance(0.6) else None,
        timeout_behavior=dice.choice(["fail", "cancel", "expire", "auto_resume", "escalate"]),
        resume_delay=timedelta(seconds=3) if actor.chance(0.1) else None,
        idempotency_key=f"s-{dice.randint(0, 5)}" if actor.chance(0.1) else None,
        about=about,
        bind=about is not None and actor.chance(0.5),
    )


async def suspend(actor: Actor) -> None:
    if (one := some_claim(actor)) is None:
        return
    made = await actor.call(waits.suspend, one.fence, random_wish(actor))
    if made is not None:
        actor.world.tokens += [
            SignalToSend(execution_id=one.execution_id, waitpoint_id=point.id, token=point.token, name="approve")
            for point in made.waitpoints if point.token
        ]  # fmt: skip


async def suspend_for_several(actor: Actor) -> None:
    """Several waits at once, some of them alternatives: conditions, sleeps and children."""
    if (one := some_claim(actor)) is None:
        return
    moment = await now(actor.conn)
    made = [await submit_child(actor, one, number) for number in range(actor.dice.randint(0, 2))]
    whats: list[Any] = [child for child in made if child is not None]
    whats += [moment + timedelta(seconds=actor.dice.randint(1, 60))] * actor.dice.randint(0, 1)
    whats += [together(random_wish(actor), number) for number in range(actor.dice.randint(0, 2))]
    wishes = [
        Wish(name=f"wait {number}", occurrence=1, what=what, choice=actor.dice.choice([None, None, 1, 2]))
        for number, what in enumerate(whats)
    ]
    if wishes:
        await actor.call(waits.suspend, one.fence, wishes)
        await find_tokens(actor, one)


def together(wish: Suspension, number: int) -> Suspension:
    """The same wait on a waitpoint of its own, because two waits of one run share none."""
    key = f"t{number}"
    return Suspension(
        condition={"kind": "single", "waitpoint": key},
        waitpoints=[key],
        timeout=wish.timeout,
        timeout_behavior=wish.timeout_behavior,
        about=wish.about,
        bind=wish.bind,
    )


async def find_tokens(actor: Actor, one: Claim) -> None:
    """The tokens of waits that `suspend` began, which a handler would read from its waitpoints."""
    for key in ("t0", "t1"):
        for row in await actor.conn.fetch(
            "select * from flowfabric.open_waitpoint($1, $2, $3)",
            one.execution_id.partition,
            one.execution_id.uuid,
            key,
        ):
            actor.world.tokens.append(
                SignalToSend(
                    execution_id=one.execution_id, waitpoint_id=row["waitpoint_id"], token=row["token"], name="approve"
                )
            )


async def submit_child(actor: Actor, parent: Claim, number: int) -> ExecutionId | None:
    """Submit a child as a handler does, and return its id; `None` if the parent has lost its lease."""
    place = f"child {number}"
    execution_id = child_id(parent.execution_id, place, 1, 0)
    child = ChildToSubmit(
        fence=parent.fence,
        name=place,
        occurrence=1,
        execution_id=execution_id,
        submission=random_submission(actor, execution_id=execution_id),
        on_parent_end=actor.dice.choice(["cancel", "let_run"]),
    )
    [found] = await children.submit_children(actor.conn, [child])
    if isinstance(found, Exception) or found.outcome == "taken":
        return None
    actor.world.executions.append(execution_id)
    return execution_id


async def create_waitpoint(actor: Actor) -> None:
    if (one := some_claim(actor)) is None:
        return
    made = await actor.call(waits.create_waitpoint, one.fence, actor.dice.choice("wv"), expires_in=timedelta(minutes=1))
    if made is not None:
        actor.world.tokens.append(
            SignalToSend(
                execution_id=one.execution_id, waitpoint_id=made.waitpoint_id, token=made.token, name="approve"
            )
        )


def random_signal(actor: Actor, target: SignalToSend) -> SignalToSend:
    """A signal to a waitpoint that any execution had or has, sometimes with a key that was used before."""
    about = actor.dice.choice([None, b"one", b"two"])
    return msgspec.structs.replace(
        target,
        name=actor.dice.choice(NAMES),
        signal_id=uuid4(),
        source_identity=f"somebody {actor.dice.randint(0, 3)}",
        idempotency_key=f"i-{actor.dice.randint(0, 9)}" if actor.chance(0.2) else None,
        digest=about and hashlib.sha256(about).digest(),
    )


async def signal(actor: Actor) -> None:
    if (target := actor.one_of(actor.world.tokens)) is not None:
        done = await actor.call(waits.deliver_signal, random_signal(actor, target))
        actor.world.accepted += [(target.execution_id, done.signal_id)] if done is not None else []


async def signal_many(actor: Actor) -> None:
    targets = [random_signal(actor, target) for target in actor.some_of(actor.world.tokens)]
    await actor.call_many(waits.deliver_signal, waits.deliver_signals, targets)


async def approve(actor: Actor) -> None:
    if (target := actor.one_of(actor.world.tokens)) is None:
        return
    about = actor.dice.choice([None, b"one", b"two"])
    done = await actor.call(
        waits.deliver_approval,
        target.execution_id,
        actor.dice.choice(["w", str(target.waitpoint_id)]),
        actor.dice.choice(NAMES),
        by=f"person-{actor.dice.randint(0, 3)}",
        digest=about and hashlib.sha256(about).digest(),
    )
    if done is not None:
        actor.world.accepted.append((target.execution_id, done.signal_id))


async def resume(actor: Actor) -> None:
    if (target := actor.one_of(actor.world.tokens)) is not None:
        await actor.call(waits.resume, target.execution_id, by="ops")


ACTS = {suspend: 8, suspend_for_several: 6, create_waitpoint: 2, signal: 14, signal_many: 4, approve: 5, resume: 2}
