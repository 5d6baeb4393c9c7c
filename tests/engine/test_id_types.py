"""One rule for ids: every model holds an `ExecutionId` or a `FlowId`, and every operation takes exactly that."""

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, get_type_hints
from uuid import uuid4

import msgspec
import pytest
from msgspec.structs import replace

from flowfabric import calls, engine, model
from flowfabric.engine import attempts, budgets, children, claims, events, executions, flows, schedules, steps, waits
from flowfabric.errors import FlowFabricError, InvalidId
from flowfabric.ids import EntityId, ExecutionId, FlowId, mint_execution_id
from flowfabric.model import (
    ChildToSubmit,
    Completion,
    EdgePolicy,
    EventFilter,
    Fence,
    FoundChild,
    Link,
    Member,
    SignalToSend,
    Step,
    Submission,
    Suspension,
    Timing,
    UsageReport,
    Wish,
)
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission

EXECUTION = mint_execution_id()
# Ids that callers write, so that text is parsed; every other field of these names holds what operations take.
WRITTEN = {"Submission.execution_id", "Submission.flow"}
NAMES = ("execution_id", "flow_id", "last_execution_id", "ended", "upstream", "downstream", "executions")
# In a `Link` these are names of members, which have no ids yet.
LOCAL = {"Link.upstream", "Link.downstream"}


def operations() -> Iterator[tuple[str, Callable[..., Awaitable[object]]]]:
    for concept, module in vars(engine).items():
        for name in getattr(module, "__all__", vars(module)) if isinstance(module, ModuleType) else ():
            operation = getattr(module, name)
            if inspect.iscoroutinefunction(operation) and operation.__module__.startswith(module.__name__):
                yield f"{concept}.{name}", operation


def takers() -> list[tuple[str, str]]:
    """Each operation with each of its parameters that is an id, or a list of ids."""
    return [
        (name, parameter)
        for name, operation in operations()
        for parameter, hint in get_type_hints(operation).items()
        if parameter not in ("return", "minted") and _ids_in(hint) and str not in typing.get_args(hint)
    ]


def _ids_in(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, EntityId):
        return True
    return any(map(_ids_in, typing.get_args(hint)))


def samples(conn: Connection, fence: Fence) -> dict[str, Any]:
    """A value for every parameter of these operations that has no default and is not an id."""
    return {
        "conn": conn,
        "fence": fence,
        "budget": "team-a",
        "suspension_id": uuid4(),
        "policy": EdgePolicy(kind="any_of"),
        "priority": 1,
        "outcome": "failed",
    }


@pytest.mark.parametrize(("operation", "parameter"), takers())
async def test_the_text_of_an_id_is_refused_by_every_operation(given: Given, operation: str, parameter: str) -> None:
    claim = await given.claimed()
    concept, name = operation.split(".")
    function = getattr(getattr(engine, concept), name)
    known = samples(given.conn, claim.fence)
    hints = get_type_hints(function)
    required = {
        each: known.get(each, FlowId.of(uuid4()) if hints[each] is FlowId else EXECUTION)
        if each in known or _ids_in(hints[each])
        else "x"
        for each, found in inspect.signature(function).parameters.items()
        if found.default is inspect.Parameter.empty
    }
    text: Any = str(claim.execution_id)

    async with given.nothing_changes():
        with pytest.raises(InvalidId) as refused:
            await function(**{**required, parameter: [text] if "Sequence" in str(hints[parameter]) else text})
    assert refused.value.fields["cause"] == "invalid_type"
    assert text in refused.value.message


def _child(fence: Fence, execution_id: Any = EXECUTION) -> ChildToSubmit:
    return ChildToSubmit(fence=fence, name="c", occurrence=1, submission=submission(), execution_id=execution_id)


async def _submit_child(conn: Connection, child: ChildToSubmit) -> FoundChild:
    return calls.only(await children.submit_children(conn, [child]))


def _signal(text: Any) -> SignalToSend:
    return SignalToSend(execution_id=text, waitpoint_id=uuid4(), token="k:t", name="yes")


def _late(fence: Fence, text: Any) -> Fence:
    return replace(fence, execution_id=text)


