"""Quotas: rate and concurrency limits."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec


class CreatedQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `create_quota`: a new quota, or the existing one."""

    outcome: Literal["created", "exists"]
    quota_id: UUID


class ChangedQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `change_quota`, with the lanes that may have claimable work again."""

    outcome: Literal["changed"] = "changed"
    lanes: Sequence[str] = ()


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A quota and its usage."""

    quota_id: UUID
    namespace: str
    name: str
    created_at: datetime
    window_seconds: int
    max_requests_per_window: int | None = None
    max_concurrent: int | None = None
    in_window: int
    """The number of attempts admitted in the current window."""
    held_count: int
    """The number of executions that are active or granted."""
    room: int
    """How many more executions a claim could get now."""
    next_room_at: datetime | None = None
    """When a full window has room again; `None` while slots are missing."""
