"""Tasks: which of them the live workers have registered, and in which versions."""

import msgspec

from flowfabric.ids import check_filter, check_text
from flowfabric.model import FoundTask, ListedTask, Page, TaskVersion
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row


async def find_task(conn: Connection, task: str, *, namespace: str = "default") -> FoundTask:
    """Find out whether a live worker of any lane has registered a task, and which registered tasks have similar names.

    Changes nothing. The execution of a task that is `missing` waits until a worker that has the task starts.
    """
    row = await call.row(conn, "find_task", task=check_text(task, "task"), namespace=check_text(namespace, "namespace"))
    return msgspec.convert(dict(row), FoundTask)


async def list_tasks(
    conn: Connection, *, namespace: str | None = None, cursor: str | None = None, limit: int = 50
) -> Page[ListedTask]:
    """List the tasks that live workers have or that have unfinished executions, by name.

    Each has its versions, with the number of workers that have the version and of executions that have started under
    it. Counts stop at 10,001. Raises `InvalidLimit`.
    """
    found = await call.rows(
        conn,
        "list_tasks",
        namespace=check_filter(namespace, "namespace"),
        after=check_text(cursor or "", "cursor"),
        take=call.take(limit),
    )
    return call.page([_listed(row) for row in found], limit, lambda task: task.name)


async def describe_task(conn: Connection, task: str, *, namespace: str | None = None) -> ListedTask | None:
    """Describe a task, with the instances of each version; `None` if no live worker has it and no work is left."""
    found = await call.rows(
        conn, "describe_task", task=check_text(task, "task"), namespace=check_filter(namespace, "namespace")
    )
    return _listed(found[0]) if found else None


def _listed(row: Row) -> ListedTask:
    return ListedTask(
        name=row["name"],
        new_count=row["new_count"],
        is_exact=row["is_exact"],
        versions=call.read(list[TaskVersion], row["versions"]),
    )
