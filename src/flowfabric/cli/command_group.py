"""Groups of commands: they suggest the right name for a mistyped one, and list each command with a whole sentence."""

from difflib import get_close_matches

import click

# What people type from habit, and what the command is called here.
SYNONYMS = {
    "approve": "waitpoints",
    "approvals": "waitpoints",
    "beat": "schedules",
    "cron": "schedules",
    "get": "describe",
    "health": "doctor",
    "inspect": "describe",
    "jobs": "executions",
    "keys": "signing-keys",
    "kill": "cancel",
    "logs": "events",
    "ls": "list",
    "ps": "top",
    "queues": "lanes",
    "register": "configure",
    "remove": "delete",
    "rerun": "replay",
    "retry": "replay",
    "rm": "delete",
    "runs": "executions",
    "show": "describe",
    "signal": "waitpoints",
    "status": "explain",
    "stop": "pause",
    "tasks": "executions",
    "terminate": "cancel",
    "update": "change",
}


class CommandGroup(click.Group):
    """A group of commands, such as `ff lanes`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            raise click.UsageError(f"No such command '{name}'.{self._suggestion(name)}", ctx)
        return super().resolve_command(ctx, args)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        _summarise(cmd)

    def _suggestion(self, name: str) -> str:
        meant = SYNONYMS.get(name)
        found = [meant] if meant in self.commands else get_close_matches(name, self.commands)
        return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""


def _summarise(command: click.Command) -> None:
    """List a command with its whole first sentence: click cuts off a sentence that is longer than a line."""
    sentence = " ".join((command.help or "").partition("\n\n")[0].split())
    command.short_help = sentence.partition(". ")[0].rstrip(".") + "."
