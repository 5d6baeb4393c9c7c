"""The page about changing code: the old code runs until it sleeps, and the new code of each example finishes it."""

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import App, Execution
from flowfabric.app.tasks import Task
from flowfabric.engine import executions, holds
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given
from tests.sources import ROOT

PAGE = (ROOT / "docs" / "how-to" / "change-your-code.md").read_text()
FUNCTIONS, BEFORE = re.findall(r"```python\n(.*?)```", PAGE.partition("\n## ")[0], re.DOTALL)
EXAMPLES: dict[str, str] = dict(re.findall(r"^##+ ([^\n]*)\n+```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
FORGOTTEN = re.findall(r"## If you forget.*?```python\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture(autouse=True)
def on_this_database(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """The programs of the page name no database."""
    monkeypatch.setenv("FLOWFABRIC_URL", database_url)


def program(code: str) -> tuple[App, Task[..., Any], list[str]]:
    """A program of the page: its app, its task, and the steps that it runs."""
    names: dict[str, Any] = {"__name__": "shop"}
    ran: list[str] = []
    exec(FUNCTIONS, names)
    for name in ("charge", "pack", "thank"):
        names[name] = recorded(names[name], ran)
    exec(code, names)
    app = names["app"]
    return app, app.tasks["ship"], ran


def recorded(function: Callable[..., Any], ran: list[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def called(*args: Any) -> Any:
        ran.append(function.__name__)
        return await function(*args)

    return called


async def asleep() -> Execution[Any]:
    """An execution that sleeps after the old code has started it."""
    app, ship, ran = program(BEFORE)
    async with working(app):
        execution: Execution[Any] = await ship.submit(7)
        await happens(execution, "execution_delayed")
    assert ran == ["charge"]
    return execution


@pytest.mark.parametrize(
    ("example", "result", "ran"),
    [
        ("Add a step", ["paid 7", "thanked 7", "packed 7"], ["thank", "pack"]),
        ("Change the order", ["paid 7", "packed 7"], ["pack"]),
        ("Change the code of a step, or the code between steps", ["paid 7", "PACKED 7"], ["pack"]),
        ("Add an argument", ["paid 7", "packed 7", "by sea"], ["pack"]),
        ("Rename a step or a wait", ["paid 7", "packed 7"], ["pack"]),
        ("Remove a step or a wait", ["packed 7"], ["pack"]),
        ("Rename a task", ["paid 7", "packed 7"], ["pack"]),
        ("Change the type of a result", ["paid 7", "packed 7"], ["pack"]),
        ("Keep the old function beside the new one", ["paid 7", "packed 7"], ["pack"]),
        ("Let the new function finish old executions", ["paid 7", "packed 7"], ["pack"]),
    ],
)
async def test_new_code_finishes_what_old_code_has_started(
    given: Given, example: str, result: list[str], ran: list[str]
) -> None:
    execution = await asleep()
    app, _, seen = program(EXAMPLES[example])
    await given.time_passes(days=2)

    async with working(app):
        assert await app.execution(execution.execution_id).result(TIMEOUT) == result
    assert seen == ran


def test_every_example_of_the_page_is_tested() -> None:
    [marked] = [
        mark
        for mark in test_new_code_finishes_what_old_code_has_started.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    ]

    assert [example for example, *_ in marked.args[1]] == list(EXAMPLES)
    assert len(re.findall("```python", PAGE)) == len(EXAMPLES) + 3


async def test_new_executions_start_with_the_newest_version(given: Given) -> None:
    app, ship, _ = program(EXAMPLES["Keep the old function beside the new one"])
    async with working(app):
        execution: Execution[Any] = await ship.submit(8)
        await happens(execution, "execution_delayed")
        assert (await execution.describe()).version == 2
        await given.time_passes(days=8)
        await app.wake("default")
        assert await execution.result(TIMEOUT) == ["packed 8", "paid 8"]


@pytest.mark.parametrize(
    ("way", "ran"), [("unhold", []), ("--from charge", ["charge", "pack"]), ("--from-scratch", ["charge", "pack"])]
)
async def test_forgotten_changes_are_held_and_every_way_out_leads_to_the_end(
    given: Given, way: str, ran: list[str]
) -> None:
    execution = await asleep()
    await given.time_passes(days=2)
    app, _, packed = program(FORGOTTEN)
    async with working(app):
        await happens(app.execution(execution.execution_id), "execution_held")
    said = (await executions.explain(given.conn, execution.execution_id)).sentence
    [shown] = re.findall(r"because its code.*?scratch", PAGE.replace("completed\nwithout", "completed without"), re.S)
    assert said.endswith(shown.replace("\n", " "))
    assert packed == ["pack"]

    if way == "unhold":
        await holds.unhold(given.conn, execution.execution_id, by="ops")
    else:
        step = way.partition(" ")[2] or None
        await executions.replay(given.conn, execution.execution_id, by="ops", from_step=step, from_scratch=step is None)
    app, _, seen = program(EXAMPLES["Let the new function finish old executions"])
    async with working(app):
        if way != "unhold":
            await happens(app.execution(execution.execution_id), "execution_delayed", times=2)
            await given.time_passes(days=2)
            await app.wake("default")
        assert await app.execution(execution.execution_id).result(TIMEOUT) == ["paid 7", "packed 7"]
    assert seen == ran
