"""`ff submit`: by name, with an app, line by line, and with --wait."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from flowfabric import App
from flowfabric.engine import executions, lanes, workers
from flowfabric.ids import parse_execution_id
from flowfabric.model import RegisteredTask
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


async def test_it_submits_with_its_options(here: Run, given: Given) -> None:
    options = "--lane mail --namespace acme --priority 5 --needs smtp --needs tls --tag a.b=c --tag d.e= --deadline 2d"
    code, out, _ = await here(f"submit greet {options}", '{"name": "Ada"}')

    found = await executions.describe(given.conn, parse_execution_id(out.strip()), payload=True)
    assert code == 0
    assert (found.task, found.lane, found.namespace, found.priority) == ("greet", "mail", "acme", 5)
    assert (found.needs, found.tags, found.payload) == (["smtp", "tls"], {"a.b": "c", "d.e": ""}, b'{"name":"Ada"}')
    assert found.deadline_at is not None


async def test_arguments_may_come_from_standard_input(here: Run, given: Given) -> None:
    _, out, _ = await here("submit greet -", stdin='{"name": "Ada"}')

    found = await executions.describe(given.conn, parse_execution_id(out.strip()), payload=True)
    assert found.payload == b'{"name":"Ada"}'


async def test_with_app_the_options_of_the_task_are_used(here: Run, given: Given, place: str) -> None:
    _, out, err = await here("submit greet --app", place, '{"name": "Ada"}')

    found = await executions.describe(given.conn, parse_execution_id(out.strip()))
    assert (found.lane, found.needs, found.priority) == ("mail", ["smtp"], 7)
    assert found.policy["retry"] == {"max_retries": 2}
    assert "no live worker serves lane mail" in err
    assert "ff workers list" in err


async def test_with_app_wrong_arguments_and_unknown_tasks_are_errors(here: Run, given: Given, place: str) -> None:
    wrong = await here("submit greet --json --app", place, '{"nam": "Ada"}')
    assert (wrong.code, wrong.out, wrong.error["error"]) == (1, "", "invalid_body")
    assert '{"nam":"Ada"}' in wrong.error["message"]

    unknown = await here("submit great --json --app", place)
    assert (unknown.code, unknown.error["error"]) == (1, "unknown_task")
    assert all(part in unknown.error["message"] for part in ("'great'", "use greet"))
    assert await given.count("executions") == 0


async def test_a_task_that_no_running_worker_has_is_refused(here: Run, given: Given) -> None:
    assert (await here("submit great")).code == 0  # no worker runs: one may start later
    greet = RegisteredTask(name="greet", lane="mail")
    await workers.register_worker(given.conn, "w", instance="w-1", lanes=["mail"], tasks=[greet])

    async with given.nothing_changes():
        refused = await here("submit great --json")
        each = await here("submit great --each -", stdin="{}\n{}\n")
    assert (refused.code, refused.error["error"]) == (1, "unknown_task")
    assert all(part in refused.error["message"] for part in ("'great'", "did you mean 'greet'?", "--lane"))
    assert each.code == 1
    assert (await here("submit greet")).code == 0


async def test_with_a_lane_or_an_app_a_task_that_no_running_worker_has_is_only_a_warning(
    here: Run, given: Given, place: str
) -> None:
    other = RegisteredTask(name="other")
    await workers.register_worker(given.conn, "w", instance="w-1", lanes=["mail"], tasks=[other])

    for line in ("submit greet --lane mail", f"submit greet --app {place}"):
        code, _, err = await here(line, '{"name": "Ada"}')
        assert code == 0
        assert "no running worker has task 'greet'" in err


async def test_with_app_arguments_of_the_wrong_type_are_an_error(here: Run, given: Given, place: str) -> None:
    code, _, err = await here("submit greet --app", place, '{"name": "Ada", "loud": "very"}')

    assert code == 1
    assert "the arguments do not fit greet: Expected `bool`, got `str` - at `$.loud`" in err
    assert await given.count("executions") == 0


async def test_a_second_submission_with_the_same_key_is_a_duplicate(here: Run, given: Given) -> None:
    first = await here("submit greet --key once")
    second = await here("submit greet --key once")

    assert second.out == first.out
    assert f"duplicate: {first.out.strip()} " in second.err
    assert await given.count("executions") == 1


async def test_every_valid_line_of_a_file_is_submitted(here: Run, given: Given) -> None:
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


async def test_a_refused_line_has_its_number_and_an_empty_file_is_told(here: Run, given: Given) -> None:
    refused = await here("submit greet --each -", stdin="{}\n\nno json\n")
    empty = await here("submit greet --each -", stdin="\n")

    assert (refused.code, len(refused.out.splitlines())) == (1, 1)
    assert refused.err.startswith("invalid_body: line 3: 'no json' is invalid: ")
    assert (empty.code, empty.out) == (0, "")
    assert "nothing was submitted" in empty.err


async def test_a_key_cannot_be_combined_with_each(here: Run) -> None:
    code, _, err = await here("submit greet --key once --each -", stdin="{}\n")

    assert code == 2
    assert "--each" in err


async def test_many_lines_are_submitted(here: Run, given: Given) -> None:
    code, out, _ = await here("submit greet --each -", stdin="{}\n" * 1_200)

    assert (code, len(set(out.split()))) == (0, 1_200)
    assert await given.count("executions") == 1_200


async def test_wait_prints_the_result(here: Run, app: App) -> None:
    @app.task
    async def greet(name: str) -> dict[str, str]:
        return {"said": f"hello {name}"}

    async with working(app, sweeps=False):
        text = await here("submit greet --wait", '{"name": "Ada"}')
        document = await here("submit greet --wait --json", '{"name": "Ada"}')

    assert text.out == '{\n  "said": "hello Ada"\n}\n'
    assert msgspec.json.decode(document.out)["result"] == {"said": "hello Ada"}


async def test_wait_prints_the_failure_and_exits_with_1(here: Run, app: App) -> None:
    @app.task
    async def greet(name: str) -> None:
        raise ValueError(f"nobody knows {name}")

    async with working(app, sweeps=False):
        text = await here("submit greet --wait", '{"name": "Ada"}')
        document = await here("submit greet --wait --json", '{"name": "Ada"}')

    assert (text.code, text.out) == (1, "")
    assert text.err.startswith("execution_failed: 0")
    assert "ValueError: nobody knows Ada" in text.err
    error = document.error
    assert f"ff executions attempts {text.err.split()[1].rstrip(':')}" in text.err
    assert error["remedy"].endswith(f"ff executions replay {error['execution_id']}")
    assert "frames of flowfabric" in text.err
    assert "flowfabric/worker/run.py" not in text.err
    assert (error["error"], error["failure"]["reason"]) == ("execution_failed", "ValueError: nobody knows Ada")


async def test_wait_says_what_the_execution_waits_for(here: Run, given: Given) -> None:
    await lanes.configure_lane(given.conn, "default")
    await lanes.pause_lane(given.conn, "default", by="ops")
    answer = await here("submit greet --wait --timeout 3s")

    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("lane default has been paused since") == 1


async def test_wait_ends_after_the_timeout(here: Run, given: Given) -> None:
    async with asyncio.timeout(20):
        answer = await here("submit greet --wait --json --timeout 50ms")

    assert (answer.code, answer.out, answer.error["error"]) == (1, "", "not_ended")
    assert f"ff executions explain {answer.error['execution_id']}" in answer.error["message"]
    assert await given.count("tickets") == 1
