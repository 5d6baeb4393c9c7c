"""`ff submit`: submit a task by its name."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, BinaryIO, NamedTuple

import click
import msgspec

from flowfabric import payloads
from flowfabric.app import App
from flowfabric.app.executions import Execution
from flowfabric.app.tasks import submission, unknown_task
from flowfabric.cli import formatting, tracebacks
from flowfabric.cli.errors import JSON, CommandError
from flowfabric.cli.frames import Screen
from flowfabric.cli.options import ReadFile, app_option, duration, given, json_object, tag, when
from flowfabric.cli.output import prints
from flowfabric.cli.submissions import checking_arguments, with_options
from flowfabric.cli.tables import progress, spinner
from flowfabric.cli.trees import ENDED
from flowfabric.engine import tasks as task_engine
from flowfabric.engine import workers as worker_engine
from flowfabric.errors import ExecutionFailed, FlowFabricError, InvalidBody, UnknownTask
from flowfabric.ids import ExecutionId, shown
from flowfabric.model import Options, PublicState, Submission, SubmitOutcome, Submitted

BATCH = 500
PATIENCE = 1.5  # seconds, before `--wait` says what an execution waits for
RUNS_OR_ENDED = {PublicState.ACTIVE, *ENDED}


class Line(NamedTuple):
    """A submission, and its line number in the file."""

    number: int
    submission: Submission


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that was stored."""

    execution_id: ExecutionId
    outcome: SubmitOutcome


class Ended(Accepted, frozen=True, kw_only=True):
    """A submission that has completed, and its result."""

    result: object


def _text(accepted: Accepted) -> str:
    return formatting.pretty(accepted.result) if isinstance(accepted, Ended) else str(accepted.execution_id)


@click.command()
@click.argument("task")
@click.argument("arguments", type=json_object, default="{}", metavar="[JSON]")
@app_option
@click.option(
    "--each",
    type=ReadFile(),
    help="Submit once for each line of this file, a JSON object per line; - is standard input.",
)
@click.option("--lane", help="Lane (queue) of the execution.  [default: the task's, or default]")
@click.option("--namespace", help="Namespace (tenant) of the execution.  [default: the task's, or default]")
@click.option("--priority", type=click.IntRange(0, 9_000), help="Priority in the lane, highest first.")
@click.option(
    "--delay",
    type=when,
    metavar="WHEN",
    help="Do not start before: a duration (10m) or a timestamp (2026-05-04T09:00:00Z).",
)
@click.option(
    "--deadline",
    type=when,
    metavar="WHEN",
    help="Expire it if it has not ended by then: a duration (2h) or a timestamp (2026-05-04T09:00:00Z).",
)
@click.option("--key", help="Idempotency key: a second submission with the same key does not run again.")
@click.option("--id", "execution_id", metavar="ID", help="Id of the execution.  [default: a new id]")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    type=tag,
    metavar="KEY=VALUE",
    help="Tag, such as billing.customer=4711. Repeatable.",
)
@click.option(
    "--needs", multiple=True, metavar="NAME", help="Capability that the worker must have, such as gpu. Repeatable."
)
@click.option("--budget", "budgets", multiple=True, metavar="NAME", help="Budget that pays for its usage. Repeatable.")
@click.option("--quota", "quotas", multiple=True, metavar="NAME", help="Quota that limits it. Repeatable.")
@click.option(
    "--policy",
    type=json_object,
    metavar="JSON",
    help='Retry and timeout policy, such as \'{"retry": {"max_retries": 3}}\'.',
)
@click.option("--wait", is_flag=True, help="Wait until it has ended, and print its result.")
@click.option("--follow", is_flag=True, help="Print what it puts out while it runs, and then its result.")
@click.option(
    "--timeout",
    type=duration,
    metavar="DURATION",
    help="Stop waiting after this long, with --wait; the execution itself continues.",
)
@prints(sentence=_text)
async def submit(
    app: App, task: str, arguments: Mapping[str, Any], each: BinaryIO | None, wait: bool, follow: bool,
    timeout: timedelta | None,  # noqa: ASYNC109
    **options: Any,
) -> AsyncIterator[Accepted]:  # fmt: skip
    """Submit TASK, with its arguments as a JSON object, and print the execution id.

    The execution is stored when the id is printed. With --each, one line is printed for each line submitted. --follow
    prints its output as `ff executions tail` does.

    \b
    Example:
      ff submit greet '{"name": "Ada"}' --key ada-2026 --wait
      ff submit greet --each people.jsonl --app hello.py:app
      ff submit answer '{"question": "Why is the sky blue?"}' --follow
    """
    if each is not None and follow:
        raise click.UsageError("--follow is invalid with --each, which submits several executions; remove one of them")
    if each is not None and (options["key"] or options["execution_id"]):
        raise click.UsageError("--key and --id are invalid with --each, which submits several executions; remove them")
    one = each is None
    warning = await _check_task(app, task, options)
    lines = _read(app, task, [arguments] if each is None else each, options, one=one)
    stored = [each for batch in progress(_batches(lines), "submitting") for each in await _send(app, batch, one=one)]
    if warning and stored:
        _note(warning)
    if not lines:
        _note("nothing was submitted: the file has no valid lines")
    if not (wait or follow):
        await _warn(app, {line.submission.options.lane for line in lines})
    for submitted in stored:
        if submitted.outcome is SubmitOutcome.DUPLICATE:
            _note(f"duplicate: {submitted.execution_id} was already submitted with this key; nothing was submitted now")
        if follow:
            await _follow(app, submitted, timeout)
        if not (wait or follow):
            yield Accepted(execution_id=submitted.execution_id, outcome=submitted.outcome)
        elif ended := await _end(app, submitted, timeout):
            yield ended


