"""Acts on flows: build them step by step or at once, add edges, cancel them."""

from typing import Any

from flowfabric import ids
from flowfabric.engine import executions, flows
from flowfabric.model import CancelPolicy, EdgePolicy, Link, Member
from tests.stress.harness import Actor
from tests.stress.work import claim, random_submission


def random_group(actor: Actor) -> EdgePolicy:
    """A policy of an edge group, of any kind."""
    then: Any = actor.dice.choice([None, "cancel_remaining", "let_run"])
    match actor.dice.choice(["all_of", "any_of", "any_of", "quorum"]):
        case "quorum":
            return EdgePolicy("quorum", actor.dice.randint(1, 3), then)
        case "any_of":
            return EdgePolicy("any_of", None, then)
        case _:
            return EdgePolicy()


async def submit_flow(actor: Actor) -> None:
    """A random graph in one call; each member depends on some of the members before it."""
    names = [f"m{number}" for number in range(actor.dice.randint(2, 9))]
    links = [Link(upstream=up, downstream=down) for at, down in enumerate(names) for up in names[:at]]
    chosen = [link for link in links if actor.chance(0.4)]
    targets = {link.downstream: random_group(actor) for link in chosen if actor.chance(0.7)}
    groups = {name: policy for name, policy in targets.items()
              if (policy.k or 0) <= sum(link.downstream == name for link in chosen)}  # fmt: skip
    members = [Member(name=name, submission=random_submission(actor)) for name in names]
    key = f"flow-{actor.dice.randint(0, 10)}" if actor.chance(0.2) else None
    made = await actor.call(flows.submit_flow, "random", members, chosen, groups, key=key)
    if made is not None:
        actor.world.flows.append(made.flow_id)
        actor.world.members[made.flow_id] = list(made.executions.values())
        actor.world.executions += made.executions.values()


async def create_flow(actor: Actor) -> None:
    made = await actor.call(flows.create_flow, "growing")
    if made is not None:
        actor.world.flows.append(made.flow_id)
        actor.world.members[made.flow_id] = []


async def add_member(actor: Actor) -> None:
    if (flow_id := actor.one_of(actor.world.flows)) is None:
        return
    wanted = random_submission(actor, flow=flow_id)
    if actor.chance(0.3):
        made: Any = await actor.call(executions.submit, wanted)
    elif actor.chance(0.4):  # an execution that may run or have ended before it joins
        alone = random_submission(actor, execution_id=ids.mint_execution_id(beside=flow_id))
        made = await actor.call(executions.submit, alone)
        await claim(actor)
        made = made and await actor.call(flows.add_execution, flow_id, made.execution_id)
    else:
        made = await actor.call(flows.add_execution, flow_id, wanted)
    if made is not None:
        actor.world.members[flow_id].append(made.execution_id)
        actor.world.executions.append(made.execution_id)


async def add_edge(actor: Actor) -> None:
    """Link two members, older to newer as a rule, and sometimes set the group first."""
    flow_id = actor.one_of(actor.world.flows)
    members = actor.world.members[flow_id] if flow_id else []
    if flow_id is None or len(members) < 2:
        return
    up, down = sorted(actor.dice.sample(range(len(members)), 2), reverse=actor.chance(0.1))
    if actor.chance(0.4):
        await actor.call(flows.set_edge_group, flow_id, members[down], random_group(actor))
    await actor.call(flows.add_edge, flow_id, members[up], members[down])


async def cancel_flow(actor: Actor) -> None:
    if (flow_id := actor.one_of(actor.world.flows)) is not None:
        await actor.call(flows.cancel_flow, flow_id, by="ops", policy=actor.dice.choice(list(CancelPolicy)))


async def end_a_member(actor: Actor) -> None:
    """Cancel or replay a member, in a transaction that stays open a while."""
    flow_id = actor.one_of(actor.world.flows)
    if flow_id is not None and (member := actor.one_of(actor.world.members[flow_id])) is not None:
        async with actor.open_transaction():
            act: Any = actor.dice.choice([executions.cancel, executions.replay])
            await actor.call(act, member, by="ops")


ACTS = {submit_flow: 5, create_flow: 1, add_member: 5, add_edge: 8, cancel_flow: 1, end_a_member: 5}
