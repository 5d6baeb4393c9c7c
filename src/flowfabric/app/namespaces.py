"""The namespaces of an app: the engine without a connection. Written by `make sync`; do not edit.

A method does what the operation does, on a connection of the app, and sends the notifications that it returns.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Unpack
from uuid import UUID

from flowfabric.app import acts
from flowfabric.app import schedules as app_schedules
from flowfabric.app.operations import Operations, to_execution_id, to_flow_id
from flowfabric.app.schedules import TimingOptions
from flowfabric.app.tasks import Task
from flowfabric.durations import read_duration, read_time
from flowfabric.engine import (
    attempts,
    budgets,
    claims,
    events,
    executions,
    flows,
    holds,
    lanes,
    quotas,
    schedules,
    signing_keys,
    steps,
    tasks,
    waits,
    workers,
)
from flowfabric.engine.events.read import EVERYTHING
from flowfabric.engine.signing_keys import DAY
from flowfabric.ids import (
    ExecutionId,
    FlowId,
)
from flowfabric.model import (
    AddedEdge,
    AddedExecution,
    Approval,
    Attempt,
    Budget,
    CancelledFlow,
    CancelPolicy,
    ChangedBudget,
    ChangedQuota,
    CreatedBudget,
    CreatedFlow,
    CreatedQuota,
    Delivered,
    Description,
    Drained,
    EdgePolicy,
    EventFilter,
    EventPage,
    ExecutionTree,
    Explanation,
    Fired,
    FlowDescription,
    FlowState,
    FlowSummary,
    HoldChange,
    Key,
    Lane,
    LaneChange,
    ListedTask,
    MarkedDead,
    Moved,
    Page,
    PriorityChange,
    PublicState,
    Quota,
    Released,
    Reserved,
    ResetBudget,
    Result,
    Revoked,
    Rotated,
    Schedule,
    ScheduleChange,
    Seeded,
    Settled,
    Spending,
    StepSummary,
    Submission,
    Summary,
    SuspendedExecution,
    TagChange,
    Unheld,
    Usage,
    Waitpoint,
    Worker,
    WorkerDescription,
)


class Approvals(Operations):
    """The decisions that executions wait for."""

    __slots__ = ()

    async def list(
        self,
        *,
        namespace: str | None = None,
        lane: str | None = None,
        tag: tuple[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Approval]:
        """List the approvals that executions wait for, the oldest first: an inbox. `tag` is a name and a value.

        Raises `InvalidCursor`, `InvalidLimit`.
        """
        return await self._read(
            lambda conn: waits.list_approvals(conn, namespace=namespace, lane=lane, tag=tag, cursor=cursor, limit=limit)
        )

    async def approve(
        self,
        execution_id: str | ExecutionId,
        waitpoint: str,
        *,
        by: str,
        subject: object = None,
        note: str | None = None,
    ) -> Delivered:
        """Approve, as a person whom you have authenticated (`by`); each person counts once.

        `subject` is what the person was shown. Raises `ApprovalDigestMismatch` if the handler asks about another
        subject, `ExecutionNotFound`, `WaitpointNotFound`, `TargetNotSignalable`, `WaitpointClosed`.
        """
        return await acts.approve(self._app, execution_id, waitpoint, by=by, subject=subject, note=note)

    async def reject(
        self,
        execution_id: str | ExecutionId,
        waitpoint: str,
        *,
        by: str,
        subject: object = None,
        note: str | None = None,
    ) -> Delivered:
        """Reject, as a person whom you have authenticated (`by`); one rejection is enough. Raises as `approve` does."""
        return await acts.reject(self._app, execution_id, waitpoint, by=by, subject=subject, note=note)


class Budgets(Operations):
    """Limits on what executions may spend, and what they have spent."""

    __slots__ = ()

    async def list(self, *, namespace: str = "default", cursor: str | None = None, limit: int = 50) -> Page[Budget]:
        """List the budgets of a namespace by name. Raises `InvalidLimit`."""
        return await self._read(
            lambda conn: budgets.list_budgets(conn, namespace=namespace, cursor=cursor, limit=limit)
        )

    async def describe(self, budget: str | UUID, *, namespace: str = "default") -> Budget:
        """Describe a budget, by name or id: its limits and its usage. Raises `BudgetNotFound`."""
        return await self._read(lambda conn: budgets.describe_budget(conn, budget, namespace=namespace))

    async def create(
        self,
        name: str,
        *,
        hard_limits: Mapping[str, int] | None = None,
        soft_limits: Mapping[str, int] | None = None,
        mode: str = "strict",
        on_hard_limit: str = "refuse",
        on_soft_limit: str = "warn",
        reset_interval: str | timedelta | None = None,
        scope_type: str | None = None,
        scope_id: str | None = None,
        namespace: str = "default",
        by: str | None = None,
    ) -> CreatedBudget:
        """Create a budget; safe to repeat with the same definition.

        A dimension without a limit is counted but not limited. Raises `InvalidName`, `InvalidNamespace`,
        `InvalidBudget`, `InvalidBody`, and `BudgetAlreadyExists` if a budget with this name has another definition.
        """
        return await self._change(
            lambda conn: budgets.create_budget(
                conn,
                name,
                hard_limits=hard_limits,
                soft_limits=soft_limits,
                mode=mode,
                on_hard_limit=on_hard_limit,
                on_soft_limit=on_soft_limit,
                reset_interval=None if reset_interval is None else read_duration(reset_interval),
                scope_type=scope_type,
                scope_id=scope_id,
                namespace=namespace,
                by=by,
                partitions=self._app.config.budget_partitions,
            )
        )

    async def change(
        self,
        budget: str | UUID,
        *,
        by: str,
        hard_limits: Mapping[str, int] | None = None,
        soft_limits: Mapping[str, int] | None = None,
        mode: str | None = None,
        on_hard_limit: str | None = None,
        on_soft_limit: str | None = None,
        reset_interval: str | timedelta | None = None,
        scope_type: str | None = None,
        scope_id: str | None = None,
        namespace: str = "default",
    ) -> ChangedBudget:
        """Change the definition of a budget; omitted fields keep their values. Safe to repeat.

        New limits replace all previous limits. A new interval counts from now, and an interval of zero ends the resets.
        A raised limit unblocks work immediately, a lowered limit blocks it. Raises `BudgetNotFound`, `InvalidBudget`,
        `InvalidBody`.
        """
        return await self._change(
            lambda conn: budgets.change_budget(
                conn,
                budget,
                by=by,
                hard_limits=hard_limits,
                soft_limits=soft_limits,
                mode=mode,
                on_hard_limit=on_hard_limit,
                on_soft_limit=on_soft_limit,
                reset_interval=None if reset_interval is None else read_duration(reset_interval),
                scope_type=scope_type,
                scope_id=scope_id,
                namespace=namespace,
            )
        )

    async def reset(self, budget: str | UUID, *, by: str, namespace: str = "default") -> ResetBudget:
        """Start a new period: the used amounts are cleared; counters and reservations are kept.

        The next automatic reset is a whole interval away. Raises `BudgetNotFound`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: budgets.reset_budget(conn, budget, by=by, namespace=namespace), repeat=False
        )

    async def report_usage(
        self,
        budget: str | UUID,
        amounts: Mapping[str, int],
        *,
        dedup_key: str | None = None,
        namespace: str = "default",
    ) -> Usage:
        """Count used amounts outside of any execution, in all dimensions or in none.

        A breach is a return value, not an error. Safe to repeat with a `dedup_key`. Raises `BudgetNotFound`,
        `InvalidUsage`, `InvalidBody`.
        """
        return await acts.report_usage(self._app, budget, amounts, dedup_key=dedup_key, namespace=namespace)

    async def release_usage(
        self, budget: str | UUID, execution_id: str | ExecutionId, *, by: str, namespace: str = "default"
    ) -> Released:
        """Undo what an execution has spent of a budget since the budget's last reset.

        Safe to repeat: the second call returns `noop`. Raises `BudgetNotFound`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: budgets.release_usage(conn, budget, to_execution_id(execution_id), by=by, namespace=namespace)
        )

    async def list_spending(self, execution_id: str | ExecutionId) -> builtins.list[Spending]:
        """List what an execution has spent, by budget and period. Raises `ExecutionNotFound`."""
        return await self._read(lambda conn: budgets.list_spending(conn, to_execution_id(execution_id)))

    async def reserve(
        self,
        budget: str | UUID,
        estimate: Mapping[str, int],
        *,
        ttl: str | timedelta = timedelta(hours=1),
        dedup_key: str | None = None,
        namespace: str = "default",
    ) -> Reserved:
        """Reserve an estimated amount of a budget until the reservation is settled, released or expires.

        Safe to repeat with a `dedup_key` while the reservation is open. Raises `BudgetNotFound`, `InvalidUsage`,
        `InvalidTime`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: budgets.reserve(
                conn, budget, estimate, ttl=read_duration(ttl), dedup_key=dedup_key, namespace=namespace
            ),
            repeat=False,
        )

    async def settle(self, reservation_id: UUID, actual: Mapping[str, int]) -> Settled:
        """Settle a reservation with the actual amounts; reserved amounts that were not spent are free immediately.

        Amounts above the estimate count if they fit; otherwise the estimate counts as used and the rest as overrun.
        Safe to repeat: returns `already_applied` with the first answer. Raises `ReservationNotFound`, `InvalidUsage`.
        """
        return await self._change(lambda conn: budgets.settle(conn, reservation_id, actual))

    async def release(self, reservation_id: UUID) -> Released:
        """Release a reservation.

        Safe to repeat: returns `noop` if the reservation has ended. Raises `ReservationNotFound`.
        """
        return await self._change(lambda conn: budgets.release(conn, reservation_id))


