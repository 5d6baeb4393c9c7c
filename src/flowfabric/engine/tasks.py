"""Tasks: which of them the live workers have registered, and in which versions."""

import msgspec

from flowfabric.ids import check_text
from flowfabric.model import FoundTask
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def find_task(conn: Connection, task: str, *, namespace: str = "default") -> FoundTask:
    """Find out whether a live worker of any lane has registered a task, and which registered tasks have similar names.

    Changes nothing. The execution of a task that is `missing` waits until a worker that has the task starts.
    """
    row = await call.row(conn, "find_task", task=check_text(task, "task"), namespace=check_text(namespace, "namespace"))
    return msgspec.convert(dict(row), FoundTask)
