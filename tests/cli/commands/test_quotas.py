"""`ff quotas`: creating, changing and describing quotas."""

import pytest

from flowfabric.engine import quotas
from tests.cli.conftest import Run
from tests.cli.looks import Looks
from tests.given import Given


async def test_snapshots(look: Looks, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_requests_per_window=2, window_seconds=86_000)
    await quotas.create_quota(given.conn, "writers", max_concurrent=3)
    for _ in range(2):
        await given.claimed(quotas=["model", "writers"])

    await look("quotas list", "", "--json --limit 1", "--limit 1", "--namespace nowhere")
    await look("quotas describe", "model", "model --json", "writers", "nowhere")
    await look(
        "quotas create",
        *("vendor --max-concurrent 5", "vendor --max-concurrent 5 --json", "vendor --max-concurrent 6"),
        *("empty", "bad --max-concurrent 0", "bad --max-concurrent many"),
    )
    await look("quotas change", "model --max-requests-per-window 9", "model --window-seconds 60 --json", "model",
               "nowhere --max-concurrent 2")  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["quotas create q", "quotas create q --max-concurrent -1", "quotas change q --max-concurrent 1"],
)
async def test_an_error_changes_nothing(here: Run, given: Given, line: str) -> None:
    async with given.nothing_changes():
        assert (await here(line)).code in (1, 2)


async def test_explain_names_the_commands_of_the_full_quota(here: Run, given: Given) -> None:
    await quotas.create_quota(given.conn, "one", max_concurrent=1)
    await given.claimed(quotas=["one"])
    blocked = await given.submitted(quotas=["one"])

    explained = (await here(f"executions explain {blocked} --json")).document

    assert explained["waits_for"] == "quota"
    assert [command for command in ("list", "change") if f"ff quotas {command}" not in explained["remedy"]] == []