class Events(Operations):
    """The event log of the database; `app.log` follows it."""

    __slots__ = ()

    async def read(self, cursor: str = "", filter: EventFilter = EVERYTHING, *, limit: int = 256) -> EventPage:
        """Read the next events after a cursor that match the filter, and the cursor to continue from.

        The empty cursor returns no events and the current end of the log; `OLDEST` starts with the oldest event kept.
        The cursor also moves past events that do not match. Raises `InvalidCursor`, `CursorExpired`, `InvalidLimit`,
        and `InvalidBody` for an unknown event kind.
        """
        return await self._read(lambda conn: events.read_events(conn, cursor, filter, limit=limit))

    async def acknowledge(self, consumer: str, cursor: str) -> bool:
        """Store the position of a named consumer, so that it survives a restart; the position never moves back.

        Returns whether the position moved. Raises `InvalidCursor`, `InvalidName`.
        """
        return await self._change(lambda conn: events.acknowledge(conn, consumer, cursor))

    async def get_acknowledged(self, consumer: str) -> str | None:
        """Return the cursor that a named consumer has acknowledged, or `None` if it never did."""
        return await self._read(lambda conn: events.get_acknowledged(conn, consumer))


class Executions(Operations):
    """The executions in the database, whichever app has submitted them."""

    __slots__ = ()

    async def list(
        self,
        *,
        namespace: str | None = None,
        lane: str | None = None,
        task: str | None = None,
        states: Collection[PublicState | str] | None = None,
        flow: str | FlowId | None = None,
        parent: str | ExecutionId | None = None,
        key: str | None = None,
        tag: tuple[str, str] | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        lease_expired: bool = False,
        order: Literal["newest", "id"] = "newest",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Summary]:
        """List the executions that match all filters, page by page.

        `states` matches the public state that `describe` returns. `tag` is a name and a value. `created_after` and
        `created_before` are exclusive. With `lease_expired`, only active executions whose lease has expired: no worker
        has reclaimed them yet. `key` is an idempotency key of `namespace`, or of the namespace `default`. Raises
        `InvalidLimit`, `InvalidCursor`, `InvalidBody`.
        """
        return await self._read(
            lambda conn: executions.list_executions(
                conn,
                namespace=namespace,
                lane=lane,
                task=task,
                states=states,
                flow=None if flow is None else to_flow_id(flow),
                parent=None if parent is None else to_execution_id(parent),
                key=key,
                tag=tag,
                created_after=created_after,
                created_before=created_before,
                lease_expired=lease_expired,
                order=order,
                cursor=cursor,
                limit=limit,
            )
        )

    async def describe(
        self,
        execution_id: str | ExecutionId,
        *,
        payload: bool = False,
        result: bool = False,
        last_failure: bool = False,
    ) -> Description:
        """Return everything known about an execution, from one snapshot. Raises `ExecutionNotFound`.

        With `last_failure`, also the failure of the last attempt that failed, with its traceback.
        """
        return await self._read(
            lambda conn: executions.describe(
                conn, to_execution_id(execution_id), payload=payload, result=result, last_failure=last_failure
            )
        )

    async def read_tree(
        self, execution_id: str | ExecutionId, *, per_parent: int = 20, limit: int = 200
    ) -> ExecutionTree:
        """Return an execution with its children, their children, and so on, down to 20 levels.

        An execution with more than `per_parent` children has the failed ones first, then the unfinished ones; all are
        counted by state. The tree has at most `limit` executions. Raises `ExecutionNotFound`, `InvalidLimit`.
        """
        return await self._read(
            lambda conn: executions.read_tree(conn, to_execution_id(execution_id), per_parent=per_parent, limit=limit)
        )

    async def explain(self, execution_id: str | ExecutionId) -> Explanation:
        """Explain in one sentence what an execution waits for and what releases it. Raises `ExecutionNotFound`."""
        return await self._read(lambda conn: executions.explain(conn, to_execution_id(execution_id)))

    async def get_result(self, execution_id: str | ExecutionId) -> Result:
        """Return an execution's outcome and result; the outcome is `None` until it ends. Raises `ExecutionNotFound`."""
        return await self._read(lambda conn: executions.get_result(conn, to_execution_id(execution_id)))

    async def list_attempts(
        self, execution_id: str | ExecutionId, *, cursor: str | None = None, limit: int = 50
    ) -> Page[Attempt]:
        """List the attempts of an execution, by number. Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`."""
        return await self._read(
            lambda conn: attempts.list_attempts(conn, to_execution_id(execution_id), cursor=cursor, limit=limit)
        )

    async def list_steps(
        self, execution_id: str | ExecutionId, *, results: bool = False, cursor: str | None = None, limit: int = 50
    ) -> Page[StepSummary]:
        """List the steps and sleeps that an execution has saved, in the order in which they were saved, and those that
        run.

        Steps that run are last; they are listed after about a second. With `results`, a page has at most 1 MiB of them,
        or one step. Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`.
        """
        return await self._read(
            lambda conn: steps.list_steps(
                conn, to_execution_id(execution_id), results=results, cursor=cursor, limit=limit
            )
        )

    async def cancel(
        self, execution_id: str | ExecutionId, *, by: str | None = None, reason: str | None = None
    ) -> Moved:
        """Cancel an execution; a worker that is running it is notified and cancels the handler.

        Safe to repeat. Raises `ExecutionNotFound`, `ExecutionEnded` for any other outcome, `InvalidBody`.
        """
        return await acts.cancel(self._app, execution_id, by=by, reason=reason)

    async def override(
        self,
        execution_id: str | ExecutionId,
        outcome: Literal["success", "failed"],
        *,
        reason: str,
        by: str,
        result: object = None,
    ) -> Moved:
        """Complete an execution with a result, or fail it, without its lease: an act of an operator.

        Works in every unfinished state. A failure is final, whatever the retry policy says. A worker that runs the
        execution loses its lease, and its own outcome is refused. Safe to repeat: the same outcome and result return
        the same state. Raises `ExecutionNotFound`, `ExecutionEnded`, `InvalidBody`, `InvalidText`, `PayloadTooLarge`.
        """
        return await acts.override(self._app, execution_id, outcome, reason=reason, by=by, result=result)

    async def replay(
        self,
        execution_id: str | ExecutionId,
        *,
        by: str,
        deadline: str | timedelta | datetime | None = None,
        from_step: str | None = None,
        from_occurrence: int = 1,
        from_scratch: bool = False,
    ) -> Moved:
        """Run an ended execution again; attempt numbers continue, retries restart at 0, the old deadline is dropped.

        Saved steps and completed waits are not repeated, unless they were saved from `from_step` on, or `from_scratch`
        is true: those are forgotten and run again. An execution that is held because its code has changed continues in
        its attempt; it needs one of the two. Raises `ExecutionNotFound`, `ExecutionNotTerminal`, `MaxReplaysExhausted`,
        `FlowAlreadyTerminal`, `LaneDraining`, `StepNotFound`, `InvalidTime`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: executions.replay(
                conn,
                to_execution_id(execution_id),
                by=by,
                deadline=read_time(deadline),
                from_step=from_step,
                from_occurrence=from_occurrence,
                from_scratch=from_scratch,
            ),
            repeat=False,
            about=to_execution_id(execution_id),
        )

    async def resume(
        self, execution_id: str | ExecutionId, *, by: str, note: str | None = None, delay: str | timedelta | None = None
    ) -> Moved:
        """Resume a suspended execution on behalf of an operator, regardless of what it waits for.

        The event log keeps the first 4,096 bytes of the note. Raises `ExecutionNotFound`, `ExecutionNotSuspended`,
        `InvalidTime`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: waits.resume(
                conn,
                to_execution_id(execution_id),
                by=by,
                note=note,
                delay=None if delay is None else read_duration(delay),
            ),
            repeat=False,
            about=to_execution_id(execution_id),
        )

    async def hold(self, execution_id: str | ExecutionId, *, by: str, reason: str | None = None) -> HoldChange:
        """Hold an execution: keep it from being claimed until `unhold`.

        Safe to repeat: returns `NOOP` if it is already held. Raises `ExecutionNotFound`, `ExecutionEnded`,
        `InvalidBody`, and `ExecutionNotRunnable` if the execution is active or suspended.
        """
        return await self._change(lambda conn: holds.hold(conn, to_execution_id(execution_id), by=by, reason=reason))

    async def unhold(self, execution_id: str | ExecutionId, *, by: str, reason: str | None = None) -> Unheld:
        """Release a held execution to the state it would have without the hold, such as waiting or delayed.

        Safe to repeat: returns `NOOP` if it is not held. Raises the same errors as `hold`.
        """
        return await self._change(lambda conn: holds.unhold(conn, to_execution_id(execution_id), by=by, reason=reason))

    async def change_priority(self, execution_id: str | ExecutionId, priority: int, *, by: str) -> PriorityChange:
        """Change an execution's priority within its lane; takes effect at the next claim.

        Raises `ExecutionNotFound`, `ExecutionEnded`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: executions.change_priority(conn, to_execution_id(execution_id), priority, by=by)
        )

    async def set_tag(
        self, execution_id: str | ExecutionId, key: str, value: str | None, *, by: str | None = None
    ) -> TagChange:
        """Set or change a tag of an execution, or remove it with `None`; also works after the execution has ended.

        Safe to repeat. Raises `ExecutionNotFound`, `InvalidTagKey`, `InvalidTag`.
        """
        return await self._change(
            lambda conn: executions.set_tag(conn, to_execution_id(execution_id), key, value, by=by)
        )

    async def get_tag(self, execution_id: str | ExecutionId, key: str) -> str | None:
        """Return the value of a tag, or `None` if it is not set. Raises `ExecutionNotFound`, `InvalidTagKey`."""
        return await self._read(lambda conn: executions.get_tag(conn, to_execution_id(execution_id), key))

    async def revoke(
        self,
        execution_id: str | ExecutionId,
        *,
        by: str,
        reason: str | None = None,
        expected_lease_id: UUID | None = None,
    ) -> Revoked:
        """Take a lease away from its worker; the execution is claimable immediately, and no reclaim is counted.

        Safe to repeat: answers `noop` and its cause. With `expected_lease_id` only that lease is revoked. Raises
        `ExecutionNotFound`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: claims.revoke(
                conn, to_execution_id(execution_id), by=by, reason=reason, expected_lease_id=expected_lease_id
            ),
            repeat=False,
        )


