"""Budgets and operations on them, for one-line setups."""

from typing import Any

from flowfabric.engine import budgets
from flowfabric.model import Budget, Fence, Settled, Usage, UsageReport
from flowfabric.postgres.driver import Connection

TEAM = "team-a"


async def make(conn: Connection, name: str = TEAM, **options: Any) -> None:
    """Create a budget, of 100 tokens by default."""
    await budgets.create_budget(conn, name, **{"hard_limits": {"tokens": 100}, **options})


def report_of(amounts: dict[str, Any] | int, budget: str = TEAM, **options: Any) -> UsageReport:
    """A report; a plain number means tokens."""
    return UsageReport(budget=budget, amounts={"tokens": amounts} if isinstance(amounts, int) else amounts, **options)


async def spend(conn: Connection, amounts: dict[str, Any] | int, budget: str = TEAM, **options: Any) -> Usage:
    """Report usage; a plain number means tokens."""
    return await budgets.report_usage(conn, report_of(amounts, budget, **options))


async def read(conn: Connection, budget: str = TEAM) -> Budget:
    return await budgets.describe_budget(conn, budget)


async def figures(conn: Connection, budget: str = TEAM) -> tuple[int, int, int]:
    """The tokens that are used, reserved and overrun."""
    found = await read(conn, budget)
    return found.used.get("tokens", 0), found.reserved.get("tokens", 0), found.overrun.get("tokens", 0)


async def settled(conn: Connection, estimate: int, actual: int, fence: Fence | None = None) -> Settled:
    """Reserve tokens and settle the reservation."""
    held = await budgets.reserve(conn, TEAM, {"tokens": estimate}, fence=fence)
    assert held.reservation_id is not None
    return await budgets.settle(conn, held.reservation_id, {"tokens": actual}, fence=fence)
