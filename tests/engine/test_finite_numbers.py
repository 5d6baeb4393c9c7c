"""Every number that an operation takes is finite: NaN and infinity are refused, and never mean "no limit"."""

import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, get_type_hints
from uuid import uuid4

import pytest
from msgspec.structs import replace

from flowfabric import App, engine
from flowfabric.engine import attempts, budgets, children, claims, executions, flows, schedules, steps, waits
from flowfabric.errors import FlowFabricError, InvalidBudget
from flowfabric.ids import mint_execution_id, mint_flow_id
from flowfabric.model import (
    ChildToSubmit,
    Completion,
    Delay,
    EdgePolicy,
    Fence,
    Member,
    Slots,
    Step,
    Submission,
    Suspension,
    Timing,
    UsageReport,
    Wish,
)
from flowfabric.postgres.driver import Connection
from tests.given import OPTIONS, Given, submission

COUNT = {"kind": "count", "of": "distinct_signals", "waitpoints": ["w"]}
ANY = {"kind": "single", "waitpoint": "w"}
NOT_FINITE = [math.nan, math.inf, -math.inf]
# What comes back is no parameter, and how many partitions there are is decided once, by the configuration.
SETTINGS = ("return", "partitions")
REFUSED = (FlowFabricError, TypeError, ValueError, OverflowError)
Op = Callable[[Connection, Fence, Any], Awaitable[object]]


def samples(conn: Connection, fence: Fence) -> dict[str, Any]:
    """A value for every parameter of an operation that has no default."""
    asked, execution_id = submission(task="other"), mint_execution_id()
    return {
        "conn": conn,
        "fence": fence,
        "execution_id": fence.execution_id,
        "flow_id": mint_flow_id(),
        "budget": "team-a",
        "quota": "calls",
        "reservation_id": uuid4(),
        "upstream": execution_id,
        "downstream": execution_id,
        "execution": asked,
        "submission": asked,
        "asked": [asked],
        "children.submit_children.asked": [
            ChildToSubmit(fence=fence, name="c", occurrence=1, execution_id=execution_id, submission=asked)
        ],
        "members": [Member(name="a", submission=asked)],
        "timing": Timing(cron="0 0 * * *"),
        "lanes": ["default"],
        "completions": [Completion(fence=fence)],
        "step": Step(fence=fence, name="s", occurrence=1),
        "slots": Slots(worker="u", instance="u-1", lanes=["default"]),
        "steps": [Step(fence=fence, name="s", occurrence=1)],
    }


def numeric() -> Iterator[tuple[str, str, bool]]:
    """Each operation of the engine with each of its parameters that is a number, a list or a mapping of numbers."""
    for concept, module in vars(engine).items():
        for name in getattr(module, "__all__", vars(module)) if isinstance(module, ModuleType) else ():
            operation = getattr(module, name)
            if inspect.iscoroutinefunction(operation) and operation.__module__.startswith(module.__name__):
                for parameter, hint in get_type_hints(operation).items():
                    is_number = hint is int or "int]" in str(hint) or "int |" in str(hint)
                    if is_number and parameter not in SETTINGS:
                        yield f"{concept}.{name}", parameter, "Mapping" in str(hint)


@pytest.mark.parametrize(("operation", "parameter", "is_mapping"), list(numeric()))
async def test_no_operation_takes_a_number_that_is_not_finite(
    given: Given, operation: str, parameter: str, is_mapping: bool
) -> None:
    claim = await given.claimed()
    await budgets.create_budget(given.conn, "team-a", hard_limits={"tokens": 10})
    concept, name = operation.split(".")
    function = getattr(getattr(engine, concept), name)
    known = samples(given.conn, claim.fence)
    required = {
        each: known.get(f"{operation}.{each}", known.get(each, "x"))
        for each, found in inspect.signature(function).parameters.items()
        if found.default is inspect.Parameter.empty
    }

    for number in NOT_FINITE:
        value = {"tokens": number} if is_mapping else number
        async with given.nothing_changes():
            with pytest.raises(REFUSED):
                await function(**{**required, parameter: value})


