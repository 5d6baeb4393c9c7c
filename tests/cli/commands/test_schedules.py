"""`ff schedules`: creating, changing, pausing and firing schedules."""

from pathlib import Path

import msgspec
import pytest

from flowfabric.engine import lanes, schedules
from tests.cli.conftest import Run
from tests.cli.looks import Looks
from tests.engine.schedules.scene import HOUR, at, create, sweep
from tests.given import Given

APP = """
from flowfabric import App

app = App()

@app.task(lane="reports", retries=3)
async def report(topic: str) -> str:
    return topic
"""


@pytest.fixture(autouse=True)
async def noon(given: Given) -> None:
    await at(given, "2026-06-01 12:00:20")


async def test_snapshots_of_create_and_change(look: Looks) -> None:
    tides = """report '{"topic": "tides"}' --cron '0 3 * * *' --tz Europe/Berlin --lane reports --tag a.b=c"""
    await look(
        "schedules create",
        *(
            f"nightly {tides}",
            f"nightly {tides} --json",
            "nightly other --every 1h",
            "pulse check --every 15m --paused",
        ),
        *("bad check --cron '61 * * * *'", "bad check --cron '0 3 * * *' --tz Moon/Base", "bad check", "bad check [1]"),
    )
    await look(
        "schedules change",
        *("nightly --cron '30 4 * * *'", "nightly --cron '30 4 * * *' --json", "nightly --arguments '{}' --priority 9"),
        *("pulse --until 2026-05-04T09:00:00Z", "nowhere --every 1h"),
        *("pulse --until 2030-01-01T00:00:00Z --no-until", "pulse --no-until"),
    )


async def test_an_end_can_be_removed(here: Run, given: Given) -> None:
    await create(given.conn, "pulse", every=HOUR)

    for option, until in (("--until 2030-01-01T00:00:00Z", 2030), ("--no-until", None)):
        code, _, _ = await here(f"schedules change pulse {option}")
        timing = (await schedules.describe_schedule(given.conn, "pulse")).timing
        assert (code, timing.until and timing.until.year) == (0, until)


async def test_snapshots_of_lists_and_cards(look: Looks, given: Given) -> None:
    await create(given.conn, cron="0 3 * * *", tz="Europe/Berlin", payload=b'{"topic":"tides"}', tags={"a.b": "c"})
    await create(given.conn, "pulse", task="check", every=HOUR, lane="closing", namespace="acme")
    await lanes.configure_lane(given.conn, "closing")
    await lanes.drain_lane(given.conn, "closing", by="ada")
    await given.time_passes(hours=2)
    await sweep(given.conn)

    await look("schedules list", "", "--json --limit 1", "--namespace default", "--limit 1", "--namespace nowhere")
    await look("schedules describe", "nightly", "nightly --json", "pulse --namespace acme", "pulse")


async def test_snapshots_of_pause_fire_resume_and_delete(look: Looks, given: Given) -> None:
    await create(given.conn, overlap="skip")

    await look("schedules pause", "nightly --reason 'too hot'", "nightly --json", "nowhere")
    await look("schedules fire", "nightly", "nightly --json", "nowhere")
    await look("schedules resume", "nightly", "nightly --json")
    await look("schedules delete", "nightly --json", "nightly")


async def test_with_app_the_options_of_the_task_are_used(here: Run, given: Given, tmp_path: Path) -> None:
    (tmp_path / "reports.py").write_text(APP)
    made = await here(
        f"schedules create nightly report --every 1h --app {tmp_path}/reports.py:app", '{"topic": "tides"}'
    )
    unknown = await here(f"schedules create weekly reprot --every 1h --json --app {tmp_path}/reports.py:app")
    wrong = await here(f"schedules create weekly report --every 1h --json --app {tmp_path}/reports.py:app")

    assert made.code == 0, made.err
    found = await schedules.describe_schedule(given.conn, "nightly")
    assert (found.options.lane, found.options.policy, found.by) == ("reports", {"retry": {"max_retries": 3}}, "ada")
    assert (unknown.code, wrong.code, await given.count("schedules")) == (1, 1, 1)
    assert wrong.error["error"] == "invalid_body"
    assert "missing a required argument: 'topic'" in wrong.error["message"]
    assert all(part in unknown.error["message"] for part in ("'reprot'", "report"))


async def test_fire_submits_and_prints_the_execution_id(here: Run, given: Given) -> None:
    await create(given.conn, lane="reports")

    code, out, _ = await here("schedules fire nightly --json")

    assert code == 0
    [claim] = await given.claim(lanes=["reports"])
    assert msgspec.json.decode(out)["execution_id"] == str(claim.execution_id)
