"""`ff migrate`: bring the database to this version."""

import click

from flowfabric.cli.answers import answer, as_json, asynchronous, at_url
from flowfabric.cli.connecting import refuse_missing
from flowfabric.cli.tables import waiting
from flowfabric.config import Config
from flowfabric.postgres.database import open_database
from flowfabric.schema.migrate import check as check_version
from flowfabric.schema.migrate import last_migration
from flowfabric.schema.migrate import migrate as bring_up


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if there is something to do.")
@at_url
@as_json
@asynchronous
async def migrate(check: bool, url: str | None, as_json: bool) -> None:
    """Bring the database to this version. Safe to repeat, and while workers run.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff migrate
    """
    config = Config.read(url=url)
    if check:
        refuse_missing(config)
    with waiting("migrating"):
        async with open_database(config) as database, database.connection() as conn:
            applied = await (check_version(conn, config) if check else bring_up(conn, config)) or []
    lines = [f"applied {migration.name}" for migration in applied] or [f"up to date at migration {last_migration()}"]
    answer(
        "\n".join(lines),
        {"applied": [migration.name for migration in applied], "last_migration": last_migration()},
        as_json=as_json,
    )
