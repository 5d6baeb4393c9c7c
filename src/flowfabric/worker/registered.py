"""The tasks of an app as a worker registers them: name, version, lane, and the schema of the arguments if small."""

from collections.abc import Collection
from typing import Any

import msgspec

from flowfabric.app.tasks import Task
from flowfabric.model import RegisteredTask

MOST_BYTES = 262_144
MOST_SCHEMA_BYTES = 16_384


def registered_tasks(tasks: Collection[Task[..., Any]]) -> list[RegisteredTask] | None:
    """Return what to register; `None` for an app without tasks, because other code may run its executions.

    A schema of more than 16 KiB is left out. If all of them together are too large, so are the largest.
    """
    found = {_key(each): each for each in map(_without_schema, tasks)}
    left = MOST_BYTES - _size(list(found.values()))
    described = [msgspec.structs.replace(_without_schema(task), schema=task.arguments.schema()) for task in tasks]
    for size, entry in sorted(((_size(each), each) for each in described), key=lambda sized: sized[0]):
        left -= size - _size(found[_key(entry)])
        if left < 0 or size > MOST_SCHEMA_BYTES:
            break
        found[_key(entry)] = entry
    return list(found.values()) or None


def _without_schema(task: Task[..., Any]) -> RegisteredTask:
    return RegisteredTask(name=task.name, version=task.version, lane=task.options.lane)


def _key(task: RegisteredTask) -> tuple[str, int]:
    return task.name, task.version


def _size(value: object) -> int:
    return len(msgspec.json.encode(value))
