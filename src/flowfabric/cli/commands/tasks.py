"""`ff tasks`: the tasks that workers have, their versions, and the work that is left of each."""

import shlex
from collections.abc import Iterator

import click

from flowfabric.app import App
from flowfabric.cli import tables
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.errors import CommandError
from flowfabric.cli.options import paged
from flowfabric.cli.output import page_table, prints
from flowfabric.ids import shown
from flowfabric.model import ListedTask, Page, TaskVersion

COLUMNS = ("task", "version", "unfinished", "workers", "lanes", "instances")
MOST = 10_000

namespace_option = click.option("--namespace", help="Only workers and executions of this namespace (tenant).")


def _listed(page: Page[ListedTask]) -> str:
    lines = [line for task in page.items for line in _lines(task)]
    return page_table(COLUMNS, lines, page, "no tasks yet; to start a worker: ff worker FILE.py:app")


def _described(task: ListedTask) -> str:
    table = tables.table(COLUMNS, _lines(task))
    missing = [each.version for each in task.versions if each.left_count and not each.worker_count]
    remedies = [
        f"no running worker has version {version}, so its executions wait: start a worker that has it, or start them "
        f"again under another version: ff executions list --task {shlex.quote(task.name)}, then "
        "ff executions replay EXECUTION --from-scratch"
        for version in missing
    ]
    return "\n\n".join([table, *remedies])


def _lines(task: ListedTask) -> Iterator[dict[str, object]]:
    """A line for each version, and one for executions that no version has started."""
    if task.new_count or not task.versions:
        yield {"task": task.name, "version": "new", "unfinished": _amount(task.new_count, task.is_exact)}
    for each in task.versions:
        yield {
            "task": task.name,
            "version": each.version,
            "unfinished": _amount(each.left_count, task.is_exact or not _is_first(task, each)),
            "workers": each.worker_count or "none",
            "lanes": each.lanes,
            "instances": each.instances,
        }


def _is_first(task: ListedTask, version: TaskVersion) -> bool:
    return version.version == 1 and version is task.versions[-1]


def _amount(count: int, is_exact: bool) -> str:
    if count > MOST:
        return f"more than {MOST:,}"
    return f"{count:,}" if is_exact else f"at least {count:,}"


@click.group(cls=CommandGroup)
def tasks() -> None:
    """List and describe tasks: their versions, who serves them, and the work that is left."""


@tasks.command("list")
@namespace_option
@paged
@prints(layout=_listed)
async def list_tasks(app: App, namespace: str | None, limit: int, cursor: str | None) -> Page[ListedTask]:
    """List the tasks of live workers and of unfinished executions, a line per version.

    An execution stays with the version under which it first started; "new" counts those that have not started yet. A
    task without versions has version 1. If more than 10,000 executions are unfinished, those without a version are
    counted among the first 10,000 of them.

    \b
    Example:
      ff tasks list
    """
    return await app.workers.list_tasks(namespace=namespace, limit=limit, cursor=cursor)


@tasks.command("describe")
@click.argument("task")
@namespace_option
@prints(layout=_described)
async def describe_task(app: App, task: str, namespace: str | None) -> ListedTask:
    """Describe a task: its versions, which workers have each, how much work is left, and what to do about it.

    At most 20 workers are shown for each version.

    \b
    Example:
      ff tasks describe report
    """
    found = await app.workers.describe_task(task, namespace=namespace)
    if found is None:
        raise CommandError(
            "no_such_task",
            f"task {shown(task)} has no live worker and no unfinished execution; to see all tasks: ff tasks list",
        )
    return found
