"""Leases: renew, expire and revoke them, and make their executions claimable again."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from flowfabric import calls
from flowfabric.errors import FlowFabricError, InvalidBody
from flowfabric.ids import ExecutionId, check_text, kept_text
from flowfabric.model import Begin, Begun, Fence, Renewed, ReportedStep, Revoked, Swept
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

MOST_RUNNING = 20


async def renew(conn: Connection, fence: Fence, *, lease: timedelta = timedelta(seconds=30)) -> Renewed:
    """Extend a lease; a renewal never shortens it.

    Never waits: if another transaction has locked the execution, the answer is `locked` with the expiry as it is.
    Raises `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`, `InvalidLease`.
    """
    return calls.only(await renew_many(conn, [fence], lease=lease))


async def renew_many(
    conn: Connection,
    fences: Sequence[Fence],
    *,
    lease: timedelta = timedelta(seconds=30),
    running: Mapping[UUID, Sequence[ReportedStep]] | None = None,
) -> list[Renewed | FlowFabricError]:
    """Extend all leases of a process in one call; answers in the order of the fences.

    Never waits: executions that other transactions have locked are answered with `locked`; ask again for those alone.
    `running` are the steps that run under each lease, by its id; `describe` and `list_steps` show the 20 that run
    longest. Without it, they show what was reported before. Raises `InvalidLease`.
    """

    def act(fence: Fence) -> calls.Act:
        if running is None:
            return calls.Act(fence)
        steps = sorted(running.get(fence.lease_id, ()), key=lambda step: step.elapsed, reverse=True)[:MOST_RUNNING]
        return calls.Act(fence, {"running": calls.json_text(list(map(_reported, steps)), "running") if steps else None})

    return await calls.each_fenced(conn, "renew", fences, act, Renewed, lease_ms=calls.span(lease, "lease"))


def _reported(step: ReportedStep) -> dict[str, object]:
    return {
        "name": check_text(step.name, "step name"),
        "occurrence": _count(step.occurrence, "occurrence"),
        "number": _count(step.number, "number"),
        "elapsed_ms": calls.span(step.elapsed, "duration of a step"),
    }


def _count(given: int, field: str) -> int:
    if not 1 <= calls.expect(int, given, field) < 2**31:
        raise InvalidBody(f"{field} {given} of a step is invalid; use a number from 1", field=field)
    return given


async def mark_begun_many(
    conn: Connection, begins: Sequence[Begin], *, wait: bool = True
) -> list[Begun | FlowFabricError]:
    """Record that these runs begin; if their leases expire, that counts as a reclaim. Safe to repeat.

    Call this before the handlers of claims with `must_mark`, and with a `version` before the first run of a task that
    has versions: the execution keeps this version, and only instances that have registered it can claim the execution
    again. If it has a version already, it keeps that one. Without `wait`, executions that other transactions have
    locked are refused with `RowLocked`. Per item `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`, `InvalidBody`.
    """
    return await calls.each_fenced(conn, "mark_begun", begins, _begin, Begun, wait=wait)


def _begin(begin: Begin) -> calls.Act:
    return calls.Act(begin.fence, {"versions": calls.version(begin.version)})


async def revoke(
    conn: Connection,
    execution_id: ExecutionId,
    *,
    by: str,
    reason: str | None = None,
    expected_lease_id: UUID | None = None,
) -> Revoked:
    """Take a lease away from its worker; the execution is claimable immediately, and no reclaim is counted.

    Safe to repeat: answers `noop` and its cause. With `expected_lease_id` only that lease is revoked.
    Raises `ExecutionNotFound`, `InvalidBody`.
    """
    answer = await call.row(
        conn,
        "revoke",
        **calls.about(execution_id),
        by=check_text(by, "by"),
        reason=reason and kept_text(reason),
        expected=expected_lease_id,
    )
    return msgspec.convert(dict(answer), Revoked)


async def expire_leases(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """End expired leases: executions become claimable again, or fail if they have reached `max_reclaim_count`."""
    return await calls.sweep(conn, "expire_leases", limit, passing)
