"""How a command refuses: `code: message` and, where a command would help, which; in JSON for programs; exit code 1."""

from collections.abc import Mapping
from typing import IO, Any

import click

from flowfabric.cli import texts
from flowfabric.errors import FlowFabricError

JSON = "flowfabric.cli.json"
FAILED = "flowfabric.cli.failed"

REMEDIES = {
    "another_key_active": "`ff keys rotate KID` replaces it",
    "approval_digest_mismatch": "`ff waitpoints show EXECUTION` shows what is asked now",
    "budget_already_exists": "`ff budgets change BUDGET` changes it",
    "budget_exhausted": "`ff budgets change BUDGET` raises it, `ff budgets reset BUDGET` begins anew",
    "budget_not_found": "`ff budgets list` shows those there are, `ff budgets create BUDGET` makes one",
    "cursor_expired": "`--cursor oldest` starts with the oldest that is kept",
    "execution_cancelled": "`ff executions replay EXECUTION` runs it again",
    "execution_ended": "`ff executions replay EXECUTION` runs it again",
    "execution_expired": "`ff executions replay EXECUTION` runs it again",
    "execution_failed": "`ff executions attempts EXECUTION` shows every try, `ff executions replay` runs it again",
    "execution_not_found": "`ff executions list` shows those there are",
    "execution_not_runnable": "`ff executions cancel EXECUTION` ends it",
    "execution_not_suspended": "`ff executions explain EXECUTION` says what it does instead",
    "execution_not_terminal": "`ff executions cancel EXECUTION` ends it",
    "flow_not_found": "`ff flows list` shows those there are",
    "invalid_token": "send the token that the execution was given for this waitpoint, whole",
    "lane_draining": "`ff lanes resume LANE` opens it",
    "lane_not_found": "`ff lanes list` shows those there are, `ff lanes register LANE` makes one",
    "no_active_key": "`ff keys rotate KID` installs one",
    "quota_already_exists": "`ff quotas change QUOTA` changes it",
    "quota_not_found": "`ff quotas list` shows those there are, `ff quotas create QUOTA` makes one",
    "schedule_already_exists": "`ff schedules change SCHEDULE` changes it",
    "schedule_not_found": "`ff schedules list` shows those there are",
    "target_not_signalable": "`ff executions show EXECUTION` says how it ended",
    "waitpoint_closed": "`ff waitpoints show EXECUTION` shows those that are open",
    "waitpoint_not_found": "`ff waitpoints show EXECUTION` shows those there are",
}


class Refused(click.ClickException):
    """Waiters the command with a refusal; every other kind is turned into this one."""

    def __init__(self, code: str, message: str, fields: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.fields = fields or {}
        context = click.get_current_context(silent=True)  # gone by the time it is shown
        self._as_json = context is not None and context.meta.get(JSON, False)

    def format_message(self) -> str:
        """In text, one line and what to do; in JSON, one document."""
        remedy = REMEDIES.get(self.code)
        if self._as_json:
            said = {"error": self.code, "message": self.message, **({"remedy": remedy} if remedy else {})}
            return texts.json({**said, **self.fields})
        line = texts.printable(f"{self.code}: {self.message}", lines=True)
        return f"{line}\n  {remedy}" if remedy else line

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.format_message(), file, err=file is None)

    def tell(self) -> None:
        """Say that one of many was refused; the command goes on with the others, and ends with 1."""
        self.show()
        click.get_current_context().meta[FAILED] = True


def refused(refusal: FlowFabricError, **fields: object) -> Refused:
    """What the engine refused, as the command says it."""
    return Refused(refusal.code, refusal.message, {**refusal.fields, **fields})
