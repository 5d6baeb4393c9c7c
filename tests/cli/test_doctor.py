"""`ff doctor`: its look, its exit code, and that it makes nothing."""

import asyncio
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from flowfabric.postgres import embedded
from tests.cli.conftest import Answer, Run
from tests.cli.looks import Looks
from tests.conftest import Server
from tests.engine.stuck import everything_stuck
from tests.given import Given


async def test_its_look_where_much_is_wrong(look: Looks, given: Given, server: Server) -> None:
    if server.binaries is None:
        pytest.skip("another server has other settings, and is told so")
    await everything_stuck(given, later=timedelta(days=3), crew=False)

    await look("doctor", "", "--json")


async def test_the_embedded_server_is_set_up_as_it_advises(ff: Run) -> None:
    await ff("migrate")

    assert await ff("doctor") == Answer(0, "17 checks: all is well\n", "")


async def test_advice_alone_is_no_failure(ff: Run, tmp_path: Path) -> None:
    await ff("migrate")
    with await asyncio.to_thread(embedded.start, tmp_path / ".flowfabric") as server:
        conn = await asyncpg.connect(server.url())
        await conn.execute("alter database flowfabric set idle_in_transaction_session_timeout = 0")
        await conn.close()

        code, out, err = await ff("doctor")

    assert (code, err) == (0, "")
    assert out.startswith("advice  settings: idle_in_transaction_session_timeout\n")
    assert out.endswith("\n\n17 checks: 0 wrong, 1 to think about\n")


async def test_a_database_without_a_schema_is_wrong(ff: Run, empty_url: str) -> None:
    code, out, err = await ff("doctor", FLOWFABRIC_URL=empty_url)

    assert (code, err) == (1, "")
    assert "wrong   schema\n" in out
    assert "  do    run `ff migrate`\n" in out


async def test_a_transaction_that_stays_open_is_reported_after_the_span_given(
    here: Run, given: Given, database_url: str
) -> None:
    idle = await asyncpg.connect(database_url)
    await idle.execute("begin isolation level repeatable read; select 1")

    patient = await here("doctor")
    impatient = await here("doctor --longest-transaction 0s")
    await idle.close()

    assert "transactions: " not in patient.out
    assert f"wrong   transactions: {idle.get_server_pid()}\n" in impatient.out


async def test_a_span_that_cannot_be_read_is_a_mistake_of_the_caller(here: Run) -> None:
    code, _, err = await here("doctor --longest-transaction soon")

    assert code == 2
    assert "'soon' is no span of time" in err


async def test_where_there_is_no_database_none_is_made(ff: Run, tmp_path: Path) -> None:
    code, out, err = await ff("doctor")

    assert (code, out) == (1, "")
    assert err.startswith("database_missing: ")
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_a_server_that_is_not_there_is_refused(ff: Run) -> None:
    answer: Answer = await ff("doctor", FLOWFABRIC_URL="postgresql://me@127.0.0.1:1/x")

    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("database_unavailable: cannot connect to 127.0.0.1: ")
