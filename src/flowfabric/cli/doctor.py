"""`ff doctor`: say what is wrong, what it means and what to do."""

from datetime import timedelta

import click
import msgspec
from rich.table import Table
from rich.text import Text

from flowfabric.cli import tables
from flowfabric.cli.answers import answer, as_json, asynchronous, at_url
from flowfabric.cli.connecting import refuse_missing
from flowfabric.cli.options import span
from flowfabric.cli.texts import printable
from flowfabric.config import Config
from flowfabric.doctor import diagnose
from flowfabric.model import Diagnosis, Finding, Level
from flowfabric.postgres.database import open_database

STYLES = {Level.WRONG: "bold red", Level.ADVICE: "yellow"}


@click.command()
@click.option("--longest-transaction", type=span, metavar="SPAN", default="1m", show_default=True,
              help="How long a transaction may stay open before it is reported.")  # fmt: skip
@at_url
@as_json
@asynchronous
async def doctor(longest_transaction: timedelta, url: str | None, as_json: bool) -> None:
    """Look at the server, the schema and the work, and say what is wrong and what to do. Changes nothing.

    The exit code is 1 when something is wrong; advice alone leaves it at 0.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff doctor
    """
    config = Config.read(url=url)
    refuse_missing(config)
    # As if through a pooler, so that one that nobody mentioned is found and not stumbled over.
    careful = msgspec.structs.replace(config, pooler=True, pool_size=1)
    async with open_database(careful) as database, database.connection() as conn:
        found = await diagnose(conn, config, longest=longest_transaction)
    answer(_report, found, as_json=as_json)
    click.get_current_context().exit(int(found.wrong_count > 0))


def _report(found: Diagnosis) -> str:
    parts = [_block(finding) for finding in found.findings]
    return "\n\n".join([*parts, _summary(found)])


def _block(finding: Finding) -> str:
    about = finding.check if finding.subject is None else f"{finding.check}: {finding.subject}"
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True, min_width=max(map(len, Level)))
    made.add_column(overflow="fold")
    made.add_row(Text(finding.level, style=STYLES[finding.level]), Text(printable(about), style="bold"))
    for sentence in (finding.problem, finding.means):
        made.add_row("", Text(printable(sentence)))
    made.add_row(Text("  do", style="bold"), Text(printable(finding.remedy)))
    return tables.rendered(made)


def _summary(found: Diagnosis) -> str:
    advice = len(found.findings) - found.wrong_count
    verdict = "all is well" if not found.findings else f"{found.wrong_count} wrong, {advice} to think about"
    return f"{len(found.checks)} checks: {verdict}"