FIELDS: Mapping[str, Op] = {
    "Submission.priority": lambda conn, _, n: executions.submit(conn, submission(priority=n)),
    "Options.policy": lambda conn, _, n: executions.submit(conn, submission(policy={"retry": {"max_retries": n}})),
    "Fence.epoch": lambda conn, fence, n: attempts.complete(conn, replace(fence, epoch=n)),
    "Fence.attempt": lambda conn, fence, n: attempts.complete(conn, replace(fence, attempt=n)),
    "Slots.free": lambda conn, _, n: claims.submit_and_claim(
        conn, [submission()], Slots(worker="u", instance="u-1", lanes=["default"], free=n)
    ),
    "Step.occurrence": lambda conn, fence, n: steps.save_step(conn, Step(fence=fence, name="s", occurrence=n)),
    "UsageReport.amounts": lambda conn, fence, n: budgets.report_usage(
        conn, UsageReport(budget="team-a", amounts={"tokens": n}, fence=fence)
    ),
    "UsageReport.step": lambda conn, fence, n: budgets.report_usage(
        conn, UsageReport(budget="team-a", amounts={"tokens": 1}, fence=fence, step=("s", n))
    ),
    "EdgePolicy.k": lambda conn, _, n: flows.set_edge_group(
        conn, mint_flow_id(), mint_execution_id(), EdgePolicy(kind="quorum", k=n)
    ),
    "Wish.occurrence": lambda conn, fence, n: waits.suspend(conn, fence, [wish(occurrence=n)]),
    "Wish.choice": lambda conn, fence, n: waits.suspend(conn, fence, [wish(choice=n), wish(occurrence=2)]),
    "Suspension.condition": lambda conn, fence, n: waits.suspend(
        conn, fence, Suspension(condition={**COUNT, "n": n}, waitpoints=["w"])
    ),
    "Schedule.policy": lambda conn, _, n: schedules.create_schedule(
        conn, "s", scheduled({"retry": {"max_retries": n}}), Timing(cron="0 0 * * *")
    ),
}


def scheduled(policy: dict[str, Any]) -> Submission:
    return Submission(options=replace(OPTIONS, policy=policy))


def wish(occurrence: Any = 1, choice: Any = None) -> Wish:
    return Wish(name="w", occurrence=occurrence, what=Suspension(condition=ANY, waitpoints=["w"]), choice=choice)


@pytest.mark.parametrize("field", FIELDS)
async def test_no_field_of_a_request_takes_a_number_that_is_not_finite(given: Given, field: str) -> None:
    claim = await given.claimed()
    await budgets.create_budget(given.conn, "team-a", hard_limits={"tokens": 10})

    for number in NOT_FINITE:
        async with given.nothing_changes():
            with pytest.raises(REFUSED):
                await FIELDS[field](given.conn, claim.fence, number)


async def test_requests_in_batches_refuse_numbers_that_are_not_finite(given: Given) -> None:
    claim = await given.claimed()
    for number in NOT_FINITE:
        odd: Any = number
        child = ChildToSubmit(
            fence=claim.fence, name="c", occurrence=odd, execution_id=mint_execution_id(), submission=submission()
        )
        delay = Delay(fence=claim.fence, name="d", occurrence=odd)
        async with given.nothing_changes():
            answers: list[Any] = await children.submit_children(given.conn, [child])
            answers += await attempts.delay_many(given.conn, [delay])
            assert [isinstance(answer, FlowFabricError) for answer in answers] == [True, True]


@pytest.mark.parametrize("number", NOT_FINITE)
async def test_a_declared_budget_without_a_finite_limit_is_refused(database_url: str, number: Any) -> None:
    with pytest.raises(InvalidBudget):
        async with App(url=database_url, budgets={"team-a": {"hard_limits": {"tokens": number}}}):
            pass


@pytest.mark.parametrize("limits", ['{"tokens": null}', '{"tokens": "NaN"}', '{"tokens": "Infinity"}'])
async def test_sql_refuses_a_limit_that_is_no_number(given: Given, limits: str) -> None:
    """Other clients call the functions themselves; a driver may write NaN as null."""
    await budgets.create_budget(given.conn, "team-a", hard_limits={"tokens": 10})
    [found] = await given.rows("select id from flowfabric.budgets")

    for statement in (
        f"select flowfabric.create_budget(0, gen_random_uuid(), 'default', 'b', hard_limits => '{limits}')",
        f"""select flowfabric.change_budget('{found["id"]}', '{{"hard_limits": {limits}}}', 'ops')""",
    ):
        async with given.nothing_changes():
            with pytest.raises(Exception, match="invalid_budget"):
                await given.rows(statement)
