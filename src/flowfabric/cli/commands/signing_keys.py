"""`ff signing-keys`: the keys that sign tokens and grants. Secrets are never printed, nor taken from arguments."""

import secrets
from datetime import timedelta
from typing import BinaryIO

import click

from flowfabric.app import App
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.options import ReadFile, by_option, duration
from flowfabric.cli.output import prints
from flowfabric.model import Key, Page, Rotated, Seeded

SEEDED = {
    None: "installed",
    True: "already installed, with the same secret",
    False: "already installed, with a different secret; nothing was changed",
}


def _read_secret(_ctx: click.Context, _param: click.Parameter, file: BinaryIO | None) -> str:
    """The content of the file, or a new secret. Bytes that are not text become an invalid secret, which is refused."""
    return secrets.token_hex(32) if file is None else file.read(1_000).decode(errors="replace").strip()


secret_option = click.option("--secret-file", "secret", type=ReadFile(), callback=_read_secret,
                             help="File with the secret as 64 hexadecimal digits; - is standard input.  "
                             "[default: a new random secret]")  # fmt: skip


@click.group("signing-keys", cls=CommandGroup)
def signing_keys() -> None:
    """List, seed and rotate the keys that sign tokens and grants. Secrets are never printed."""


@signing_keys.command("list")
@prints("kid", "created=created_at", "expires=expires_at",
        empty="no signing keys; to install the first one: ff signing-keys seed KID")  # fmt: skip
async def list_keys(app: App) -> Page[Key]:
    """List the signing keys. The key without an expiry signs; the others only verify until they expire.

    \b
    Example:
      ff signing-keys list
    """
    return Page(await app.signing_keys.list())


@signing_keys.command("seed")
@click.argument("kid")
@secret_option
@prints(sentence=lambda done: f"signing key {done.kid}: {SEEDED[done.same_secret]}")
async def seed_key(app: App, kid: str, secret: str) -> Seeded:
    """Install the first signing key. `ff migrate` does this too; use `ff signing-keys rotate` for later keys.

    \b
    Example:
      ff signing-keys seed k1 --secret-file - < k1.secret
    """
    return await app.signing_keys.seed(kid, secret)


@signing_keys.command("rotate")
@click.argument("kid")
@secret_option
@click.option("--grace", type=duration, metavar="DURATION", default="1d", show_default=True,
              help="How long the old key still verifies tokens.")  # fmt: skip
@by_option
@prints("key=kid", "outcome", "replaces=previous_kid", "removed", "open waitpoints=open_waitpoints")
async def rotate_key(app: App, kid: str, secret: str, grace: timedelta, by: str) -> Rotated:
    """Sign with a new key from now on. Tokens signed by the old key stay valid until the grace period ends.

    \b
    Example:
      ff signing-keys rotate k2 --grace 2d
    """
    return await app.signing_keys.rotate(kid, secret, grace=grace, by=by)
