"""`ff submit`: by name, by app, line by line, and waited for."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from flowfabric import App
from flowfabric.engine import executions
from flowfabric.ids import parse_execution_id
from tests.app.scene import working
from tests.cli.conftest import Run
from tests.given import Given

SOURCE = """
from flowfabric import App

app = App()

@app.task(lane="mail", needs={"smtp"}, retries=2, priority=7)
async def greet(name: str, loud: bool = False) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "hello_mail.py").write_text(SOURCE)
    return f"{tmp_path / 'hello_mail.py'}:app"


async def test_it_submits_with_what_it_is_told(here: Run, given: Given) -> None:
    line = "submit greet --lane mail --namespace acme --priority 5 --need smtp --tag a.b=c --tag d.e= --deadline 2d"
    code, out, _ = await here(line, '{"name": "Ada"}')

    found = await executions.describe(given.conn, parse_execution_id(out.strip()), payload=True)
    assert code == 0
    assert (found.task, found.lane, found.namespace, found.priority) == ("greet", "mail", "acme", 5)
    assert (found.needs, found.tags, found.payload) == (["smtp"], {"a.b": "c", "d.e": ""}, b'{"name":"Ada"}')
    assert found.deadline_at is not None


async def test_arguments_may_come_from_standard_input(here: Run, given: Given) -> None:
    _, out, _ = await here("submit greet -", stdin='{"name": "Ada"}')

    found = await executions.describe(given.conn, parse_execution_id(out.strip()), payload=True)
    assert found.payload == b'{"name":"Ada"}'


async def test_with_its_app_it_goes_where_the_task_says(here: Run, given: Given, place: str) -> None:
    _, out, err = await here("submit greet --app", place, '{"name": "Ada"}')

    found = await executions.describe(given.conn, parse_execution_id(out.strip()))
    assert (found.lane, found.needs, found.priority) == ("mail", ["smtp"], 7)
    assert found.policy["retry"] == {"max_retries": 2}
    assert err.startswith("no live worker serves lane mail now: it waits there. `ff workers list` shows who serves")


async def test_with_its_app_what_cannot_be_called_is_refused(here: Run, given: Given, place: str) -> None:
    code, out, err = await here("submit greet --app", place, '{"nam": "Ada"}')
    assert (code, out) == (1, "")
    assert err.startswith('invalid_body: greet cannot be called with \'{"nam":"Ada"}\': ')

    _, _, err = await here("submit great --app", place)
    assert err == "no_such_task: the app has no task 'great'; it has greet\n"
    assert await given.count("executions") == 0


async def test_a_key_makes_the_second_a_duplicate(here: Run, given: Given) -> None:
    first = await here("submit greet --key once")
    second = await here("submit greet --key once")

    assert second.out == first.out
    assert f"duplicate of {first.out.strip()}: nothing more was submitted\n" in second.err
    assert await given.count("executions") == 1


async def test_every_line_of_a_file_is_submitted_and_a_bad_one_harms_no_other(here: Run, given: Given) -> None:
    large = msgspec.json.encode({"name": "x" * 2_000_000}).decode()
    lines = f'{{"name": "Ada"}}\n\nnonsense\n[1]\n{{"name": "Bob"}}\n{large}\n'
    code, out, err = await here("submit greet --json --each -", stdin=lines)

    answers = [msgspec.json.decode(line) for line in out.splitlines()]
    refusals = [msgspec.json.decode(line) for line in err.splitlines()]
    assert code == 1
    assert [answer["outcome"] for answer in answers] == ["created", "created"]
    assert [(refusal["error"], refusal["line"]) for refusal in refusals] == [
        ("invalid_body", 3),
        ("invalid_body", 4),
        ("payload_too_large", 6),
    ]
    assert await given.count("executions") == 2


async def test_the_lines_of_a_file_share_no_key(here: Run) -> None:
    code, _, err = await here("submit greet --key once --each -", stdin="{}\n")

    assert code == 2
    assert "--key and --id name one execution" in err


async def test_many_are_submitted_in_few_calls(here: Run, given: Given) -> None:
    code, out, _ = await here("submit greet --each -", stdin="{}\n" * 1_200)

    assert (code, len(set(out.split()))) == (0, 1_200)
    assert await given.count("executions") == 1_200


async def test_waiting_prints_what_it_returned(here: Run, app: App) -> None:
    @app.task
    async def greet(name: str) -> dict[str, str]:
        return {"said": f"hello {name}"}

    async with working(app, sweeps=False):
        text = await here("submit greet --wait", '{"name": "Ada"}')
        document = await here("submit greet --wait --json", '{"name": "Ada"}')

    assert text.out == '{\n  "said": "hello Ada"\n}\n'
    assert msgspec.json.decode(document.out)["result"] == {"said": "hello Ada"}


async def test_waiting_for_one_that_fails_says_why_and_ends_with_1(here: Run, app: App) -> None:
    @app.task
    async def greet(name: str) -> None:
        raise ValueError(f"nobody knows {name}")

    async with working(app, sweeps=False):
        text = await here("submit greet --wait", '{"name": "Ada"}')
        document = await here("submit greet --wait --json", '{"name": "Ada"}')

    assert (text.code, text.out) == (1, "")
    assert text.err.startswith("execution_failed: {fp:")
    assert "ValueError: nobody knows Ada" in text.err
    assert "`ff executions attempts EXECUTION` shows every try" in text.err
    said = msgspec.json.decode(document.err)
    assert (said["error"], said["failure"]["reason"]) == ("execution_failed", "ValueError: nobody knows Ada")


async def test_waiting_has_an_end(here: Run, given: Given) -> None:
    async with asyncio.timeout(20):
        code, out, err = await here("submit greet --wait --timeout 50ms")

    assert (code, out) == (1, "")
    assert err.startswith("not_ended: {fp:")
    assert "has not ended in time; it goes on" in err
    assert await given.count("tickets") == 1