class Flows(Operations):
    """The flows (DAGs) in the database; `app.flow` builds one."""

    __slots__ = ()

    async def list(
        self,
        *,
        namespace: str | None = None,
        state: FlowState | str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[FlowSummary]:
        """List the flows that match all given filters, in id order, page by page.

        Raises `InvalidLimit`, `InvalidCursor`, `InvalidBody`.
        """
        return await self._read(
            lambda conn: flows.list_flows(conn, namespace=namespace, state=state, cursor=cursor, limit=limit)
        )

    async def describe(self, flow_id: str | FlowId, *, cursor: str | None = None, limit: int = 50) -> FlowDescription:
        """Describe a flow: its state, exact counts per state, and a page of members with their edges and groups.

        Raises `FlowNotFound`, `InvalidLimit`, `InvalidCursor`.
        """
        return await self._read(lambda conn: flows.describe_flow(conn, to_flow_id(flow_id), cursor=cursor, limit=limit))

    async def cancel(
        self,
        flow_id: str | FlowId,
        *,
        reason: str | None = None,
        by: str | None = None,
        policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL,
    ) -> CancelledFlow:
        """Cancel a flow and the unfinished members that the policy selects; afterwards the flow cannot be changed.

        `cancel_pending` lets running members finish, `flow_only` ends no member. Safe to repeat: returns
        `already_cancelled` with the arguments and the effect of the first call. Raises `FlowNotFound`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: flows.cancel_flow(conn, to_flow_id(flow_id), reason=reason, by=by, policy=policy)
        )

    async def set_tag(
        self, flow_id: str | FlowId, key: str, value: str | None = None, *, by: str | None = None
    ) -> TagChange:
        """Set, change or (without a value) remove a tag of a flow.

        Safe to repeat: returns `NOOP`. Raises `FlowNotFound`, `InvalidTagKey`, `InvalidTag`.
        """
        return await self._change(lambda conn: flows.set_flow_tag(conn, to_flow_id(flow_id), key, value, by=by))

    async def create(
        self,
        kind: str,
        *,
        namespace: str = "default",
        flow_id: FlowId | str | None = None,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> CreatedFlow:
        """Create an empty flow.

        Safe to repeat with a `flow_id` or a `key`: returns `duplicate` with the id of the first flow. An idempotency
        key is unique within the namespace and is reserved until the flow is removed. Raises `InvalidId`,
        `WrongPartition`, `InvalidNamespace`, `InvalidName`, `InvalidTagKey`, `InvalidTag`.
        """
        return await self._change(
            lambda conn: flows.create_flow(conn, kind, namespace=namespace, flow_id=flow_id, key=key, tags=tags),
            repeat=False,
        )

    async def add_execution(self, flow_id: str | FlowId, execution: str | ExecutionId | Submission) -> AddedExecution:
        """Make an execution a member of a flow in the same partition, or submit a new member.

        An existing execution may be in any state, also ended. Safe to repeat: returns `already_member`. Raises
        `FlowNotFound`, `FlowAlreadyTerminal`, `WrongPartition`, `ExecutionNotFound`, `ExecutionAlreadyInFlow`,
        `FlowTooLarge`, and for a submission what `submit` raises.
        """
        return await self._change(
            lambda conn: flows.add_execution(
                conn,
                to_flow_id(flow_id),
                execution if isinstance(execution, Submission) else to_execution_id(execution),
                payload_limit=self._app.config.payload_limit,
            ),
            repeat=False,
        )

    async def add_edge(
        self,
        flow_id: str | FlowId,
        upstream: str | ExecutionId,
        downstream: str | ExecutionId,
        *,
        edge_id: UUID | None = None,
        pass_as: str | None = None,
        expected_revision: int | None = None,
    ) -> AddedEdge:
        """Make one member of a flow wait for another; if the upstream has already ended, the edge is settled
        immediately.

        `pass_as` passes the upstream's result to the downstream member under that name; `payload` replaces its payload.
        Safe to repeat: the same pair and attributes return `already_applied`. Raises `FlowNotFound`,
        `FlowAlreadyTerminal`, `StaleGraphRevision`, `InvalidDependency`, `SelfReferencingEdge`, `CycleDetected`,
        `DependencyAlreadyExists`, `ExecutionAlreadyStarted`, `EdgeGroupSettled`, `FlowTooLarge`, `InvalidName`.
        """
        return await self._change(
            lambda conn: flows.add_edge(
                conn,
                to_flow_id(flow_id),
                to_execution_id(upstream),
                to_execution_id(downstream),
                edge_id=edge_id,
                pass_as=pass_as,
                expected_revision=expected_revision,
            )
        )

    async def set_edge_group(
        self, flow_id: str | FlowId, downstream: str | ExecutionId, policy: EdgePolicy
    ) -> Literal["set", "already_set"]:
        """Set the policy for all edges into a member, before its first edge; by default all upstreams must succeed.

        Safe to repeat: the same policy returns `already_set`. Raises `FlowNotFound`, `FlowAlreadyTerminal`,
        `InvalidEdgeGroup`, `InvalidDependency`, `EdgeGroupAlreadyFixed`.
        """
        return await self._change(
            lambda conn: flows.set_edge_group(conn, to_flow_id(flow_id), to_execution_id(downstream), policy)
        )


class Lanes(Operations):
    """The lanes (queues) that workers claim from."""

    __slots__ = ()

    async def list(self, *, cursor: str | None = None, limit: int = 50) -> Page[Lane]:
        """List the lanes, by name. Raises `InvalidLimit`."""
        return await self._read(lambda conn: lanes.list_lanes(conn, cursor=cursor, limit=limit))

    async def describe(self, name: str) -> Lane:
        """Describe a lane: its state, who changed it and why, and its executions by state. Raises `LaneNotFound`."""
        return await self._read(lambda conn: lanes.describe_lane(conn, name))

    async def configure(
        self,
        name: str,
        *,
        keep_renewals: bool | None = None,
        stream_retention_maxlen: int | None = None,
        stream_retention: str | timedelta | None = None,
    ) -> LaneChange:
        """Create a lane or change its options; an option that is `None` keeps its value.

        With `keep_renewals` every lease renewal in this lane is written to the event log. A stream keeps its last
        `stream_retention_maxlen` frames, and its frames for `stream_retention` after it is closed (zero: as long as the
        execution), unless the policy of the execution says otherwise; both hold for streams that begin afterwards.
        Raises `InvalidLane`.
        """
        return await self._change(
            lambda conn: lanes.configure_lane(
                conn,
                name,
                keep_renewals=keep_renewals,
                stream_retention_maxlen=stream_retention_maxlen,
                stream_retention=None if stream_retention is None else read_duration(stream_retention),
            )
        )

    async def pause(self, name: str, *, by: str, reason: str | None = None) -> LaneChange:
        """Pause a lane: workers stop claiming from it, running executions continue, new ones wait.

        Safe to repeat: returns `NOOP` if the lane is already paused. Raises `LaneNotFound`, `InvalidBody`.
        """
        return await self._change(lambda conn: lanes.pause_lane(conn, name, by=by, reason=reason))

    async def drain(self, name: str, *, by: str, reason: str | None = None) -> Drained:
        """Drain a lane: refuse new submissions and finish the existing executions.

        Safe to repeat: returns `NOOP` and the number of executions left if it is already draining. Raises
        `LaneNotFound`, `InvalidBody`.
        """
        return await self._change(lambda conn: lanes.drain_lane(conn, name, by=by, reason=reason))

    async def resume(self, name: str, *, by: str, reason: str | None = None) -> LaneChange:
        """Resume a paused or draining lane.

        Safe to repeat: returns `NOOP` if the lane is already active. Raises `LaneNotFound`, `InvalidBody`.
        """
        return await acts.resume_lane(self._app, name, by=by, reason=reason)


class Quotas(Operations):
    """Limits on how fast and how many executions run."""

    __slots__ = ()

    async def list(self, *, namespace: str = "default", cursor: str | None = None, limit: int = 50) -> Page[Quota]:
        """List the quotas of a namespace by name. Raises `InvalidLimit`."""
        return await self._read(lambda conn: quotas.list_quotas(conn, namespace=namespace, cursor=cursor, limit=limit))

    async def describe(self, quota: str | UUID, *, namespace: str = "default") -> Quota:
        """Describe a quota, by name or id: its limits, its usage and the remaining room.

        Raises `QuotaNotFound`.
        """
        return await self._read(lambda conn: quotas.describe_quota(conn, quota, namespace=namespace))

    async def create(
        self,
        name: str,
        *,
        max_requests_per_window: int | None = None,
        window_seconds: int = 60,
        max_concurrent: int | None = None,
        namespace: str = "default",
        by: str | None = None,
    ) -> CreatedQuota:
        """Create a quota with at least one limit; safe to repeat with the same limits.

        Raises `InvalidName`, `InvalidNamespace`, `InvalidQuota`, `InvalidBody`, and `QuotaAlreadyExists` if a quota
        with this name has other limits.
        """
        return await self._change(
            lambda conn: quotas.create_quota(
                conn,
                name,
                max_requests_per_window=max_requests_per_window,
                window_seconds=window_seconds,
                max_concurrent=max_concurrent,
                namespace=namespace,
                by=by,
                partitions=self._app.config.quota_partitions,
            )
        )

    async def change(
        self,
        quota: str | UUID,
        *,
        by: str,
        max_requests_per_window: int | None = None,
        window_seconds: int | None = None,
        max_concurrent: int | None = None,
        namespace: str = "default",
    ) -> ChangedQuota:
        """Change the limits of a quota, by name or id; omitted limits keep their values. Safe to repeat.

        The next claim uses the new limits; running executions continue, even above a lowered limit. Raises
        `QuotaNotFound`, `InvalidQuota`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: quotas.change_quota(
                conn,
                quota,
                by=by,
                max_requests_per_window=max_requests_per_window,
                window_seconds=window_seconds,
                max_concurrent=max_concurrent,
                namespace=namespace,
            )
        )


