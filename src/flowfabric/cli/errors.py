"""How a command fails: `code: message` and a remedy on standard error, or JSON with `--json`, and exit code 1."""

from collections.abc import Mapping
from typing import IO, Any

import click

from flowfabric.cli import formatting
from flowfabric.cli.remedies import remedy_for
from flowfabric.errors import FlowFabricError

# Keys of `click.Context.meta`, which all commands of one call share.
JSON = "flowfabric.cli.json"
FAILED = "flowfabric.cli.failed"


class CommandError(click.ClickException):
    """Ends the command with exit code 1. Every error except wrong usage is turned into this one."""

    def __init__(self, code: str, message: str, fields: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.fields = fields or {}
        context = click.get_current_context(silent=True)  # read now: click has closed it when it prints the error
        self._as_json = context is not None and context.meta.get(JSON, False)

    def format_message(self) -> str:
        """As text: a line, and below it the remedy. As JSON: one document."""
        remedy = remedy_for(self.code, self.fields)
        if self._as_json:
            document = {"error": self.code, "message": self.message, **({"remedy": remedy} if remedy else {})}
            return formatting.json({**document, **self.fields})
        line = formatting.printable(f"{self.code}: {self.message}", lines=True)
        return f"{line}\n  {remedy}" if remedy else line

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.format_message(), file, err=file is None)

    def report(self) -> None:
        """Print the error of one item among many. The command continues with the others and exits with 1."""
        self.show()
        click.get_current_context().meta[FAILED] = True


def command_error(error: FlowFabricError, **fields: object) -> CommandError:
    """An error of the engine, as the command prints it."""
    return CommandError(error.code, error.message, {**error.fields, **fields})
