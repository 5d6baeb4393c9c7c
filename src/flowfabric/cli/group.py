"""The group of all commands, and the one place where a refusal becomes a line and an exit code."""

from typing import IO, Any

import click

from flowfabric.cli.dev import dev
from flowfabric.cli.migrate import migrate
from flowfabric.cli.sweep import sweep
from flowfabric.cli.worker import worker
from flowfabric.config import BadSetting
from flowfabric.errors import Refusal


class Refused(click.ClickException):
    """Ends the command with `code: message` and exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, file, err=file is None)


class Group(click.Group):
    """Commands that raise what the operations raise."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except Refusal as refusal:
            raise Refused(str(refusal)) from refusal
        except BadSetting as bad:
            raise Refused(f"bad_setting: {bad}") from bad


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flowfabric", prog_name="ff")
def ff() -> None:
    """FlowFabric: durable execution on Postgres.

    FLOWFABRIC_URL says where Postgres is. Without it an embedded one is used, with its data under ./.flowfabric.
    """


ff.add_command(dev)
ff.add_command(migrate)
ff.add_command(sweep)
ff.add_command(worker)
