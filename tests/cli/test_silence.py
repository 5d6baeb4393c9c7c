"""Commands on a database that accepts connections and answers nothing: they end with an error."""

import time

import pytest

from benchmarks.proxy import proxied
from tests.cli.conftest import Run

COMMANDS = [
    "doctor",
    "events tail",
    "executions list",
    "lanes pause mail --reason smoke",
    "migrate",
    "migrate --check",
    "submit report",
    "sweep --once",
    "top --once",
]


@pytest.mark.parametrize("line", COMMANDS)
async def test_a_command_ends_although_the_database_answers_nothing(
    here: Run, database_url: str, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("FLOWFABRIC_TIMEOUT", "300ms")
    async with proxied(database_url) as proxy:
        proxy.dead = True
        began = time.monotonic()
        answer = await here(f"{line} --json --url", proxy.url)

    assert (answer.code, answer.error["error"]) == (1, "database_unavailable")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("line", COMMANDS)
async def test_a_command_ends_although_its_first_call_is_not_answered(
    here: Run, database_url: str, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("FLOWFABRIC_TIMEOUT", "300ms")
    monkeypatch.setenv("FLOWFABRIC_CALL_TIMEOUT", "300ms")
    async with proxied(database_url) as proxy:
        proxy.lose(b"facts" if line == "doctor" else b"backend_start")  # words of the answer to the first call
        answer = await here(f"{line} --json --url", proxy.url)

    assert (answer.code, answer.error["error"]) == (1, "database_unavailable")
