"""`ff migrate`: what it applies, and when it fails."""

import asyncio
from pathlib import Path

import asyncpg
import msgspec

from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate
from tests.cli.conftest import Answer, Run

NAMES = [step.name for step in migrate.migrations()]
LAST = migrate.last_migration()


async def test_it_prints_what_it_applied_and_then_that_the_database_is_up_to_date(here: Run, empty_url: str) -> None:
    applied = "".join(f"applied {name}\n" for name in NAMES)

    assert await here("migrate --url", empty_url) == Answer(0, applied, "")
    assert await here("migrate --url", empty_url) == Answer(0, f"up to date at migration {LAST}\n", "")
    assert await here("migrate --check --url", empty_url) == Answer(0, f"up to date at migration {LAST}\n", "")


async def test_it_prints_json(here: Run, empty_url: str) -> None:
    first = await here("migrate --json --url", empty_url)
    again = await here("migrate --check --json --url", empty_url)

    assert msgspec.json.decode(first.out) == {"applied": NAMES, "last_migration": LAST}
    assert msgspec.json.decode(again.out) == {"applied": [], "last_migration": LAST}


async def test_check_fails_on_a_database_that_is_not_migrated_and_changes_nothing(here: Run, empty_url: str) -> None:
    code, out, err = await here("migrate --check --url", empty_url)

    assert (code, out) == (1, "")
    assert err.startswith("schema_behind: ")
    assert "ff migrate" in err
    conn = await asyncpg.connect(empty_url)
    assert await conn.fetchval("select to_regnamespace('flowfabric')") is None
    await conn.close()


async def test_check_fails_on_functions_of_another_version(here: Run, database_url: str, conn: Connection) -> None:
    await conn.execute("update flowfabric.release set digest = 'other'")

    answer = await here("migrate --check --json --url", database_url)

    assert (answer.code, answer.error["error"]) == (1, "schema_behind")


async def test_other_partition_counts_are_refused(ff: Run, database_url: str) -> None:
    answer = await ff("migrate", "--json", FLOWFABRIC_URL=database_url, FLOWFABRIC_QUOTA_PARTITIONS="7")

    assert (answer.code, answer.out, answer.error["error"]) == (1, "", "partition_count_mismatch")
    assert "quota_partitions" in answer.error["message"]


async def test_without_a_url_it_migrates_the_embedded_postgres(ff: Run, tmp_path: Path) -> None:
    assert (await ff("migrate")).out.startswith("applied 0001_initial.sql\n")

    assert await asyncio.to_thread((tmp_path / ".flowfabric" / "cluster").is_dir)
    assert (await ff("migrate", "--check")).code == 0


async def test_it_gives_up_when_another_migration_runs_for_longer_than_its_patience(
    ff: Run, database_url: str, conn: Connection
) -> None:
    await conn.fetch("select pg_advisory_lock(17990, 2)")

    answer = await ff("migrate", "--patience", "10ms", "--json", FLOWFABRIC_URL=database_url)

    assert (answer.code, answer.error["error"]) == (1, "migration_blocked")
    assert len(answer.error["holders"]) == 1
