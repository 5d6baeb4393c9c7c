"""A worker registers its tasks, with the schemas of their arguments."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import msgspec
import pytest

from flowfabric import App, Context, SyncContext
from flowfabric.engine import workers
from flowfabric.errors import InvalidTasks
from flowfabric.model import RegisteredTask, WorkerDescription
from flowfabric.worker import Worker
from flowfabric.worker.registered import MOST_BYTES, registered_tasks
from tests.given import Given
from tests.worker.scene import working


@dataclass
class Branch:
    """A type that contains itself."""

    length: int
    parts: "list[Branch]" = field(default_factory=list)


class Page:
    """A type that only its own methods can read, as a model of pydantic."""

    @classmethod
    def model_validate(cls, value: Any) -> "Page":
        return cls()


async def described(given: Given, instance: str) -> WorkerDescription:
    found = await workers.describe_worker(given.conn, instance)
    assert found is not None
    return found


async def test_a_worker_registers_its_tasks_with_the_schemas_of_their_arguments(app: App, given: Given) -> None:
    @app.task(lane="mail")
    async def send(ctx: Context, to: str, at: datetime | None = None) -> None: ...

    @app.task(name="tidy")
    def tidy(ctx: SyncContext) -> None: ...

    async with working(app) as worker:
        found = await described(given, worker.instance)
        [listed] = (await workers.list_workers(given.conn)).items

    sending, tidying = found.tasks or []
    assert (sending.name, sending.version, sending.lane) == ("send", 1, "mail")
    assert sending.schema is not None
    assert (sending.schema["required"], sending.schema["additionalProperties"]) == (["to"], False)
    assert cast("dict[str, Any]", sending.schema["properties"])["to"] == {"type": "string"}
    assert (tidying.name, tidying.schema) == (
        "tidy",
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    )
    assert (listed.tasks, listed.task_count) == (["send", "tidy"], 2)


def test_a_recursive_type_has_a_schema_and_a_type_without_one_leaves_it_out() -> None:
    app = App()

    @app.task
    async def grow(tree: Branch) -> None: ...

    @app.task
    async def show(page: Page) -> None: ...

    growing, showing = registered_tasks(app.tasks.values()) or []
    assert "#/$defs/Branch" in msgspec.json.encode(growing.schema).decode()
    assert showing.schema is None


def test_a_thousand_tasks_fit_because_schemas_are_left_out() -> None:
    app = App()
    for number in range(1_000):

        async def handle(tree: Branch) -> None: ...

        app.task(name=f"task-{number}")(handle)

    entries = registered_tasks(app.tasks.values()) or []
    assert len(entries) == 1_000
    assert len(msgspec.json.encode(entries)) <= MOST_BYTES
    assert 0 < sum(entry.schema is None for entry in entries) < 1_000


async def test_a_worker_with_more_than_a_thousand_tasks_is_refused(app: App, given: Given) -> None:
    for number in range(1_001):

        async def handle() -> None: ...

        app.task(name=f"task-{number}")(handle)

    async with app:
        with pytest.raises(InvalidTasks, match="1,001"):
            await Worker(app, sweeps=False).run()
    assert (await workers.list_workers(given.conn, expired=True)).items == []


async def test_the_worker_of_an_app_without_tasks_registers_none(app: App, given: Given) -> None:
    async with working(app) as worker:
        found = await described(given, worker.instance)

    assert (found.tasks, found.task_count) == (None, None)


@pytest.mark.parametrize(
    "tasks",
    [
        [RegisteredTask(name="")],
        [RegisteredTask(name="x" * 257)],
        [RegisteredTask(name="x", version=0)],
        [RegisteredTask(name="x", version=2**40)],
        [RegisteredTask(name="x", lane="")],
        [RegisteredTask(name="x", lane="é")],
        [RegisteredTask(name="x", version=2), RegisteredTask(name="x", version=2)],
        [RegisteredTask(name="x", schema={"description": "x" * MOST_BYTES})],
        [RegisteredTask(name=str(number)) for number in range(1_001)],
    ],
)
async def test_invalid_tasks_are_refused(given: Given, tasks: list[RegisteredTask]) -> None:
    async with given.nothing_changes():
        with pytest.raises(InvalidTasks):
            await workers.register_worker(given.conn, "w", instance="w-1", lanes=["default"], tasks=tasks)


async def test_a_registration_replaces_the_tasks_of_the_one_before(given: Given) -> None:
    for tasks in ([RegisteredTask(name="one", version=3), RegisteredTask(name="an\x1bother")], [], None):
        await workers.register_worker(given.conn, "w", instance="w-1", lanes=["default"], tasks=tasks)
        found = await described(given, "w-1")
        assert found.tasks == (None if tasks is None else sorted(tasks, key=lambda task: task.name))
