"""Tasks and versions: who serves them, and what is left of each."""

from collections.abc import Sequence

import asyncpg
import pytest

from flowfabric.engine import attempts, claims, tasks, workers
from flowfabric.engine.steps import save_step
from flowfabric.errors import InvalidLimit
from flowfabric.model import Begin, ListedTask, RegisteredTask, Step
from flowfabric.postgres.driver import Connection
from tests.given import Given


async def serve(conn: Connection, instance: str, *listed: RegisteredTask, namespace: str | None = None) -> None:
    await workers.register_worker(
        conn, "w", instance=instance, lanes=["default"], tasks=listed, namespace=namespace, capabilities=["gpu"]
    )


async def start(given: Given, version: int | None, **options: object) -> None:
    """An execution that has started under a version, or whose code has no version and has saved a step."""
    execution_id = await given.submitted(**options)
    [claim] = [each for each in await given.claim(take=1_000) if each.execution_id == execution_id]
    if version is None:
        await save_step(given.conn, Step(fence=claim.fence, name="one", occurrence=1, result=b"1"))
    else:
        await claims.mark_begun_many(given.conn, [Begin(fence=claim.fence, version=version)])


def report(*versions: int) -> Sequence[RegisteredTask]:
    return [RegisteredTask(name="report", version=version) for version in versions]


def numbers(task: ListedTask) -> list[tuple[int, int, int]]:
    """Per version its number, how much is left, and how many workers have it."""
    return [(each.version, each.left_count, each.worker_count) for each in task.versions]


async def test_a_task_is_listed_with_the_work_that_is_left_of_each_version(conn: Connection, given: Given) -> None:
    await serve(conn, "a", *report(2, 3))
    await serve(conn, "b", *report(3), RegisteredTask(name="mail", lane="mail"))
    for version in (1, 1, 2, None):
        await start(given, version)
    await given.submitted()
    await given.submitted()

    mail, found = (await tasks.list_tasks(conn)).items
    assert (found.name, found.new_count, found.is_exact) == ("report", 2, True)
    assert numbers(found) == [(3, 0, 2), (2, 1, 1), (1, 3, 0)]
    assert (mail.name, mail.new_count, numbers(mail)) == ("mail", 0, [(1, 0, 1)])
    assert [each.lanes for each in mail.versions] == [["mail"]]


async def test_a_description_names_the_workers_of_each_version(conn: Connection, given: Given) -> None:
    await serve(conn, "b", *report(1))
    await serve(conn, "a", *report(1, 2))
    await workers.register_worker(conn, "w", instance="c", lanes=["default"])

    found = await tasks.describe_task(conn, "report")
    assert found is not None
    assert [each.instances for each in found.versions] == [["a"], ["a", "b"]]


async def test_all_work_of_a_task_without_versions_is_left_of_version_1(conn: Connection, given: Given) -> None:
    await serve(conn, "a", *report(1))
    await start(given, None)
    await given.submitted()

    [found] = (await tasks.list_tasks(conn)).items
    assert (found.new_count, numbers(found)) == (0, [(1, 2, 1)])


async def test_a_task_that_no_worker_has_is_listed_while_work_is_left(conn: Connection, given: Given) -> None:
    claim = await given.claimed(task="gone")
    assert [(each.name, each.new_count) for each in (await tasks.list_tasks(conn)).items] == [("gone", 1)]

    await attempts.complete(conn, claim.fence)
    assert (await tasks.list_tasks(conn)).items == []
    assert await tasks.describe_task(conn, "gone") is None


async def test_only_the_work_and_the_workers_of_a_namespace_are_counted(conn: Connection, given: Given) -> None:
    await serve(conn, "a", *report(1, 2), namespace="acme")
    await serve(conn, "b", *report(2))
    await start(given, 1, namespace="acme")
    await start(given, 1, needs=[])
    await given.submitted(namespace="acme")

    for namespace, new, left in [("acme", 1, [(2, 0, 2), (1, 1, 1)]), ("other", 0, [(2, 0, 1)])]:
        found = await tasks.describe_task(conn, "report", namespace=namespace)
        assert found is not None
        assert (found.new_count, numbers(found)) == (new, left)


async def test_tasks_are_listed_page_by_page(conn: Connection, given: Given) -> None:
    names = ["B", "a", "b", "é"]
    await serve(conn, "a", *(RegisteredTask(name=name) for name in names))

    first = await tasks.list_tasks(conn, limit=2)
    second = await tasks.list_tasks(conn, limit=2, cursor=first.next_cursor)
    assert [each.name for each in (*first.items, *second.items)] == names
    assert (first.next_cursor, second.next_cursor) == ("a", None)
    with pytest.raises(InvalidLimit):
        await tasks.list_tasks(conn, limit=-1)


async def test_an_empty_database_has_no_tasks(conn: asyncpg.Connection) -> None:
    assert (await tasks.list_tasks(conn)).items == []
