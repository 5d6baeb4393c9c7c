"""Usage reports: count used amounts in budgets, many reports in one call, each counted in full or not at all."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from flowfabric import calls
from flowfabric.engine.budgets.amounts import amounts_text, budget_id, checked_step, not_found
from flowfabric.errors import BudgetNotFound, FlowFabricError
from flowfabric.ids import ExecutionId, check_text, expect_id
from flowfabric.model import Fence, Usage, UsageReport
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


class _Item(msgspec.Struct, frozen=True):
    """A report ready to send: checked for values that would make Postgres refuse the whole batch."""

    budget: UUID
    amounts: str
    fence: Fence | None
    dedup_key: str | None
    step: tuple[str, int] | None


async def report_usage(conn: Connection, report: UsageReport) -> Usage:
    """Count used amounts, in all dimensions of the report or in none.

    A breach is a return value, not an error. Safe to repeat with a `dedup_key` or a `step`. Raises `BudgetNotFound`,
    `InvalidUsage`, `InvalidBody`, `InvalidName`, `FenceRequired`, `LeaseLost`, `ExecutionNotActive`,
    `ExecutionNotFound`, `TooManySteps`.
    """
    return calls.only(await report_usage_many(conn, [report]))


async def report_usage_many(
    conn: Connection, reports: Sequence[UsageReport], *, wait: bool = True
) -> list[Usage | FlowFabricError]:
    """Count many reports, one after the other, and return one answer per report in order.

    Without `wait`, raises `RowLocked` if another transaction keeps a budget or an execution locked.
    """
    answers = await calls.each(
        reports, _prepare, lambda items: _send(conn, items, wait), lambda item: len(item.amounts)
    )
    return [
        not_found(report.budget, report.namespace) if isinstance(answer, BudgetNotFound) else answer
        for report, answer in zip(reports, answers, strict=True)
    ]


def _prepare(report: UsageReport) -> _Item:
    return _Item(
        budget=budget_id(report.budget, report.namespace),
        amounts=amounts_text(report.amounts),
        fence=_checked(report.fence),
        dedup_key=(
            calls.expect(str, report.dedup_key, "dedup_key") and check_text(report.dedup_key or "", "dedup_key")
        ),
        step=checked_step(report.step),
    )


def _checked(fence: Fence | None) -> Fence | None:
    if fence is not None:
        expect_id(ExecutionId, fence.execution_id, "execution id of the fence")
    return fence


async def _send(conn: Connection, items: Sequence[_Item], wait: bool) -> list[Usage | FlowFabricError]:
    answered = await call.rows(
        conn,
        "report_usage",
        budgets=[item.budget for item in items],
        amounts=[item.amounts for item in items],
        dedup_keys=[item.dedup_key for item in items],
        step_names=[item.step and item.step[0] for item in items],
        step_occurrences=[item.step and item.step[1] for item in items],
        **_fences([item.fence for item in items]),
        wait=wait,
    )
    return calls.read_answers(answered, Usage)


def _fences(fences: Sequence[Fence | None]) -> dict[str, object]:
    """The fences as columns, with null for reports without a fence."""
    return {
        "partitions": [fence and _known(fence.execution_id.partition, 31) for fence in fences],
        "ids": [fence and fence.execution_id.uuid for fence in fences],
        "lease_ids": [fence and fence.lease_id for fence in fences],
        "epochs": [fence and _known(fence.epoch, 63) for fence in fences],
        "attempts": [fence and _known(fence.attempt, 31) for fence in fences],
    }


def _known(number: int, bits: int) -> int:
    """A number that fits the column type; an out-of-range number becomes -1, which no lease has."""
    return number if 0 <= number < 1 << bits else -1
