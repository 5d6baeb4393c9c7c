"""Submitting over HTTP: one execution, or many of them as an array or as lines."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from flowfabric import payloads
from flowfabric.app import App
from flowfabric.app.tasks import submission, unknown_task
from flowfabric.errors import FlowFabricError, InvalidBody
from flowfabric.model import Options, Submission, Submitted
from flowfabric.server.parameters import Id, Integer, When, read_when
from flowfabric.server.requests import decode

MOST = 10_000
"""Submissions in one request."""


class SubmitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An execution to submit. What is not given, the task itself says, if this server has its code."""

    task: str
    payload: Any = {}
    """The arguments of the task, by name."""
    key: str | None = None
    """An idempotency key: a second submission with it returns the first execution. Also the header Idempotency-Key."""
    execution_id: Id | None = None
    namespace: str | None = None
    lane: str | None = None
    priority: Integer | None = None
    delay: When | None = None
    deadline: When | None = None
    tags: Mapping[str, str] | None = None
    needs: Sequence[str] | None = None
    budgets: Sequence[str] | None = None
    quotas: Sequence[str] | None = None
    policy: Mapping[str, Any] | None = None


OF_OPTIONS = {"namespace", "lane", "needs", "budgets", "quotas", "policy"}
TIMES = ("delay", "deadline")


async def submit(app: App, given: SubmitRequest, *, by: str) -> Submitted:
    """Submit an execution.

    Safe to repeat with a key or an execution id: answers `duplicate` with the id of the first execution. Raises
    `UnknownTask`, `KeyConflict`, `LaneDraining`, `InvalidBody` and the other errors of a submission.
    """
    return await app.client.submit(read_submission(app, given, by))


async def submit_many(app: App, given: Sequence[msgspec.Raw | bytes], *, by: str) -> list[Submitted | FlowFabricError]:
    """Submit many executions; each has its own answer, and an invalid one does not keep the others from being stored.

    Raises `InvalidBody` if they are too many.
    """
    if len(given) > MOST:
        raise InvalidBody(f"{len(given):,} submissions are too many for a request; use at most {MOST:,}", field="items")
    asked = [_read_one(app, each, by) for each in given]
    good = [each for each in asked if isinstance(each, Submission)]
    answers = iter(await app.client.submit_many(good) if good else ())
    return [next(answers) if isinstance(each, Submission) else each for each in asked]


def read_submission(app: App, given: SubmitRequest, by: str) -> Submission:
    """Build the submission of a request. Raises `UnknownTask`, `InvalidBody`."""
    found = {name: getattr(given, name) for name in SubmitRequest.__struct_fields__ if name not in ("task", "payload")}
    options = {name: value for name, value in found.items() if value is not None and name in OF_OPTIONS}
    own = {name: value for name, value in found.items() if value is not None and name not in OF_OPTIONS}
    own |= {name: _time(name, own[name]) for name in TIMES if name in own}
    if own.get("key") == "":
        raise InvalidBody("key '' is invalid; use 1 to 256 bytes, or leave it out", field="key")
    made = _of_task(app, given, options)
    return replace(made, options=replace(made.options, **{"creator": by, **options}), **own)


def _of_task(app: App, given: SubmitRequest, options: Mapping[str, object]) -> Submission:
    task = app.tasks.get(given.task)
    if task is None:
        if app.tasks and "lane" not in options:
            raise unknown_task(app.tasks, given.task, "for a task of another program, give its lane")
        return submission(Options(task=given.task), payloads.encode(given.payload), {})
    if not isinstance(given.payload, dict):
        raise InvalidBody("payload is invalid; use an object with the arguments of the task", field="payload")
    try:
        return task.submission(**given.payload)
    except TypeError as error:
        raise InvalidBody(f"task {given.task} does not accept this payload: {error}", field="payload") from None


def _read_one(app: App, given: msgspec.Raw | bytes, by: str) -> Submission | FlowFabricError:
    try:
        return read_submission(app, decode(bytes(given), SubmitRequest), by)
    except FlowFabricError as refused:
        return refused


def _time(name: str, given: str) -> Any:
    try:
        return read_when(given)
    except ValueError as error:
        raise InvalidBody(f"{name}: {error}", field=name) from None
