"""Opening the database of the settings."""

from pathlib import Path

import pytest

from flowfabric.cli import connection
from flowfabric.config import Config
from flowfabric.errors import DatabaseMissing, DatabaseUnavailable
from flowfabric.postgres import call
from flowfabric.postgres.database import open_database


async def test_a_url_names_the_database(database_url: str) -> None:
    async with open_database(Config(url=database_url)) as database:
        assert await database.run(lambda conn: call.value(conn, "clock")) is not None


async def test_without_a_url_the_embedded_postgres_runs_as_long_as_it_is_open(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def fail_while_open() -> None:
        async with open_database(Config(data=data)) as database, database.connection() as conn:
            assert (await conn.fetch("select 1 as one"))[0]["one"] == 1
            raise KeyError("something else went wrong")

    with pytest.raises(KeyError):
        await fail_while_open()
    assert not (data / "cluster" / "postmaster.pid").exists()


def test_a_command_that_only_reads_creates_no_embedded_database(tmp_path: Path) -> None:
    with pytest.raises(DatabaseMissing, match=str(tmp_path / "data")):
        connection.require_database(Config(data=tmp_path / "data"))

    assert not (tmp_path / "data").exists()


async def test_a_missing_database_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable):
        await open_database(Config(url="postgresql://127.0.0.1:1/x", data=tmp_path / "data")).__aenter__()

    assert not (tmp_path / "data").exists()
