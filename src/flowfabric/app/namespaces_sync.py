"""The sync classes of the namespaces of an app. Written by `make sync`; do not edit.

A method does what the method of the async class does, and waits for the result.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack

from flowfabric.blocking import Sync
from flowfabric.engine.events.read import EVERYTHING
from flowfabric.engine.signing_keys import DAY
from flowfabric.model import CancelPolicy

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime
    from uuid import UUID

    from flowfabric.app.namespaces import (
        Approvals,
        Budgets,
        Events,
        Executions,
        Flows,
        Lanes,
        Quotas,
        Schedules,
        SigningKeys,
        Waitpoints,
        Workers,
    )
    from flowfabric.app.schedules import TimingOptions
    from flowfabric.app.tasks import Task
    from flowfabric.ids import ExecutionId, FlowId
    from flowfabric.model import (
        AddedEdge,
        AddedExecution,
        Approval,
        Attempt,
        Budget,
        CancelledFlow,
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


class SyncApprovals(Sync):
    """The decisions that executions wait for.

    The sync version of `Approvals`.
    """

    __slots__ = ()
    _thing: Approvals

    def list(
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
        answer: Page[Approval] = self._wait(
            self._thing.list, namespace=namespace, lane=lane, tag=tag, cursor=cursor, limit=limit
        )
        return answer

    def approve(
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
        answer: Delivered = self._wait(self._thing.approve, execution_id, waitpoint, by=by, subject=subject, note=note)
        return answer

    def reject(
        self,
        execution_id: str | ExecutionId,
        waitpoint: str,
        *,
        by: str,
        subject: object = None,
        note: str | None = None,
    ) -> Delivered:
        """Reject, as a person whom you have authenticated (`by`); one rejection is enough. Raises as `approve` does."""
        answer: Delivered = self._wait(self._thing.reject, execution_id, waitpoint, by=by, subject=subject, note=note)
        return answer


class SyncBudgets(Sync):
    """Limits on what executions may spend, and what they have spent.

    The sync version of `Budgets`.
    """

    __slots__ = ()
    _thing: Budgets

    def list(self, *, namespace: str = "default", cursor: str | None = None, limit: int = 50) -> Page[Budget]:
        """List the budgets of a namespace by name. Raises `InvalidLimit`."""
        answer: Page[Budget] = self._wait(self._thing.list, namespace=namespace, cursor=cursor, limit=limit)
        return answer

    def describe(self, budget: str | UUID, *, namespace: str = "default") -> Budget:
        """Describe a budget, by name or id: its limits and its usage. Raises `BudgetNotFound`."""
        answer: Budget = self._wait(self._thing.describe, budget, namespace=namespace)
        return answer

    def create(
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
        answer: CreatedBudget = self._wait(
            self._thing.create,
            name,
            hard_limits=hard_limits,
            soft_limits=soft_limits,
            mode=mode,
            on_hard_limit=on_hard_limit,
            on_soft_limit=on_soft_limit,
            reset_interval=reset_interval,
            scope_type=scope_type,
            scope_id=scope_id,
            namespace=namespace,
            by=by,
        )
        return answer

    def change(
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
        answer: ChangedBudget = self._wait(
            self._thing.change,
            budget,
            by=by,
            hard_limits=hard_limits,
            soft_limits=soft_limits,
            mode=mode,
            on_hard_limit=on_hard_limit,
            on_soft_limit=on_soft_limit,
            reset_interval=reset_interval,
            scope_type=scope_type,
            scope_id=scope_id,
            namespace=namespace,
        )
        return answer

    def reset(self, budget: str | UUID, *, by: str, namespace: str = "default") -> ResetBudget:
        """Start a new period: the used amounts are cleared; counters and reservations are kept.

        The next automatic reset is a whole interval away. Raises `BudgetNotFound`, `InvalidBody`.
        """
        answer: ResetBudget = self._wait(self._thing.reset, budget, by=by, namespace=namespace)
        return answer

    def report_usage(
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
        answer: Usage = self._wait(self._thing.report_usage, budget, amounts, dedup_key=dedup_key, namespace=namespace)
        return answer

    def release_usage(
        self, budget: str | UUID, execution_id: str | ExecutionId, *, by: str, namespace: str = "default"
    ) -> Released:
        """Undo what an execution has spent of a budget since the budget's last reset.

        Safe to repeat: the second call returns `noop`. Raises `BudgetNotFound`, `InvalidBody`.
        """
        answer: Released = self._wait(self._thing.release_usage, budget, execution_id, by=by, namespace=namespace)
        return answer

    def list_spending(self, execution_id: str | ExecutionId) -> builtins.list[Spending]:
        """List what an execution has spent, by budget and period. Raises `ExecutionNotFound`."""
        answer: builtins.list[Spending] = self._wait(self._thing.list_spending, execution_id)
        return answer

    def reserve(
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
        answer: Reserved = self._wait(
            self._thing.reserve, budget, estimate, ttl=ttl, dedup_key=dedup_key, namespace=namespace
        )
        return answer

    def settle(self, reservation_id: UUID, actual: Mapping[str, int]) -> Settled:
        """Settle a reservation with the actual amounts; reserved amounts that were not spent are free immediately.

        Amounts above the estimate count if they fit; otherwise the estimate counts as used and the rest as overrun.
        Safe to repeat: returns `already_applied` with the first answer. Raises `ReservationNotFound`, `InvalidUsage`.
        """
        answer: Settled = self._wait(self._thing.settle, reservation_id, actual)
        return answer

    def release(self, reservation_id: UUID) -> Released:
        """Release a reservation.

        Safe to repeat: returns `noop` if the reservation has ended. Raises `ReservationNotFound`.
        """
        answer: Released = self._wait(self._thing.release, reservation_id)
        return answer


class SyncEvents(Sync):
    """The event log of the database; `app.log` follows it.

    The sync version of `Events`.
    """

    __slots__ = ()
    _thing: Events

    def read(self, cursor: str = "", filter: EventFilter = EVERYTHING, *, limit: int = 256) -> EventPage:
        """Read the next events after a cursor that match the filter, and the cursor to continue from.

        The empty cursor returns no events and the current end of the log; `OLDEST` starts with the oldest event kept.
        The cursor also moves past events that do not match. Raises `InvalidCursor`, `CursorExpired`, `InvalidLimit`,
        and `InvalidBody` for an unknown event kind.
        """
        answer: EventPage = self._wait(self._thing.read, cursor, filter, limit=limit)
        return answer

    def acknowledge(self, consumer: str, cursor: str) -> bool:
        """Store the position of a named consumer, so that it survives a restart; the position never moves back.

        Returns whether the position moved. Raises `InvalidCursor`, `InvalidName`.
        """
        answer: bool = self._wait(self._thing.acknowledge, consumer, cursor)
        return answer

    def get_acknowledged(self, consumer: str) -> str | None:
        """Return the cursor that a named consumer has acknowledged, or `None` if it never did."""
        answer: str | None = self._wait(self._thing.get_acknowledged, consumer)
        return answer


class SyncExecutions(Sync):
    """The executions in the database, whichever app has submitted them.

    The sync version of `Executions`.
    """

    __slots__ = ()
    _thing: Executions

    def list(
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
        answer: Page[Summary] = self._wait(
            self._thing.list,
            namespace=namespace,
            lane=lane,
            task=task,
            states=states,
            flow=flow,
            parent=parent,
            key=key,
            tag=tag,
            created_after=created_after,
            created_before=created_before,
            lease_expired=lease_expired,
            order=order,
            cursor=cursor,
            limit=limit,
        )
        return answer

    def describe(
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
        answer: Description = self._wait(
            self._thing.describe, execution_id, payload=payload, result=result, last_failure=last_failure
        )
        return answer

    def read_tree(self, execution_id: str | ExecutionId, *, per_parent: int = 20, limit: int = 200) -> ExecutionTree:
        """Return an execution with its children, their children, and so on, down to 20 levels.

        An execution with more than `per_parent` children has the failed ones first, then the unfinished ones; all are
        counted by state. The tree has at most `limit` executions. Raises `ExecutionNotFound`, `InvalidLimit`.
        """
        answer: ExecutionTree = self._wait(self._thing.read_tree, execution_id, per_parent=per_parent, limit=limit)
        return answer

    def explain(self, execution_id: str | ExecutionId) -> Explanation:
        """Explain in one sentence what an execution waits for and what releases it. Raises `ExecutionNotFound`."""
        answer: Explanation = self._wait(self._thing.explain, execution_id)
        return answer

    def get_result(self, execution_id: str | ExecutionId) -> Result:
        """Return an execution's outcome and result; the outcome is `None` until it ends. Raises `ExecutionNotFound`."""
        answer: Result = self._wait(self._thing.get_result, execution_id)
        return answer

    def list_attempts(
        self, execution_id: str | ExecutionId, *, cursor: str | None = None, limit: int = 50
    ) -> Page[Attempt]:
        """List the attempts of an execution, by number. Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`."""
        answer: Page[Attempt] = self._wait(self._thing.list_attempts, execution_id, cursor=cursor, limit=limit)
        return answer

    def list_steps(
        self, execution_id: str | ExecutionId, *, results: bool = False, cursor: str | None = None, limit: int = 50
    ) -> Page[StepSummary]:
        """List the steps and sleeps that an execution has saved, in the order in which they were saved, and those that
        run.

        Steps that run are last; they are listed after about a second. With `results`, a page has at most 1 MiB of them,
        or one step. Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`.
        """
        answer: Page[StepSummary] = self._wait(
            self._thing.list_steps, execution_id, results=results, cursor=cursor, limit=limit
        )
        return answer

    def cancel(self, execution_id: str | ExecutionId, *, by: str | None = None, reason: str | None = None) -> Moved:
        """Cancel an execution; a worker that is running it is notified and cancels the handler.

        Safe to repeat. Raises `ExecutionNotFound`, `ExecutionEnded` for any other outcome, `InvalidBody`.
        """
        answer: Moved = self._wait(self._thing.cancel, execution_id, by=by, reason=reason)
        return answer

    def override(
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
        answer: Moved = self._wait(self._thing.override, execution_id, outcome, reason=reason, by=by, result=result)
        return answer

    def replay(
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
        answer: Moved = self._wait(
            self._thing.replay,
            execution_id,
            by=by,
            deadline=deadline,
            from_step=from_step,
            from_occurrence=from_occurrence,
            from_scratch=from_scratch,
        )
        return answer

    def resume(
        self, execution_id: str | ExecutionId, *, by: str, note: str | None = None, delay: str | timedelta | None = None
    ) -> Moved:
        """Resume a suspended execution on behalf of an operator, regardless of what it waits for.

        The event log keeps the first 4,096 bytes of the note. Raises `ExecutionNotFound`, `ExecutionNotSuspended`,
        `InvalidTime`, `InvalidBody`.
        """
        answer: Moved = self._wait(self._thing.resume, execution_id, by=by, note=note, delay=delay)
        return answer

    def hold(self, execution_id: str | ExecutionId, *, by: str, reason: str | None = None) -> HoldChange:
        """Hold an execution: keep it from being claimed until `unhold`.

        Safe to repeat: returns `NOOP` if it is already held. Raises `ExecutionNotFound`, `ExecutionEnded`,
        `InvalidBody`, and `ExecutionNotRunnable` if the execution is active or suspended.
        """
        answer: HoldChange = self._wait(self._thing.hold, execution_id, by=by, reason=reason)
        return answer

    def unhold(self, execution_id: str | ExecutionId, *, by: str, reason: str | None = None) -> Unheld:
        """Release a held execution to the state it would have without the hold, such as waiting or delayed.

        Safe to repeat: returns `NOOP` if it is not held. Raises the same errors as `hold`.
        """
        answer: Unheld = self._wait(self._thing.unhold, execution_id, by=by, reason=reason)
        return answer

    def change_priority(self, execution_id: str | ExecutionId, priority: int, *, by: str) -> PriorityChange:
        """Change an execution's priority within its lane; takes effect at the next claim.

        Raises `ExecutionNotFound`, `ExecutionEnded`, `InvalidBody`.
        """
        answer: PriorityChange = self._wait(self._thing.change_priority, execution_id, priority, by=by)
        return answer

    def set_tag(
        self, execution_id: str | ExecutionId, key: str, value: str | None, *, by: str | None = None
    ) -> TagChange:
        """Set or change a tag of an execution, or remove it with `None`; also works after the execution has ended.

        Safe to repeat. Raises `ExecutionNotFound`, `InvalidTagKey`, `InvalidTag`.
        """
        answer: TagChange = self._wait(self._thing.set_tag, execution_id, key, value, by=by)
        return answer

    def get_tag(self, execution_id: str | ExecutionId, key: str) -> str | None:
        """Return the value of a tag, or `None` if it is not set. Raises `ExecutionNotFound`, `InvalidTagKey`."""
        answer: str | None = self._wait(self._thing.get_tag, execution_id, key)
        return answer

    def revoke(
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
        answer: Revoked = self._wait(
            self._thing.revoke, execution_id, by=by, reason=reason, expected_lease_id=expected_lease_id
        )
        return answer


class SyncFlows(Sync):
    """The flows (DAGs) in the database; `app.flow` builds one.

    The sync version of `Flows`.
    """

    __slots__ = ()
    _thing: Flows

    def list(
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
        answer: Page[FlowSummary] = self._wait(
            self._thing.list, namespace=namespace, state=state, cursor=cursor, limit=limit
        )
        return answer

    def describe(self, flow_id: str | FlowId, *, cursor: str | None = None, limit: int = 50) -> FlowDescription:
        """Describe a flow: its state, exact counts per state, and a page of members with their edges and groups.

        Raises `FlowNotFound`, `InvalidLimit`, `InvalidCursor`.
        """
        answer: FlowDescription = self._wait(self._thing.describe, flow_id, cursor=cursor, limit=limit)
        return answer

    def cancel(
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
        answer: CancelledFlow = self._wait(self._thing.cancel, flow_id, reason=reason, by=by, policy=policy)
        return answer

    def set_tag(self, flow_id: str | FlowId, key: str, value: str | None = None, *, by: str | None = None) -> TagChange:
        """Set, change or (without a value) remove a tag of a flow.

        Safe to repeat: returns `NOOP`. Raises `FlowNotFound`, `InvalidTagKey`, `InvalidTag`.
        """
        answer: TagChange = self._wait(self._thing.set_tag, flow_id, key, value, by=by)
        return answer

    def create(
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
        answer: CreatedFlow = self._wait(
            self._thing.create, kind, namespace=namespace, flow_id=flow_id, key=key, tags=tags
        )
        return answer

    def add_execution(self, flow_id: str | FlowId, execution: str | ExecutionId | Submission) -> AddedExecution:
        """Make an execution a member of a flow in the same partition, or submit a new member.

        An existing execution may be in any state, also ended. Safe to repeat: returns `already_member`. Raises
        `FlowNotFound`, `FlowAlreadyTerminal`, `WrongPartition`, `ExecutionNotFound`, `ExecutionAlreadyInFlow`,
        `FlowTooLarge`, and for a submission what `submit` raises.
        """
        answer: AddedExecution = self._wait(self._thing.add_execution, flow_id, execution)
        return answer

    def add_edge(
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
        answer: AddedEdge = self._wait(
            self._thing.add_edge,
            flow_id,
            upstream,
            downstream,
            edge_id=edge_id,
            pass_as=pass_as,
            expected_revision=expected_revision,
        )
        return answer

    def set_edge_group(
        self, flow_id: str | FlowId, downstream: str | ExecutionId, policy: EdgePolicy
    ) -> Literal["set", "already_set"]:
        """Set the policy for all edges into a member, before its first edge; by default all upstreams must succeed.

        Safe to repeat: the same policy returns `already_set`. Raises `FlowNotFound`, `FlowAlreadyTerminal`,
        `InvalidEdgeGroup`, `InvalidDependency`, `EdgeGroupAlreadyFixed`.
        """
        answer: Literal["set", "already_set"] = self._wait(self._thing.set_edge_group, flow_id, downstream, policy)
        return answer


class SyncLanes(Sync):
    """The lanes (queues) that workers claim from.

    The sync version of `Lanes`.
    """

    __slots__ = ()
    _thing: Lanes

    def list(self, *, cursor: str | None = None, limit: int = 50) -> Page[Lane]:
        """List the lanes, by name. Raises `InvalidLimit`."""
        answer: Page[Lane] = self._wait(self._thing.list, cursor=cursor, limit=limit)
        return answer

    def describe(self, name: str) -> Lane:
        """Describe a lane: its state, who changed it and why, and its executions by state. Raises `LaneNotFound`."""
        answer: Lane = self._wait(self._thing.describe, name)
        return answer

    def configure(
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
        answer: LaneChange = self._wait(
            self._thing.configure,
            name,
            keep_renewals=keep_renewals,
            stream_retention_maxlen=stream_retention_maxlen,
            stream_retention=stream_retention,
        )
        return answer

    def pause(self, name: str, *, by: str, reason: str | None = None) -> LaneChange:
        """Pause a lane: workers stop claiming from it, running executions continue, new ones wait.

        Safe to repeat: returns `NOOP` if the lane is already paused. Raises `LaneNotFound`, `InvalidBody`.
        """
        answer: LaneChange = self._wait(self._thing.pause, name, by=by, reason=reason)
        return answer

    def drain(self, name: str, *, by: str, reason: str | None = None) -> Drained:
        """Drain a lane: refuse new submissions and finish the existing executions.

        Safe to repeat: returns `NOOP` and the number of executions left if it is already draining. Raises
        `LaneNotFound`, `InvalidBody`.
        """
        answer: Drained = self._wait(self._thing.drain, name, by=by, reason=reason)
        return answer

    def resume(self, name: str, *, by: str, reason: str | None = None) -> LaneChange:
        """Resume a paused or draining lane.

        Safe to repeat: returns `NOOP` if the lane is already active. Raises `LaneNotFound`, `InvalidBody`.
        """
        answer: LaneChange = self._wait(self._thing.resume, name, by=by, reason=reason)
        return answer


class SyncQuotas(Sync):
    """Limits on how fast and how many executions run.

    The sync version of `Quotas`.
    """

    __slots__ = ()
    _thing: Quotas

    def list(self, *, namespace: str = "default", cursor: str | None = None, limit: int = 50) -> Page[Quota]:
        """List the quotas of a namespace by name. Raises `InvalidLimit`."""
        answer: Page[Quota] = self._wait(self._thing.list, namespace=namespace, cursor=cursor, limit=limit)
        return answer

    def describe(self, quota: str | UUID, *, namespace: str = "default") -> Quota:
        """Describe a quota, by name or id: its limits, its usage and the remaining room.

        Raises `QuotaNotFound`.
        """
        answer: Quota = self._wait(self._thing.describe, quota, namespace=namespace)
        return answer

    def create(
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
        answer: CreatedQuota = self._wait(
            self._thing.create,
            name,
            max_requests_per_window=max_requests_per_window,
            window_seconds=window_seconds,
            max_concurrent=max_concurrent,
            namespace=namespace,
            by=by,
        )
        return answer

    def change(
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
        answer: ChangedQuota = self._wait(
            self._thing.change,
            quota,
            by=by,
            max_requests_per_window=max_requests_per_window,
            window_seconds=window_seconds,
            max_concurrent=max_concurrent,
            namespace=namespace,
        )
        return answer


class SyncSchedules(Sync):
    """Submissions by cron or interval.

    The sync version of `Schedules`.
    """

    __slots__ = ()
    _thing: Schedules

    def list(self, *, namespace: str | None = None, cursor: str | None = None, limit: int = 50) -> Page[Schedule]:
        """List schedules by namespace and name, each with its next five ticks.

        Raises `InvalidLimit`, `InvalidCursor`.
        """
        answer: Page[Schedule] = self._wait(self._thing.list, namespace=namespace, cursor=cursor, limit=limit)
        return answer

    def describe(self, name: str, *, namespace: str = "default") -> Schedule:
        """Describe a schedule, with its payload and its next five ticks. Raises `ScheduleNotFound`."""
        answer: Schedule = self._wait(self._thing.describe, name, namespace=namespace)
        return answer

    def create(
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
        answer: ScheduleChange = self._wait(self._thing.create, name, task, arguments, by=by, paused=paused, **timing)
        return answer

    def change(
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
        answer: ScheduleChange = self._wait(
            self._thing.change, name, task, arguments, by=by, namespace=namespace, **timing
        )
        return answer

    def pause(self, name: str, *, namespace: str = "default", by: str, reason: str | None = None) -> ScheduleChange:
        """Pause a schedule; executions it has submitted continue, and ticks that pass in the meantime are not caught
        up.

        Safe to repeat: a paused schedule answers `NOOP`. Raises `ScheduleNotFound`, `InvalidBody`.
        """
        answer: ScheduleChange = self._wait(self._thing.pause, name, namespace=namespace, by=by, reason=reason)
        return answer

    def resume(self, name: str, *, namespace: str = "default", by: str, reason: str | None = None) -> ScheduleChange:
        """Resume a paused schedule at the first tick from now on.

        Safe to repeat: one that is not paused answers `NOOP`. Raises `ScheduleNotFound`, `InvalidBody`,
        `InvalidSchedule`.
        """
        answer: ScheduleChange = self._wait(self._thing.resume, name, namespace=namespace, by=by, reason=reason)
        return answer

    def delete(self, name: str, *, namespace: str = "default", by: str, reason: str | None = None) -> ScheduleChange:
        """Delete a schedule; executions it has submitted continue. Raises `ScheduleNotFound`, `InvalidBody`."""
        answer: ScheduleChange = self._wait(self._thing.delete, name, namespace=namespace, by=by, reason=reason)
        return answer

    def fire(self, name: str, *, namespace: str = "default", by: str) -> Fired:
        """Submit the execution of a schedule now, on request, even if it is paused. Its ticks are not affected.

        Raises `ScheduleNotFound`, `InvalidBody`, and what `submit` refuses.
        """
        answer: Fired = self._wait(self._thing.fire, name, namespace=namespace, by=by)
        return answer


class SyncSigningKeys(Sync):
    """The secrets that sign the tokens of waitpoints.

    The sync version of `SigningKeys`.
    """

    __slots__ = ()
    _thing: SigningKeys

    def list(self) -> builtins.list[Key]:
        """List the signing keys by kid, without their secrets."""
        answer: builtins.list[Key] = self._wait(self._thing.list)
        return answer

    def seed(self, kid: str, secret: str) -> Seeded:
        """Install the first signing key; safe to repeat.

        Raises `InvalidKid`, `InvalidSecret`, `AnotherKeyActive`, and `RotationConflict` for a kid that was retired.
        """
        answer: Seeded = self._wait(self._thing.seed, kid, secret)
        return answer

    def rotate(self, kid: str, secret: str, *, grace: str | timedelta = DAY, by: str | None = None) -> Rotated:
        """Make a new key the active one; the previous key verifies until the grace period ends.

        Safe to repeat. Raises `InvalidKid`, `InvalidSecret`, `InvalidGrace`, `RotationConflict`.
        """
        answer: Rotated = self._wait(self._thing.rotate, kid, secret, grace=grace, by=by)
        return answer


class SyncWaitpoints(Sync):
    """What executions wait for, and the signals that end the waits.

    The sync version of `Waitpoints`.
    """

    __slots__ = ()
    _thing: Waitpoints

    def list_suspended(
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
        answer: Page[SuspendedExecution] = self._wait(
            self._thing.list_suspended,
            namespace=namespace,
            lane=lane,
            reason_code=reason_code,
            cursor=cursor,
            limit=limit,
        )
        return answer

    def list_waits(self, execution_id: str | ExecutionId) -> builtins.list[SuspendedExecution]:
        """List the waits of one execution that are open now. Raises `ExecutionNotFound`."""
        answer: builtins.list[SuspendedExecution] = self._wait(self._thing.list_waits, execution_id)
        return answer

    def list(
        self, execution_id: str | ExecutionId, *, state: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Waitpoint]:
        """List the waitpoints of an execution, oldest first; with `state`, only those in that state.

        Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`, `InvalidBody`.
        """
        answer: Page[Waitpoint] = self._wait(self._thing.list, execution_id, state=state, cursor=cursor, limit=limit)
        return answer

    def signal(
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
        answer: Delivered = self._wait(
            self._thing.signal, execution_id, waitpoint, payload, token=token, name=name, source=source
        )
        return answer


class SyncWorkers(Sync):
    """The worker processes that are live, and their tasks.

    The sync version of `Workers`.
    """

    __slots__ = ()
    _thing: Workers

    def list(
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
        answer: Page[Worker] = self._wait(
            self._thing.list, namespace=namespace, lane=lane, expired=expired, cursor=cursor, limit=limit
        )
        return answer

    def describe(self, instance: str) -> WorkerDescription | None:
        """Describe a live instance, with all its tasks and the schemas of their arguments; `None` if there is none."""
        answer: WorkerDescription | None = self._wait(self._thing.describe, instance)
        return answer

    def mark_dead(self, instance: str, *, by: str, reason: str | None = None) -> MarkedDead:
        """Declare an instance dead: remove it and revoke every lease it holds.

        Raises `InvalidWorker`, `InvalidBody`.
        """
        answer: MarkedDead = self._wait(self._thing.mark_dead, instance, by=by, reason=reason)
        return answer

    def list_tasks(
        self, *, namespace: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[ListedTask]:
        """List the tasks that live workers have or that have unfinished executions, by name.

        Each has its versions, with the number of workers that have the version and of executions that have started
        under it. Counts stop at 10,001. Raises `InvalidLimit`.
        """
        answer: Page[ListedTask] = self._wait(self._thing.list_tasks, namespace=namespace, cursor=cursor, limit=limit)
        return answer

    def describe_task(self, task: str, *, namespace: str | None = None) -> ListedTask | None:
        """Describe a task, with the instances of each version; `None` if no live worker has it and no work is left."""
        answer: ListedTask | None = self._wait(self._thing.describe_task, task, namespace=namespace)
        return answer
