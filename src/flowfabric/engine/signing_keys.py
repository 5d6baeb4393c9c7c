"""Keys: the secrets that sign tokens and grants. One signs, the others verify until their time is over."""

from datetime import timedelta

import msgspec

from flowfabric import calls, signing
from flowfabric.ids import check_text, kept_text
from flowfabric.model import Key, Rotated, Seeded, Swept
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

DAY = timedelta(days=1)


async def seed_key(conn: Connection, kid: str, secret: str) -> Seeded:
    """Install the first key; safe to repeat.

    Raises `InvalidKid`, `InvalidSecret`, `AnotherKeyActive`, and `RotationConflict` for a kid that was retired.
    """
    answer = await call.row(conn, "seed_key", kid=kept_text(kid), secret=_hidden(secret))
    return msgspec.convert({**answer, "kid": kid}, Seeded)


async def rotate_key(
    conn: Connection, kid: str, secret: str, *, grace: timedelta = DAY, by: str | None = None
) -> Rotated:
    """Sign with a new key from now on; the old one verifies until the grace is over, and not a moment longer.

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
    """The keys there are, by name; never a secret."""
    return [msgspec.convert(dict(row), Key) for row in await call.rows(conn, "list_keys")]


async def retire_signing_keys(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Forget keys that expired seven days ago or earlier."""
    return await calls.sweep(conn, "retire_signing_keys", limit, passing)


def _hidden(secret: object) -> str:
    """A secret as it is sent. What cannot be one is sent as nothing, so that no message can hold it."""
    return secret if isinstance(secret, str) and signing.is_secret(secret) else ""
