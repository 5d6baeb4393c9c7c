"""The group of all commands, and the one place where a refusal becomes a line and an exit code."""

import click

from flowfabric.cli.budgets import budgets
from flowfabric.cli.completion import completion
from flowfabric.cli.dev import dev
from flowfabric.cli.doctor import doctor
from flowfabric.cli.events import events
from flowfabric.cli.executions import executions
from flowfabric.cli.flows import flows
from flowfabric.cli.keys import keys
from flowfabric.cli.lanes import lanes
from flowfabric.cli.migrate import migrate
from flowfabric.cli.quotas import quotas
from flowfabric.cli.refusals import Refused, refused
from flowfabric.cli.schedules import schedules
from flowfabric.cli.submit import submit
from flowfabric.cli.sweep import sweep
from flowfabric.cli.top import top
from flowfabric.cli.waitpoints import waitpoints
from flowfabric.cli.worker import worker
from flowfabric.cli.workers import workers
from flowfabric.errors import BadSetting, FlowFabricError

INTERRUPTED = 130


class Group(click.Group):
    """Commands that raise what the operations raise."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except FlowFabricError as refusal:
            raise refused(refusal) from refusal
        except BadSetting as bad:
            raise Refused("bad_setting", str(bad)) from bad
        except click.UsageError as misunderstood:
            raise _shortened(misunderstood) from misunderstood
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        _summarise(cmd)


def _shortened(error: click.UsageError) -> click.UsageError:
    """The same without the middle of a very long message, which is a value of the caller's."""
    message = error.format_message()
    return error if len(message) <= 800 else click.UsageError(f"{message[:200]} … {message[-400:]}", error.ctx)


def _summarise(command: click.Command) -> None:
    """List a command, and those below it, with its whole first sentence: click cuts off what is longer than a line."""
    said = " ".join((command.help or "").partition("\n\n")[0].split())
    command.short_help = said.partition(". ")[0].rstrip(".") + "."
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        _summarise(each)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flowfabric", prog_name="ff")
def ff() -> None:
    """FlowFabric: durable execution on Postgres.

    FLOWFABRIC_URL, or --url behind a command, says where Postgres is. Without it an embedded one is used, with its data
    under ./.flowfabric.

    Every command answers in JSON with --json. It ends with 0, with 1 when it is refused, and with 2 when it is not
    understood; what is refused, and why, goes to standard error.
    """


ff.add_command(budgets)
ff.add_command(completion)
ff.add_command(dev)
ff.add_command(doctor)
ff.add_command(events)
ff.add_command(executions)
ff.add_command(flows)
ff.add_command(keys)
ff.add_command(lanes)
ff.add_command(migrate)
ff.add_command(quotas)
ff.add_command(schedules)
ff.add_command(submit)
ff.add_command(sweep)
ff.add_command(top)
ff.add_command(waitpoints)
ff.add_command(worker)
ff.add_command(workers)
