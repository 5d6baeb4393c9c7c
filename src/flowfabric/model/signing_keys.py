"""Signing keys: they sign tokens and grants."""

from datetime import datetime
from typing import Literal

import msgspec


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A signing key, without its secret; the active one has no expiry."""

    kid: str
    created_at: datetime
    expires_at: datetime | None = None


class Seeded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `seed_key`; `same_secret` is set if the kid already exists."""

    outcome: Literal["seeded", "already_seeded"]
    kid: str
    same_secret: bool | None = None


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `rotate_key`, and how many open waitpoints still depend on older keys."""

    outcome: Literal["rotated", "noop"]
    kid: str
    previous_kid: str | None = None
    removed: int | None = None
    open_waitpoints: int | None = None
