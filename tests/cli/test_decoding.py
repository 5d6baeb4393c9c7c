"""What a codec has encoded is redacted by `ff`, and shown with `--app`."""

from pathlib import Path

import pytest

from flowfabric import AesGcm, App, Context
from tests.app.scene import TIMEOUT, working
from tests.cli.conftest import Run

KEY = "1f" * 32
APP = """
from flowfabric import AesGcm, App

app = App(codec=AesGcm("k1", "{key}"))

@app.task
async def charge(card: str) -> str: ...
"""


@pytest.fixture
async def charged(database_url: str) -> str:
    """The id of an execution whose program encrypts what it stores, and a schedule of the same task."""
    app = App(url=database_url, codec=AesGcm("k1", KEY))

    @app.task
    async def charge(ctx: Context, card: str) -> str:
        return await ctx.step("check", lambda: f"checked {card}")

    async with working(app):
        await app.schedules.create("daily", charge, {"card": "4111"}, every="1d")
        execution = await charge.submit("4111")
        await execution.result(TIMEOUT)
        return str(execution.execution_id)


def app_file(tmp_path: Path, key: str = KEY) -> str:
    file = tmp_path / "shop.py"
    file.write_text(APP.format(key=key))
    return f"{file}:app"


async def test_only_the_size_and_the_codec_are_shown_without_the_app(here: Run, charged: str) -> None:
    described = await here(f"executions describe {charged}")
    document = (await here(f"executions describe {charged} --json")).document
    steps = await here(f"executions steps {charged} --results")
    schedule = await here("schedules describe daily")

    for out in (described.out, steps.out, schedule.out, str(document)):
        assert "bytes, encoded by aes-gcm:k1)" in out
        assert "4111" not in out
    assert document["encoding"] == document["result_encoding"] == "aes-gcm:k1"
    assert document["result"] == "(42 bytes, encoded by aes-gcm:k1)"


async def test_everything_is_shown_with_the_app(here: Run, charged: str, tmp_path: Path) -> None:
    app = app_file(tmp_path)
    document = (await here(f"executions describe {charged} --json --app", app)).document
    steps = await here(f"executions steps {charged} --results --app", app)
    schedule = await here("schedules describe daily --app", app)

    assert (document["payload"], document["result"]) == ({"card": "4111"}, "checked 4111")
    assert "checked 4111" in steps.out
    assert '{"card":"4111"}' in schedule.out


async def test_an_app_with_another_key_says_so(here: Run, charged: str, tmp_path: Path) -> None:
    described = await here(f"executions describe {charged} --app", app_file(tmp_path, "ab" * 32))

    assert described.code == 0
    assert "encoded by aes-gcm:k1; codec 'aes-gcm:k1' could not decode" in described.out


async def test_what_ff_submits_with_the_app_is_encoded(here: Run, charged: str, tmp_path: Path) -> None:
    answer = await here("submit charge --json --app", app_file(tmp_path), '{"card": "5500"}')
    document = (await here(f"executions describe {answer.document['execution_id']} --json")).document

    assert document["encoding"] == "aes-gcm:k1"


async def test_new_arguments_of_an_encoded_schedule_can_be_read(here: Run, charged: str, tmp_path: Path) -> None:
    assert (await here("schedules change daily --arguments", '{"card": "5500"}')).code == 0
    assert '{"card":"5500"}' in (await here("schedules describe daily")).out

    created = await here("schedules create weekly charge --every 7d --app", app_file(tmp_path), '{"card": "1"}')
    assert created.code == 0
    assert "encoded by aes-gcm:k1" in (await here("schedules describe weekly")).out
