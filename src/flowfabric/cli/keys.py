"""`ff keys`: the secrets that sign tokens and grants. None is ever shown, or taken from the command line."""

import secrets
from datetime import timedelta
from typing import BinaryIO

import click

from flowfabric.app import App
from flowfabric.cli.answers import answering
from flowfabric.cli.options import ReadFile, acting, span
from flowfabric.engine import signing_keys as engine
from flowfabric.model import Key, Page, Rotated, Seeded


def _read_secret(_ctx: click.Context, _param: click.Parameter, file: BinaryIO | None) -> str:
    """What the file holds, or a new one; what is not a text cannot be a secret, and is refused as such."""
    return secrets.token_hex(32) if file is None else file.read(1_000).decode(errors="replace").strip()


the_secret = click.option("--secret-file", "secret", type=ReadFile(), callback=_read_secret,
                          help="Where the secret stands, 64 hexadecimal digits; - is standard input.  "
                          "[default: a new random one]")  # fmt: skip


@click.group()
def keys() -> None:
    """The secrets that sign tokens and grants. None is ever shown."""


@keys.command("list")
@answering("kid", "created=created_at", "expires=expires_at", none="no keys; `ff keys seed KID` installs the first")
async def list_keys(app: App) -> Page[Key]:
    """List the keys by name; the one without an expiry signs, the others verify until theirs.

    \b
    Example:
      ff keys list
    """
    async with app.database.connection() as conn:
        return Page(await engine.list_keys(conn))


@keys.command("seed")
@click.argument("kid")
@the_secret
@answering(says=lambda done: f"key {done.kid}: {done.outcome}{_same(done.same_secret)}")
async def seed_key(app: App, kid: str, secret: str) -> Seeded:
    """Install the first key. A migration does so too; a later one is installed by `ff keys rotate`.

    \b
    Example:
      ff keys seed k1 --secret-file - < k1.secret
    """
    async with app.database.connection() as conn:
        return await engine.seed_key(conn, kid, secret)


@keys.command("rotate")
@click.argument("kid")
@the_secret
@click.option(
    "--grace", type=span, metavar="SPAN", default="1d", show_default=True, help="How long the old key still verifies."
)
@acting
@answering("key=kid", "outcome", "instead of=previous_kid", "retired=removed", "open waitpoints=open_waitpoints")
async def rotate_key(app: App, kid: str, secret: str, grace: timedelta, by: str) -> Rotated:
    """Sign with a new key from now on. What the old one signed is good until the grace is over.

    \b
    Example:
      ff keys rotate k2 --grace 2d
    """
    async with app.database.connection() as conn:
        return await engine.rotate_key(conn, kid, secret, grace=grace, by=by)


def _same(same_secret: bool | None) -> str:
    return {None: "", True: ", with the same secret", False: ", with another secret, which stays"}[same_secret]
