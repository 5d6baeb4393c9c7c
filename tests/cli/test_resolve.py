"""Ids on the command line: bare, tagged, or only their beginning."""

from uuid import UUID

import click
import pytest

from flowfabric import ids
from flowfabric.engine import flows
from flowfabric.ids import ExecutionId, FlowId
from tests.cli.conftest import Run
from tests.cli.test_looks import commands
from tests.given import Given

ONE, TWO = (ExecutionId.of(ids.stamped(number << 64 | 1 << 112, 24)) for number in (1, 2))


async def test_an_id_is_bare_tagged_or_its_beginning(here: Run, given: Given) -> None:
    execution_id = await given.submitted()

    for text in (str(execution_id), execution_id.wire, str(execution_id)[:8], str(execution_id)[:14].upper()):
        answer = await here("executions describe --json", text)
        assert answer.document["execution_id"] == str(execution_id.uuid), answer.err


@pytest.mark.parametrize(
    "command",
    [
        "executions describe {}",
        "executions explain {}",
        "executions events {}",
        "executions attempts {}",
        "executions change-priority {} 7",
        "executions set-tag {} a=b",
        "executions hold {}",
        "executions unhold {}",
        "waitpoints describe {}",
        "events tail --once --execution {}",
        "executions cancel {}",
        "executions replay {}",
    ],
)
async def test_every_command_takes_the_beginning_of_an_id(here: Run, given: Given, command: str) -> None:
    execution_id = await given.submitted() if "replay" not in command else await given.cancelled()

    answer = await here(command.format(str(execution_id)[:8]) + " --json")

    assert (answer.code, answer.err) == (0, "")
    assert str(execution_id) in answer.out or "execution_id" not in answer.out


TYPED = {"execution", "executions", "parent", "flow", "flow_id"}


@pytest.mark.parametrize(
    ("path", "name"),
    [(path, each.name) for path, command in commands() for each in command.params if each.name in TYPED],
)
async def test_every_id_may_be_the_beginning_of_one(here: Run, given: Given, path: str, name: str) -> None:
    given_or_needed = [each for each in dict(commands())[path].params if each.required or each.name == name]
    words = [_word(each, "77777777" if each.name == name else "5") for each in given_or_needed]
    outcome = ["--fail"] if path == "executions override" else []

    async with given.nothing_changes():
        answer = await here(" ".join([path, *words, *outcome]))
    assert answer.code == 1, answer
    assert "has an id that begins with '77777777'" in answer.err


def _word(parameter: click.Parameter, value: str) -> str:
    value = "a=b" if parameter.name == "tag" else value
    return f"{parameter.opts[0]} {value}" if isinstance(parameter, click.Option) else value


async def test_several_matches_are_refused_and_named(here: Run, given: Given) -> None:
    for each in (ONE, TWO):
        await given.submitted(execution_id=each)

    answer = await here(f"executions cancel {str(ONE)[:8]} --json")
    assert answer.code == 1
    assert (answer.error["error"], answer.error["cause"]) == ("invalid_id", "ambiguous")
    assert answer.error["candidates"] == [str(TWO), str(ONE)]
    assert await given.count("tickets") == 2

    more = next(str(ONE)[:end] for end in range(8, 37) if str(ONE)[:end] != str(TWO)[:end])
    assert (await here(f"executions cancel {more}")).code == 0
    assert await given.count("tickets") == 1


async def test_many_matches_are_cut(here: Run, given: Given) -> None:
    for partition in range(7):
        await given.submitted(execution_id=ExecutionId.of(ids.stamped(1 << 112, partition)))

    answer = await here("executions describe 00010000")

    assert answer.code == 1
    assert answer.err.count("00010000-0000-8000") == 5
    assert "use more digits" in answer.err
    assert ", …" in answer.err


async def test_in_a_batch_only_what_is_unknown_is_refused(here: Run, given: Given) -> None:
    execution_id = await given.submitted()

    answer = await here(f"executions cancel 77777777 {str(execution_id)[:8]} --json")

    assert (answer.code, answer.error["error"]) == (1, "execution_not_found")
    assert [each["execution_id"] for each in answer.document["items"]] == [str(execution_id)]


@pytest.mark.parametrize(
    ("text", "error", "part"),
    [
        ("77777777", "execution_not_found", "no execution has an id that begins with '77777777'"),
        ("7777777", "invalid_id", "at least its first 8 digits"),
        ("7777777x", "invalid_id", "is not a UUID"),
        ("777777777777", "invalid_id", "is not a UUID"),
        ("{fp:24}:77777777", "invalid_id", "is not a UUID"),
        ("{fp:25}:019df237-3e80-8a31-800c-3f9b71e5d004", "wrong_partition", "use 019df237-3e80-8a31-800c-3f9b71e5d004"),
        ("019df237-3e80-8a31-8080-3f9b71e5d004", "wrong_partition", "cell 1, and this database is cell 0"),
        ("019df237-3e80-8a31-800c-3f9b71e5d004", "execution_not_found", "does not exist"),
        ("550e8400-e29b-41d4-a716-446655440000", "execution_not_found", "does not exist"),
    ],
)
async def test_any_other_text_is_refused(here: Run, given: Given, text: str, error: str, part: str) -> None:
    answer = await here("executions describe --json", text)

    assert (answer.code, answer.error["error"]) == (1, error)
    assert part in answer.error["message"]


async def test_a_foreign_uuid_is_found_in_the_partition_of_its_flow(here: Run, given: Given) -> None:
    flow = FlowId.of(ids.stamped(1 << 112, 25))
    await flows.create_flow(given.conn, "report", flow_id=flow)
    member = ExecutionId(25, UUID("550e8400-e29b-41d4-a716-446655440000"))
    await given.submitted(execution_id=member, flow=flow)

    for text in (str(member.uuid), str(member.uuid)[:8], member.wire):
        assert (await here("executions describe --json", text)).document["execution_id"] == member.wire


async def test_flows_are_found_by_the_beginning_of_their_id(here: Run, given: Given) -> None:
    flow, other = FlowId.of(ids.stamped(1 << 112, 24)), FlowId.of(ids.stamped(2 << 112, 25))
    for each in (flow, other):
        await flows.create_flow(given.conn, "report", flow_id=each)
    member = await given.submitted(flow=flow)

    assert (await here("flows describe 00010000 --json")).document["flow_id"] == str(flow)
    listed = await here("executions list --flow 00010000 --ids")
    assert listed.out.split() == [str(member)]
    assert str(flow) in (await here("events tail --once --flow 00010000")).out
    assert (await here("flows cancel 00010000")).code == 0
    assert (await here("flows describe 77777777 --json")).error["error"] == "flow_not_found"