async def _check_task(app: App, name: str, options: Mapping[str, Any]) -> str | None:
    """Refuse a task that no live worker has, because it is probably misspelt; with an app or a lane, return a warning.

    If no worker runs at all, the name may be right: a worker can start later.
    """
    if app.tasks and name not in app.tasks:
        raise unknown_task(app.tasks, name)
    async with app.database.connection() as conn:
        found = await task_engine.find_task(conn, name, namespace=options["namespace"] or "default")
    if found.outcome != "missing":
        return None
    nearest = f"; did you mean {' or '.join(map(shown, found.nearest))}?" if found.nearest else ""
    problem = f"no running worker has task {shown(name)}{nearest}"
    if not app.tasks and options["lane"] is None:
        remedy = (
            "to see which worker has which tasks: ff workers list; to submit it before its worker runs: --lane LANE"
        )
        raise UnknownTask(f"{problem}; {remedy}", task=name)
    return f"{problem}; its execution waits until a worker that has it starts: ff worker FILE.py:app"


def _read(app: App, task: str, calls: Any, options: dict[str, Any], *, one: bool) -> list[Line]:
    """The submissions. An invalid line of a file is printed as an error, and the others are still submitted."""
    lines = []
    for number, call in enumerate(calls, 1):
        try:
            if one or call.strip():
                lines.append(Line(number, _submission(app, task, call if one else _object(call), options)))
        except FlowFabricError as error:
            if one:
                raise
            _line_error(number, error).report()
    return lines


def _line_error(number: int, error: FlowFabricError) -> CommandError:
    return CommandError(error.code, f"line {number:,}: {error.message}", {**error.fields, "line": number})


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        beginning = shown(line.decode(errors="replace").strip())
        raise InvalidBody(f"{beginning} is invalid: {error}; use one JSON object per line", field="payload") from None


def _submission(app: App, name: str, arguments: Mapping[str, Any], options: dict[str, Any]) -> Submission:
    with checking_arguments(name, arguments):
        if name in app.tasks:
            made = app.tasks[name].submission(**arguments)
        else:
            made = submission(Options(task=name), payloads.encode(arguments), {})
    return with_options(made, given(options))


def _batches(lines: Sequence[Line]) -> list[Sequence[Line]]:
    return [lines[start : start + BATCH] for start in range(0, len(lines), BATCH)]


async def _send(app: App, lines: Sequence[Line], *, one: bool) -> list[Submitted]:
    answers = await app.client.submit_many([line.submission for line in lines])
    stored = []
    for line, answer in zip(lines, answers, strict=True):
        if isinstance(answer, Submitted):
            stored.append(answer)
        elif one:
            raise answer
        else:
            _line_error(line.number, answer).report()
    return stored


async def _warn(app: App, lanes: set[str]) -> None:
    """Warn if no live worker serves a lane: this is the most common mistake."""
    async with app.database.connection() as conn:
        for lane in sorted(lanes):
            if not (await worker_engine.list_workers(conn, lane=lane, limit=1)).items:
                _note(
                    f"no live worker serves lane {lane}; executions there wait until one does. "
                    "To see which lanes are served: ff workers list. To use the lane of the task: --app FILE.py:app"
                )


def _note(text: str) -> None:
    """A note to people on standard error; with --json the same is in the result."""
    if not click.get_current_context().meta.get(JSON):
        click.echo(formatting.printable(text), err=True)


async def _follow(app: App, submitted: Submitted, at_most: timedelta | None) -> None:
    """Print the output of an execution, for as long as --timeout."""
    screen = Screen()
    with suppress(TimeoutError):
        try:
            async with asyncio.timeout(None if at_most is None else at_most.total_seconds()):
                async for frame in app.execution(submitted.execution_id).frames(attempts="valid"):
                    screen.write(frame)
        finally:
            screen.end()


async def _explain(execution: Execution[Any]) -> None:
    """Say what an execution waits for while it does not run, and again if it waits for something else."""
    said = None
    while True:
        await asyncio.sleep(PATIENCE)
        with suppress(FlowFabricError):
            found = await execution.describe()
            if found.explanation.waits_for != said and found.state.public_state not in RUNS_OR_ENDED:
                said = found.explanation.waits_for
                _note(f"{execution.execution_id} {found.explanation.sentence}")


async def _end(app: App, submitted: Submitted, at_most: timedelta | None) -> Ended | None:
    execution = app.execution(submitted.execution_id)
    try:
        with spinner(f"waiting for {submitted.execution_id}"):
            explaining = asyncio.create_task(_explain(execution))
            try:
                result = await execution.result(at_most)
            finally:
                explaining.cancel()
                await asyncio.wait([explaining])
    except TimeoutError:
        message = (
            f"{submitted.execution_id} has not ended within --timeout and continues; "
            f"to see its state: ff executions explain {submitted.execution_id}"
        )
        CommandError("not_ended", message, {"execution_id": submitted.execution_id}).report()
        return None
    except ExecutionFailed as failed:
        message = "\n".join([failed.message, *map(tracebacks.folded, getattr(failed, "__notes__", []))])
        fields = {"execution_id": submitted.execution_id, "failure": failed.failure}
        CommandError(failed.code, message, fields).report()
        return None
    return Ended(execution_id=submitted.execution_id, outcome=submitted.outcome, result=result)
