"""`ff migrate`: migrate the database to this version."""

from datetime import timedelta

import click

from flowfabric.cli.connection import require_database
from flowfabric.cli.options import duration, json_option, url_option
from flowfabric.cli.output import print_result, run_async
from flowfabric.cli.tables import spinner
from flowfabric.config import Config
from flowfabric.postgres.database import MIGRATING, open_database
from flowfabric.schema.migrate import check as check_version
from flowfabric.schema.migrate import last_migration
from flowfabric.schema.migrate import migrate as migrate_database


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if the database has to be migrated.")
@click.option("--patience", type=duration, metavar="DURATION", default="1m", show_default=True,
              help="How long to try while open transactions lock what has to change.")  # fmt: skip
@url_option
@json_option
@run_async
async def migrate(check: bool, patience: timedelta, url: str | None, as_json: bool) -> None:
    """Migrate the database to this version. Safe to repeat, also while workers are running.

    If an open transaction has used a table that has to change, it tries again, and never makes other calls wait for
    longer than 1.5 s at a time. After the patience it exits with 1 and names the sessions; nothing has changed then.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff migrate
    """
    config = Config.read(url=url)
    if check:
        require_database(config)
    with spinner("migrating"):
        async with open_database(config) as database, database.own_connection(MIGRATING) as conn:
            done = check_version(conn, config) if check else migrate_database(conn, config, patience=patience)
            applied = await done or []
    lines = [f"applied {migration.name}" for migration in applied] or [f"up to date at migration {last_migration()}"]
    print_result(
        "\n".join(lines),
        {"applied": [migration.name for migration in applied], "last_migration": last_migration()},
        as_json=as_json,
    )
