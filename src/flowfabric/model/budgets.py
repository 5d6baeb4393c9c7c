"""Budgets: how much may be spent, and what was."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from flowfabric.model.claims import Fence


class CreatedBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that is there now, whoever made it."""

    outcome: Literal["created", "exists"]
    budget_id: UUID


class ChangedBudget(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did: the lanes that may have work again because of it."""

    outcome: Literal["changed"] = "changed"
    lanes: Sequence[str] = ()


class ResetBudget(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset did: when the next one is due, and the lanes that may have work again."""

    outcome: Literal["reset"] = "reset"
    next_reset_at: datetime | None = None
    lanes: Sequence[str] = ()


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """The last time something did not fit under a hard limit."""

    at: datetime
    dimension: str


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget as it counts now: a due reset is done, reservations that have lapsed are gone."""

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
    """Dimensions of which nothing is used are left out; so it is with `reserved` and `overrun`."""
    reserved: Mapping[str, int]
    overrun: Mapping[str, int]
    """What was spent beyond an estimate and did not fit under the limit."""
    is_full: bool
    """Whether it keeps work waiting: strict, with nothing left in some dimension."""
    breach_count: int
    soft_breach_count: int
    waiting_count: int
    """How many executions it has suspended; 10 001 stands for more than 10 000."""
    last_breach: Breach | None = None
    next_reset_at: datetime | None = None
    reset_interval_ms: int | None = None
    scope_type: str | None = None
    scope_id: str | None = None


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was used, to be counted in all its dimensions or in none."""

    budget: str
    """Its name, or its id."""
    amounts: Mapping[str, int]
    namespace: str = "default"
    fence: Fence | None = None
    """Whose usage it is: it goes into the ledger of that execution."""
    dedup_key: str | None = None
    """Within a day, a second report with this key on this budget counts nothing."""
    step: tuple[str, int] | None = None
    """Name and occurrence of its place in the journal: the report counts once however often the handler runs."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a report; at a breach with the dimension and its figures."""

    outcome: Literal["ok", "soft_breach", "hard_breach", "already_applied"]
    dimension: str | None = None
    used: int | None = None
    reserved: int | None = None
    soft_limit: int | None = None
    hard_limit: int | None = None
    action: Literal["refuse", "fail", "cancel", "suspend"] | None = None
    """What a hard breach did to the execution; `refuse` did nothing."""


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a reservation; at a hard breach there is none."""

    outcome: Literal["reserved", "soft_breach", "hard_breach", "already_applied"]
    reservation_id: UUID | None = None
    expires_at: datetime | None = None
    dimension: str | None = None
    used: int | None = None
    reserved: int | None = None
    soft_limit: int | None = None
    hard_limit: int | None = None
    action: Literal["refuse", "fail", "cancel", "suspend"] | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a settlement; `already_applied` has the figures of the first one, and `first`, how that went."""

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
    """Where there may be work again, because less was spent than was set aside."""


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """What came back; nothing, when there was nothing to give back."""

    outcome: Literal["released", "noop"]
    amounts: Mapping[str, int] = {}
    lanes: Sequence[str] = ()


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution has spent of a budget in one of its periods, which resets number from 1."""

    budget_id: UUID
    name: str
    period: int
    spent: Mapping[str, int]
