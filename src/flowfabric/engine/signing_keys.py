"""Signing keys: the secrets that sign tokens and grants. One key signs; older keys verify until they expire."""

from datetime import timedelta

import msgspec

from flowfabric import calls, signing
from flowfabric.ids import check_text, kept_text
from flowfabric.model import Key, Rotated, Seeded, Swept
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

DAY = timedelta(days=1)


async def seed_key(conn: Connection, kid: str, secret: str) -> Seeded:
    """Install the first signing key; safe to repeat.

    Raises `InvalidKid`, `InvalidSecret`, `AnotherKeyActive`, and `RotationConflict` for a kid that was retired.
    """
    answer = await call.row(conn, "seed_key", kid=kept_text(kid), secret=_hidden(secret))
    return msgspec.convert({**answer, "kid": kid}, Seeded)


async def rotate_key(
    conn: Connection, kid: str, secret: str, *, grace: timedelta = DAY, by: str | None = None
) -> Rotated:
    """Make a new key the active one; the previous key verifies until the grace period ends.

    Safe to repeat. Raises `InvalidKid`, `InvalidSecret`, `InvalidGrace`, `RotationConflict`.
    """
    answer = await call.row(
        conn,
        "rotate_key",
        kid=kept_text(kid),
        secret=_hidden(secret),
        grace_ms=calls.span(grace, "grace"),
        by=by and check_text(by, "by"),
    )
    return msgspec.convert({**answer, "kid": kid}, Rotated)


async def list_keys(conn: Connection) -> list[Key]:
    """List the signing keys by kid, without their secrets."""
    return [msgspec.convert(dict(row), Key) for row in await call.rows(conn, "list_keys")]


async def retire_signing_keys(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Remove keys that expired at least seven days ago."""
    return await calls.sweep(conn, "retire_signing_keys", limit, passing)


def _hidden(secret: object) -> str:
    """The secret to send. Other values are sent as an empty text, so that no error message contains them."""
    return secret if isinstance(secret, str) and signing.is_secret(secret) else ""
