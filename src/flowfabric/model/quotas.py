"""Quotas: how often, and how many at once."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec


class CreatedQuota(msgspec.Struct, frozen=True, kw_only=True):
    """A quota that is there now, whoever made it."""

    outcome: Literal["created", "exists"]
    quota_id: UUID


class ChangedQuota(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did: the lanes that may have work again because of it."""

    outcome: Literal["changed"] = "changed"
    lanes: Sequence[str] = ()


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A quota and how much of it is used."""

    quota_id: UUID
    namespace: str
    name: str
    created_at: datetime
    window_seconds: int
    max_requests_per_window: int | None = None
    max_concurrent: int | None = None
    in_window: int
    """How many attempts were admitted within the window that ends now."""
    held_count: int
    """How many executions run, or are granted."""
    room: int
    """How many more a claim would be given now."""
    next_room_at: datetime | None = None
    """When a full window has room again; none while a slot is what lacks."""