class Schedules(Operations):
    """Submissions by cron or interval."""

    __slots__ = ()

    async def list(self, *, namespace: str | None = None, cursor: str | None = None, limit: int = 50) -> Page[Schedule]:
        """List schedules by namespace and name, each with its next five ticks.

        Raises `InvalidLimit`, `InvalidCursor`.
        """
        return await self._read(
            lambda conn: schedules.list_schedules(conn, namespace=namespace, cursor=cursor, limit=limit)
        )

    async def describe(self, name: str, *, namespace: str = "default") -> Schedule:
        """Describe a schedule, with its payload and its next five ticks. Raises `ScheduleNotFound`."""
        return await self._read(lambda conn: schedules.describe_schedule(conn, name, namespace=namespace))

    async def create(
        self,
        name: str,
        task: Task[..., Any] | str,
        arguments: Mapping[str, object] | None = None,
        *,
        by: str | None = None,
        paused: bool = False,
        **timing: Unpack[TimingOptions],
    ) -> ScheduleChange:
        """Submit a task again and again, by `cron` and `tz` or `every` so often, until the schedule is deleted.

        Safe to repeat: an identical schedule answers `NOOP`. Raises `UnknownTask`, `InvalidSchedule`,
        `ScheduleAlreadyExists`.
        """
        return await app_schedules.create_schedule(self._app, name, task, arguments, by=by, paused=paused, **timing)

    async def change(
        self,
        name: str,
        task: Task[..., Any] | str | None = None,
        arguments: Mapping[str, object] | None = None,
        *,
        by: str | None = None,
        namespace: str = "default",
        **timing: Unpack[TimingOptions],
    ) -> ScheduleChange:
        """Change when a schedule ticks, what it submits, or both: the timing, and the task with all its arguments.

        What is not given stays. A timing replaces the whole timing. Safe to repeat: no difference answers `NOOP`.
        Raises `ScheduleNotFound`, `UnknownTask`, `InvalidSchedule`.
        """
        return await app_schedules.change_schedule(
            self._app, name, task, arguments, by=by, namespace=namespace, **timing
        )

    async def pause(
        self, name: str, *, namespace: str = "default", by: str, reason: str | None = None
    ) -> ScheduleChange:
        """Pause a schedule; executions it has submitted continue, and ticks that pass in the meantime are not caught
        up.

        Safe to repeat: a paused schedule answers `NOOP`. Raises `ScheduleNotFound`, `InvalidBody`.
        """
        return await self._change(
            lambda conn: schedules.pause_schedule(conn, name, namespace=namespace, by=by, reason=reason)
        )

    async def resume(
        self, name: str, *, namespace: str = "default", by: str, reason: str | None = None
    ) -> ScheduleChange:
        """Resume a paused schedule at the first tick from now on.

        Safe to repeat: one that is not paused answers `NOOP`. Raises `ScheduleNotFound`, `InvalidBody`,
        `InvalidSchedule`.
        """
        return await self._change(
            lambda conn: schedules.resume_schedule(conn, name, namespace=namespace, by=by, reason=reason)
        )

    async def delete(
        self, name: str, *, namespace: str = "default", by: str, reason: str | None = None
    ) -> ScheduleChange:
        """Delete a schedule; executions it has submitted continue. Raises `ScheduleNotFound`, `InvalidBody`."""
        return await self._change(
            lambda conn: schedules.delete_schedule(conn, name, namespace=namespace, by=by, reason=reason), repeat=False
        )

    async def fire(self, name: str, *, namespace: str = "default", by: str) -> Fired:
        """Submit the execution of a schedule now, on request, even if it is paused. Its ticks are not affected.

        Raises `ScheduleNotFound`, `InvalidBody`, and what `submit` refuses.
        """
        return await self._change(
            lambda conn: schedules.fire_schedule(conn, name, namespace=namespace, by=by), repeat=False
        )