Op = Callable[[Connection, Fence, Any], Awaitable[object]]
FIELDS: Mapping[str, Op] = {
    "Fence, complete": lambda conn, fence, text: attempts.complete(conn, _late(fence, text)),
    "Fence, renew": lambda conn, fence, text: claims.renew(conn, _late(fence, text)),
    "Fence, suspend": lambda conn, fence, text: waits.suspend(
        conn, _late(fence, text), Suspension(condition={"kind": "single", "waitpoint": "w"}, waitpoints=["w"])
    ),
    "Fence, report_usage": lambda conn, fence, text: budgets.report_usage(
        conn, UsageReport(budget="b", amounts={"tokens": 1}, fence=_late(fence, text))
    ),
    "Fence, reserve": lambda conn, fence, text: budgets.reserve(conn, "b", {"tokens": 1}, fence=_late(fence, text)),
    "Step.fence": lambda conn, fence, text: steps.save_step(
        conn, Step(fence=_late(fence, text), name="s", occurrence=1)
    ),
    "Wish.what": lambda conn, fence, text: waits.suspend(conn, fence, [Wish(name="w", occurrence=1, what=text)]),
    "SignalToSend.execution_id": lambda conn, _, text: waits.deliver_signal(conn, _signal(text)),
    "EventFilter.execution_id": lambda conn, _, text: events.read_events(
        conn, events.OLDEST, EventFilter(execution_id=text)
    ),
    "EventFilter.flow_id": lambda conn, _, text: events.read_events(conn, events.OLDEST, EventFilter(flow_id=text)),
    "timeline": lambda conn, _, text: events.read_events(conn, events.OLDEST, events.timeline(text)),
    "ChildToSubmit.execution_id": lambda conn, fence, text: _submit_child(conn, _child(fence, execution_id=text)),
    "ChildToSubmit.fence": lambda conn, fence, text: _submit_child(conn, _child(_late(fence, text))),
}


@pytest.mark.parametrize("field", FIELDS)
async def test_the_text_of_an_id_is_refused_in_every_request(given: Given, field: str) -> None:
    claim = await given.claimed()
    await budgets.create_budget(given.conn, "b", hard_limits={"tokens": 10})

    async with given.nothing_changes():
        with pytest.raises(InvalidId):
            await FIELDS[field](given.conn, claim.fence, str(claim.execution_id))


async def test_in_a_batch_only_the_item_with_the_text_of_an_id_is_refused(given: Given) -> None:
    claim = await given.claimed()
    wrong = Completion(fence=_late(claim.fence, str(claim.execution_id)))

    refused, done = await attempts.complete_many(given.conn, [wrong, Completion(fence=claim.fence)])
    assert isinstance(refused, InvalidId)
    assert not isinstance(done, FlowFabricError)


def test_every_id_in_a_model_has_the_type_that_operations_take() -> None:
    wrong = [
        f"{noun.__name__}.{field}: {hint}"
        for noun in vars(model).values()
        if inspect.isclass(noun) and issubclass(noun, msgspec.Struct)
        for field, hint in get_type_hints(noun).items()
        if field in NAMES and f"{noun.__name__}.{field}" not in WRITTEN | LOCAL and not _ids_in(hint)
    ]

    assert wrong == []


async def test_what_a_list_returns_can_be_passed_on(given: Given) -> None:
    """Each of these once gave text, which the next operation refused with an `AttributeError`."""
    conn = given.conn
    flow = await flows.submit_flow(
        conn,
        "pair",
        [Member(name=name, submission=submission()) for name in ("a", "b")],
        [Link(upstream="a", downstream="b")],
    )
    await schedules.create_schedule(conn, "nightly", Submission(options=submission().options), Timing(cron="0 0 * * *"))
    fired = await schedules.fire_schedule(conn, "nightly", by="ops")

    listed = [one.execution_id for one in (await executions.list_executions(conn)).items]
    described = await flows.describe_flow(conn, (await flows.list_flows(conn)).items[0].flow_id)
    [edge] = described.edges
    seen = [*listed, *(member.execution_id for member in described.members), edge.upstream, edge.downstream]
    for execution_id in [*seen, described.groups[0].downstream, fired.execution_id]:
        found = await executions.describe(conn, execution_id)
        assert found.execution_id == execution_id
    assert found.flow_id is None
    member = await executions.describe(conn, flow.executions["a"])
    assert member.flow_id is not None
    assert set((await flows.cancel_flow(conn, member.flow_id)).members) == set(flow.executions.values())


async def test_what_a_sweep_returns_can_be_passed_on(given: Given) -> None:
    claim = await given.claimed(policy={"max_reclaim_count": 0})
    await given.time_passes(hours=1)

    [ended] = (await claims.expire_leases(given.conn)).ended
    assert (await executions.get_result(given.conn, ended)).outcome == "failed"
    assert ended == claim.execution_id
    assert isinstance(ended, ExecutionId)
