"""`ff sweep`: once, and until a signal stops it."""

import asyncio
import re
import signal

import msgspec
import pytest

from flowfabric.config import Config
from flowfabric.engine import claims
from flowfabric.sweeps import sweeps
from tests.cli.conftest import Run, Start
from tests.given import Given
from tests.sweeps.test_loop import BROKEN

NAMES = [sweep.name for sweep in sweeps(Config())]


@pytest.fixture
async def url(database_url: str, given: Given) -> str:
    """A database in which a lease has expired, without moving the clock."""
    await given.submitted()
    await claims.claim(given.conn, "w", instance="w-1", lanes=["default"])
    await given.rows("update flowfabric.tickets set expires_at = flowfabric.clock()")
    return database_url


async def test_once_prints_how_many_rows_each_sweep_changed(here: Run, url: str, given: Given) -> None:
    code, out, err = await here("sweep --once --url", url)

    assert (code, err) == (0, "")
    head, *lines = [line.split() for line in out.splitlines()]
    assert head == ["SWEEP", "ROWS", "CHANGED"]
    assert lines == [[name, "1" if name == "expire_leases" else "0"] for name in NAMES]
    assert (await given.events()).count("lease_expired") == 1


async def test_once_prints_json(here: Run, url: str) -> None:
    code, out, _ = await here("sweep --once --json --url", url)

    assert code == 0
    moved = {run["sweep"]: run["moved"] for run in msgspec.json.decode(out)["items"]}
    assert moved == {name: int(name == "expire_leases") for name in NAMES}


async def test_once_fails_when_a_sweep_does_but_runs_the_others(here: Run, url: str, given: Given) -> None:
    await given.conn.execute(BROKEN)

    code, out, err = await here("sweep --once --url", url)

    assert (code, err) == (1, "")
    assert re.search(r"^promote_due +0 +out of order$", out, re.MULTILINE)
    assert (await given.events()).count("lease_expired") == 1


async def test_a_database_that_is_not_migrated_is_an_error(here: Run, empty_url: str) -> None:
    code, out, err = await here("sweep --url", empty_url)

    assert (code, out) == (1, "")
    assert err.startswith("schema_behind: ")


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_sweeps_until_a_signal_stops_it(start: Start, given: Given, number: signal.Signals) -> None:
    process = await start("sweep")
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert await process.stdout.readline() == b"sweeping\n"
        while "lease_expired" not in await given.events():
            pass

    process.send_signal(number)
    async with asyncio.timeout(5):
        out, err = await process.communicate()

    assert (process.returncode, out, err) == (0, b"", b"")


async def test_it_lists_its_sweeps_in_json(start: Start) -> None:
    process = await start("sweep", "--json")
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert msgspec.json.decode(await process.stdout.readline()) == {"sweeping": NAMES}
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        assert await process.wait() == 0