class SigningKeys(Operations):
    """The secrets that sign the tokens of waitpoints."""

    __slots__ = ()

    async def list(self) -> builtins.list[Key]:
        """List the signing keys by kid, without their secrets."""
        return await self._read(lambda conn: signing_keys.list_keys(conn))

    async def seed(self, kid: str, secret: str) -> Seeded:
        """Install the first signing key; safe to repeat.

        Raises `InvalidKid`, `InvalidSecret`, `AnotherKeyActive`, and `RotationConflict` for a kid that was retired.
        """
        return await self._change(lambda conn: signing_keys.seed_key(conn, kid, secret))

    async def rotate(self, kid: str, secret: str, *, grace: str | timedelta = DAY, by: str | None = None) -> Rotated:
        """Make a new key the active one; the previous key verifies until the grace period ends.

        Safe to repeat. Raises `InvalidKid`, `InvalidSecret`, `InvalidGrace`, `RotationConflict`.
        """
        return await self._change(
            lambda conn: signing_keys.rotate_key(conn, kid, secret, grace=read_duration(grace), by=by)
        )


class Waitpoints(Operations):
    """What executions wait for, and the signals that end the waits."""

    __slots__ = ()

    async def list_suspended(
        self,
        *,
        namespace: str | None = None,
        lane: str | None = None,
        reason_code: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[SuspendedExecution]:
        """List the executions that are suspended now, longest first.

        Raises `InvalidBody` for a reason code that does not exist, `InvalidCursor`, `InvalidLimit`.
        """
        return await self._read(
            lambda conn: waits.list_suspended(
                conn, namespace=namespace, lane=lane, reason_code=reason_code, cursor=cursor, limit=limit
            )
        )

    async def list_waits(self, execution_id: str | ExecutionId) -> builtins.list[SuspendedExecution]:
        """List the waits of one execution that are open now. Raises `ExecutionNotFound`."""
        return await self._read(lambda conn: waits.list_waits(conn, to_execution_id(execution_id)))

    async def list(
        self, execution_id: str | ExecutionId, *, state: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Waitpoint]:
        """List the waitpoints of an execution, oldest first; with `state`, only those in that state.

        Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`, `InvalidBody`.
        """
        return await self._read(
            lambda conn: waits.list_waitpoints(
                conn, to_execution_id(execution_id), state=state, cursor=cursor, limit=limit
            )
        )

    async def signal(
        self,
        execution_id: str | ExecutionId,
        waitpoint: str,
        payload: object = None,
        *,
        token: str,
        name: str | None = None,
        source: str = "unknown",
    ) -> Delivered:
        """Send a signal to the waitpoint with this key, with the waitpoint's token; `name` defaults to the key.

        Raises the errors of `deliver_signal`, such as `InvalidToken`, also if no waitpoint has this key.
        """
        return await acts.signal(self._app, execution_id, waitpoint, payload, token=token, name=name, source=source)


class Workers(Operations):
    """The worker processes that are live, and their tasks."""

    __slots__ = ()

    async def list(
        self,
        *,
        namespace: str | None = None,
        lane: str | None = None,
        expired: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Worker]:
        """List the live instances by name; with `expired` also expired ones that no sweep has removed yet.

        Raises `InvalidLimit`.
        """
        return await self._read(
            lambda conn: workers.list_workers(
                conn, namespace=namespace, lane=lane, expired=expired, cursor=cursor, limit=limit
            )
        )

    async def describe(self, instance: str) -> WorkerDescription | None:
        """Describe a live instance, with all its tasks and the schemas of their arguments; `None` if there is none."""
        return await self._read(lambda conn: workers.describe_worker(conn, instance))

    async def mark_dead(self, instance: str, *, by: str, reason: str | None = None) -> MarkedDead:
        """Declare an instance dead: remove it and revoke every lease it holds.

        Raises `InvalidWorker`, `InvalidBody`.
        """
        return await self._change(lambda conn: workers.mark_dead(conn, instance, by=by, reason=reason), repeat=False)

    async def list_tasks(
        self, *, namespace: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[ListedTask]:
        """List the tasks that live workers have or that have unfinished executions, by name.

        Each has its versions, with the number of workers that have the version and of executions that have started
        under it. Counts stop at 10,001. Raises `InvalidLimit`.
        """
        return await self._read(lambda conn: tasks.list_tasks(conn, namespace=namespace, cursor=cursor, limit=limit))

    async def describe_task(self, task: str, *, namespace: str | None = None) -> ListedTask | None:
        """Describe a task, with the instances of each version; `None` if no live worker has it and no work is left."""
        return await self._read(lambda conn: tasks.describe_task(conn, task, namespace=namespace))
