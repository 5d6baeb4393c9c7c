"""The root command `ff`: registers every command, and turns errors into a line and an exit code."""

import click

from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.commands.budgets import budgets
from flowfabric.cli.commands.completion import completion
from flowfabric.cli.commands.dev import dev
from flowfabric.cli.commands.doctor import doctor
from flowfabric.cli.commands.events import events
from flowfabric.cli.commands.executions import executions
from flowfabric.cli.commands.flows import flows
from flowfabric.cli.commands.lanes import lanes
from flowfabric.cli.commands.migrate import migrate
from flowfabric.cli.commands.quotas import quotas
from flowfabric.cli.commands.schedules import schedules
from flowfabric.cli.commands.serve import serve
from flowfabric.cli.commands.signing_keys import signing_keys
from flowfabric.cli.commands.submit import submit
from flowfabric.cli.commands.sweep import sweep
from flowfabric.cli.commands.tasks import tasks
from flowfabric.cli.commands.top import top
from flowfabric.cli.commands.waitpoints import waitpoints
from flowfabric.cli.commands.worker import worker
from flowfabric.cli.commands.workers import workers
from flowfabric.cli.errors import command_error
from flowfabric.errors import FlowFabricError

INTERRUPTED = 130
COMMANDS = (
    budgets, completion, dev, doctor, events, executions, flows, lanes, migrate, quotas, schedules, serve,
    signing_keys, submit, sweep, tasks, top, waitpoints, worker, workers,
)  # fmt: skip


class Root(CommandGroup):
    """The one place that catches errors: commands raise whatever the engine raises."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except FlowFabricError as error:
            raise command_error(error) from error
        except click.UsageError as error:
            raise _shortened(error) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


def _shortened(error: click.UsageError) -> click.UsageError:
    """Cut the middle out of a very long message: it repeats a value that the caller gave."""
    message = error.format_message()
    return error if len(message) <= 800 else click.UsageError(f"{message[:200]} … {message[-400:]}", error.ctx)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flowfabric", prog_name="ff")
def ff() -> None:
    """FlowFabric: durable execution on Postgres.

    FLOWFABRIC_URL, or --url after a command, is the URL of your Postgres. Without it, ff uses an embedded Postgres with
    its data in ./.flowfabric.

    Every command prints JSON with --json. Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted by ctrl-c.
    Errors go to standard error.
    """


for command in COMMANDS:
    ff.add_command(command)
