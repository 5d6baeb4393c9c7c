"""`ff doctor`: find problems and say what to do about them."""

from datetime import timedelta

import click
import msgspec
from rich.table import Table
from rich.text import Text

from flowfabric.cli import tables
from flowfabric.cli.connection import require_database
from flowfabric.cli.formatting import printable
from flowfabric.cli.options import duration, json_option, url_option
from flowfabric.cli.output import print_result, run_async
from flowfabric.config import Config
from flowfabric.doctor import diagnose
from flowfabric.model import Diagnosis, Finding, Level
from flowfabric.postgres.database import open_database

STYLES = {Level.WRONG: "bold red", Level.ADVICE: "yellow"}


@click.command()
@click.option("--longest-transaction", type=duration, metavar="DURATION", default="1m", show_default=True,
              help="Report transactions that have been open for longer than this.")  # fmt: skip
@url_option
@json_option
@run_async
async def doctor(longest_transaction: timedelta, url: str | None, as_json: bool) -> None:
    """Check the server, the schema and the queued work, and say what to do about each problem. Changes nothing.

    The exit code is 1 if something is wrong, and 0 if there is only advice.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff doctor
    """
    config = Config.read(url=url)
    require_database(config)
    # Connect as if through a pooler: one that nobody configured is then reported, and does not break the connection.
    careful = msgspec.structs.replace(config, pooler=True, pool_size=1)
    async with open_database(careful) as database, database.connection() as conn:
        found = await diagnose(conn, config, longest=longest_transaction)
    print_result(_report, found, as_json=as_json)
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
    made.add_row(Text("  fix", style="bold"), Text(printable(finding.remedy)))
    return tables.rendered(made)


def _summary(found: Diagnosis) -> str:
    advice = len(found.findings) - found.wrong_count
    verdict = "no problems" if not found.findings else f"{found.wrong_count} wrong, {advice} advice"
    return f"{len(found.checks)} checks: {verdict}"
