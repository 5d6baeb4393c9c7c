"""The lines that `ff dev` prints about runs."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.text import Text

from flowfabric.cli.run_lines import RunLines
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, FailureClass, Suspension, Wish
from flowfabric.worker.run import Changed, Completed, Failed, Lost, Outcome, Postponed, Suspended
from tests.given import Given

SOON = datetime(2026, 5, 4, 9, tzinfo=UTC)


@pytest.fixture
async def claim(given: Given) -> Claim:
    return await given.claimed()


def words(claim: Claim, outcome: Outcome) -> str:
    """What the line of an outcome says after the id."""
    said: list[str] = []
    lines = RunLines(lambda line: said.append(line.plain))
    lines.started(claim)
    lines.ended(claim, outcome)
    assert said[0].endswith(f" {claim.task} {claim.execution_id} started")
    return said[1].partition(f"{claim.execution_id} ")[2]


def wish(what: ExecutionId | datetime | str, reason: str = "waiting_for_signal") -> Wish:
    if isinstance(what, str):
        return Wish(name=what, occurrence=1, what=Suspension(condition={}, waitpoints=[what], reason_code=reason))
    return Wish(name="a", occurrence=1, what=what)


def test_every_outcome_has_a_line(claim: Claim) -> None:
    postponed = Postponed(timedelta(seconds=5), "no such task")

    assert words(claim, Completed(b'{"pages":3}')).startswith("completed in 0ms: {")
    assert words(claim, Completed(b'"\\u001b[31mtide\\n"')).endswith(r"ms: \x1b[31mtide")
    assert len(words(claim, Completed(b'"' + b"x" * 5_000 + b'"'))) < 350
    assert words(claim, postponed) == "postponed for 5.0s: no such task"
    assert words(claim, Changed("one is missing", ["one"])) == "held because its code has changed: one is missing"
    assert words(claim, Lost()).startswith("stopped after 0ms: ")


def test_a_wait_says_what_it_waits_for_and_until_when(claim: Claim) -> None:
    child = claim.execution_id
    local = f"{SOON.astimezone():%Y-%m-%d %H:%M:%S}"

    assert words(claim, Suspended([[wish(SOON)]])) == f"waits until {local}"
    assert words(claim, Suspended([[wish("go")]])) == "waits for signal 'go'"
    ask = wish("publish", "waiting_for_approval")
    assert words(claim, Suspended([[ask, wish(SOON)]])) == f"waits for approval 'publish' until {local}"
    assert words(claim, Suspended([[wish(child)]])) == f"waits for child {child}"
    many = [[wish(child)], [wish(child)], *([wish(name)] for name in "abc")]
    assert words(claim, Suspended(many)) == "waits for 2 children, signal 'a', signal 'b' and 1 more"


def test_a_failure_is_told_once_with_what_follows(claim: Claim) -> None:
    said: list[str] = []
    lines = RunLines(lambda line: said.append(line.plain))
    for again_at in (SOON, None):
        lines.started(claim)
        lines.ended(claim, Failed(FailureClass.TRANSIENT, "LookupError: no tide"))
        lines.failed(claim, "LookupError: no tide", again_at)

    assert len(said) == 4
    assert said[1].endswith(
        f"failed after 0ms with LookupError: no tide; it runs again at {SOON.astimezone():%H:%M:%S}"
    )
    assert said[3].endswith("failed after 0ms with LookupError: no tide")


async def test_more_than_fifty_lines_in_a_second_are_counted(claim: Claim) -> None:
    said: list[str] = []
    counted = asyncio.Event()

    def show(line: Text) -> None:
        said.append(line.plain)
        if "and more than fit here" in line.plain:
            counted.set()

    lines = RunLines(show)
    for _ in range(10_000):
        lines.started(claim)
        lines.ended(claim, Completed(b"1"))
    await asyncio.wait_for(counted.wait(), 10)
    lines.started(claim)

    shown = [line for line in said if str(claim.execution_id) in line]
    assert len(shown) <= 50 * 10
    assert said[-1].endswith(" started")


def test_with_json_every_change_is_a_document(claim: Claim) -> None:
    documents: list[Any] = []
    lines = RunLines(lambda _: None, documents.append)
    for _ in range(100):
        lines.started(claim)
        lines.ended(claim, Completed(b'{"pages":3}'))

    assert [each["event"] for each in documents] == ["started", "completed"] * 100
    assert documents[1] == {
        "at": documents[1]["at"],
        "event": "completed",
        "execution_id": claim.execution_id,
        "task": claim.task,
        "attempt": 1,
        "seconds": 0.0,
        "result": b'{"pages":3}',
    }
