"""Budgets: spending limits and usage."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from flowfabric.ids import ExecutionId
from flowfabric.model.claims import Fence


class CreatedBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `create_budget`: a new budget, or the existing one."""

    outcome: Literal["created", "exists"]
    budget_id: UUID


class ChangedBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `change_budget`, with the lanes that may have claimable work again."""

    outcome: Literal["changed"] = "changed"
    lanes: Sequence[str] = ()


class ResetBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `reset_budget`: the time of the next reset, and the lanes that may have claimable work again."""

    outcome: Literal["reset"] = "reset"
    next_reset_at: datetime | None = None
    lanes: Sequence[str] = ()


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """The last time an amount did not fit under a hard limit."""

    at: datetime
    dimension: str


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget in its effective state: a due reset is applied, expired reservations are subtracted."""

    budget_id: UUID
    namespace: str
    name: str
    created_at: datetime
    hard_limits: Mapping[str, int]
    soft_limits: Mapping[str, int]
    mode: str
    on_hard_limit: str
    on_soft_limit: str
    used: Mapping[str, int]
    """Without zero amounts, as `reserved` and `overrun`."""
    reserved: Mapping[str, int]
    overrun: Mapping[str, int]
    """Amounts spent beyond an estimate that did not fit under the limit."""
    is_full: bool
    """Whether it blocks claims: it is strict and a limited dimension is exhausted."""
    breach_count: int
    soft_breach_count: int
    waiting_count: int
    """The number of executions it has suspended; 10,001 means more than 10,000."""
    last_breach: Breach | None = None
    next_reset_at: datetime | None = None
    reset_interval_ms: int | None = None
    scope_type: str | None = None
    scope_id: str | None = None


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Used amounts, counted in all dimensions or in none."""

    budget: str
    """The name or id of the budget."""
    amounts: Mapping[str, int]
    namespace: str = "default"
    fence: Fence | None = None
    """The claim of the execution that used the amounts; they are added to its ledger."""
    dedup_key: str | None = None
    """Within a day, a second report with this key on this budget is not counted."""
    step: tuple[str, int] | None = None
    """Name and occurrence of a step in the journal: the report counts once, however often the handler runs."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a usage report; after a breach with the dimension and its figures."""

    outcome: Literal["ok", "soft_breach", "hard_breach", "already_applied"]
    dimension: str | None = None
    used: int | None = None
    reserved: int | None = None
    soft_limit: int | None = None
    hard_limit: int | None = None
    action: Literal["refuse", "fail", "cancel", "suspend"] | None = None
    """What a hard breach did to the execution; `refuse` leaves it running."""
    ended: Sequence[ExecutionId] = ()
    """Members of its flow that were skipped or cancelled because a hard breach ended the execution."""


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `reserve`; a hard breach makes no reservation."""

    outcome: Literal["reserved", "soft_breach", "hard_breach", "already_applied"]
    reservation_id: UUID | None = None
    expires_at: datetime | None = None
    dimension: str | None = None
    used: int | None = None
    reserved: int | None = None
    soft_limit: int | None = None
    hard_limit: int | None = None
    action: Literal["refuse", "fail", "cancel", "suspend"] | None = None
    ended: Sequence[ExecutionId] = ()
    """Members of its flow that were skipped or cancelled because a hard breach ended the execution."""


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `settle`; `already_applied` has the figures of the first call, and its outcome in `first`."""

    outcome: Literal["settled", "soft_breach", "hard_breach", "already_applied"]
    first: Literal["settled", "soft_breach", "hard_breach"] | None = None
    dimension: str | None = None
    used: int | None = None
    reserved: int | None = None
    soft_limit: int | None = None
    hard_limit: int | None = None
    overrun: Mapping[str, int] = {}
    action: Literal["refuse", "fail", "cancel", "suspend"] | None = None
    lanes: Sequence[str] = ()
    """The lanes that may have claimable work again, because less was spent than reserved."""
    ended: Sequence[ExecutionId] = ()
    """Members of its flow that were skipped or cancelled because a hard breach ended the execution."""


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The released amounts; empty for `noop`."""

    outcome: Literal["released", "noop"]
    amounts: Mapping[str, int] = {}
    lanes: Sequence[str] = ()


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution has spent of a budget in one period; each reset starts the next period, from 1."""

    budget_id: UUID
    name: str
    period: int
    spent: Mapping[str, int]
