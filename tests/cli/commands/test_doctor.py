"""`ff doctor`: its report, its exit code, and that it creates nothing."""

import asyncio
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from flowfabric.postgres import embedded
from tests.cli.conftest import Run
from tests.cli.looks import Looks
from tests.conftest import Server
from tests.engine.stuck import everything_stuck
from tests.given import Given


async def test_snapshot_of_many_problems(look: Looks, given: Given, server: Server) -> None:
    if server.binaries is None:
        pytest.skip("another server has other settings, which the report would contain")
    await everything_stuck(given, later=timedelta(days=3), crew=False)

    await look("doctor", "", "--json")


async def test_the_embedded_server_has_no_problems(ff: Run) -> None:
    await ff("migrate")

    answer = await ff("doctor", "--json")

    assert (answer.code, answer.document["findings"], len(answer.document["checks"])) == (0, [], 21)


async def test_advice_alone_exits_with_0(ff: Run, tmp_path: Path) -> None:
    await ff("migrate")
    with await asyncio.to_thread(embedded.start, tmp_path / ".flowfabric") as server:
        conn = await asyncpg.connect(server.url())
        await conn.execute("alter database flowfabric set idle_in_transaction_session_timeout = 0")
        await conn.close()

        answer = await ff("doctor", "--json")

    [finding] = answer.document["findings"]
    assert (answer.code, answer.err) == (0, "")
    assert (finding["level"], finding["subject"]) == ("advice", "idle_in_transaction_session_timeout")


async def test_a_database_without_a_schema_is_wrong(ff: Run, empty_url: str) -> None:
    answer = await ff("doctor", "--json", FLOWFABRIC_URL=empty_url)

    [finding] = [each for each in answer.document["findings"] if each["check"] == "schema"]
    assert (answer.code, answer.err) == (1, "")
    assert finding["level"] == "wrong"
    assert "ff migrate" in finding["remedy"]


async def test_a_transaction_that_is_open_for_longer_than_the_option_is_reported(
    here: Run, given: Given, database_url: str
) -> None:
    idle = await asyncpg.connect(database_url)
    await idle.execute("begin isolation level repeatable read; select 1")

    patient = await here("doctor")
    impatient = await here("doctor --longest-transaction 0s")
    await idle.close()

    assert "transactions: " not in patient.out
    assert f"wrong   transactions: {idle.get_server_pid()}\n" in impatient.out


async def test_an_invalid_duration_is_wrong_usage(here: Run) -> None:
    code, _, err = await here("doctor --longest-transaction soon")

    assert code == 2
    assert "'soon'" in err


async def test_it_creates_no_database(ff: Run, tmp_path: Path) -> None:
    code, out, err = await ff("doctor")

    assert (code, out) == (1, "")
    assert err.startswith("database_missing: ")
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_an_unreachable_server_is_an_error(ff: Run) -> None:
    answer = await ff("doctor", "--json", FLOWFABRIC_URL="postgresql://me@127.0.0.1:1/x")

    assert (answer.code, answer.out, answer.error["error"]) == (1, "", "database_unavailable")
