"""`ff submit`: have a task run, by its name."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, BinaryIO, NamedTuple

import click
import msgspec

from flowfabric import payloads
from flowfabric.app import App
from flowfabric.app.tasks import submission
from flowfabric.cli import texts
from flowfabric.cli.answers import answering
from flowfabric.cli.asking import as_in_app, asked_with, called_with
from flowfabric.cli.options import ReadFile, given, json_object, span, tag, time
from flowfabric.cli.refusals import JSON, Refused, refused
from flowfabric.cli.tables import tracked, waiting
from flowfabric.engine import workers as worker_engine
from flowfabric.errors import ExecutionFailed, FlowFabricError, InvalidBody
from flowfabric.ids import ExecutionId, shown
from flowfabric.model import Options, Submission, SubmitOutcome, Submitted

AT_ONCE = 500


class Line(NamedTuple):
    """What one line of a file asks for."""

    number: int
    asked: Submission


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a submission."""

    execution_id: ExecutionId
    outcome: SubmitOutcome


class Ended(Taken, frozen=True, kw_only=True):
    """What became of it in the end."""

    result: object


def _says(taken: Taken) -> str:
    return texts.pretty(taken.result) if isinstance(taken, Ended) else str(taken.execution_id)


@click.command()
@click.argument("task")
@click.argument("arguments", type=json_object, default="{}", metavar="[JSON]")
@as_in_app
@click.option("--each", type=ReadFile(), help="Submit for every line of a file, a JSON object each; - is stdin.")
@click.option("--lane", help="Where it queues.  [default: the task's, or default]")
@click.option("--namespace", help="Whose it is.")
@click.option("--priority", type=click.IntRange(0, 9_000), help="Higher goes first.")
@click.option("--delay", type=time, metavar="TIME", help="Not before: 10m, or 2026-05-04T09:00:00Z.")
@click.option("--deadline", type=time, metavar="TIME", help="When it must have ended.")
@click.option("--key", help="Submitted again with the same key, it is not run again.")
@click.option("--id", "execution_id", metavar="ID", help="An id of your own.")
@click.option(
    "--tag", "tags", multiple=True, type=tag, metavar="KEY=VALUE", help="What to find it by; may be repeated."
)
@click.option("--need", "needs", multiple=True, help="A capability its worker must have; may be repeated.")
@click.option("--budget", "budgets", multiple=True, help="A budget it draws on; may be repeated.")
@click.option("--quota", "quotas", multiple=True, help="A quota it counts against; may be repeated.")
@click.option("--policy", type=json_object, help='How it is tried: \'{"retry": {"max_retries": 3}}\'.')
@click.option("--wait", is_flag=True, help="Wait until it has ended, and print what it returned.")
@click.option("--timeout", type=span, metavar="SPAN", help="How long to wait at most; it goes on all the same.")
@answering(says=_says)
async def submit(
    app: App, task: str, arguments: Mapping[str, Any], each: BinaryIO | None, wait: bool, timeout: timedelta | None,  # noqa: ASYNC109
    **options: Any,
) -> AsyncIterator[Taken]:  # fmt: skip
    """Have TASK run, with its arguments as a JSON object; prints the id as soon as it is on disk.

    With --each there is one line of answer for every line submitted.

    \b
    Example:
      ff submit greet '{"name": "Ada"}' --key ada-2026 --wait
      ff submit greet --each people.jsonl --app hello.py:app
    """
    if each is not None and (options["key"] or options["execution_id"]):
        raise click.UsageError("--key and --id name one execution; they cannot be given with --each")
    one = each is None
    asked = _read(app, task, [arguments] if each is None else each, options, one=one)
    taken = [taken for some in tracked(_chunks(asked), "submitting") for taken in await _send(app, some, one=one)]
    if not wait:
        await _warn(app, {line.asked.options.lane for line in asked})
    for submitted in taken:
        if submitted.outcome is SubmitOutcome.DUPLICATE:
            _note(f"duplicate of {submitted.execution_id}: nothing more was submitted")
        if not wait:
            yield Taken(execution_id=submitted.execution_id, outcome=submitted.outcome)
        elif ended := await _end(app, submitted, timeout):
            yield ended


def _read(app: App, task: str, calls: Any, options: dict[str, Any], *, one: bool) -> list[Line]:
    """What is asked for. A line that cannot be is told of, and harms no other."""
    if app.tasks and task not in app.tasks:
        raise Refused("no_such_task", f"the app has no task {shown(task)}; it has {', '.join(app.tasks)}")
    asked = []
    for number, call in enumerate(calls, 1):
        try:
            if one or call.strip():
                asked.append(Line(number, _submission(app, task, call if one else _object(call), options)))
        except FlowFabricError as refusal:
            if one:
                raise
            refused(refusal, line=number).tell()
    return asked


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        beginning = shown(line.decode(errors="replace").strip())
        raise InvalidBody(f"{beginning} is no JSON object: {error}; write one a line", field="payload") from None


def _submission(app: App, name: str, arguments: Mapping[str, Any], options: dict[str, Any]) -> Submission:
    with called_with(name, arguments):
        if name in app.tasks:
            asked = app.tasks[name].submission(**arguments)
        else:
            asked = submission(Options(task=name), payloads.encode(arguments), {})
    return asked_with(asked, given(options))


def _chunks(asked: Sequence[Line]) -> list[Sequence[Line]]:
    return [asked[start : start + AT_ONCE] for start in range(0, len(asked), AT_ONCE)]


async def _send(app: App, lines: Sequence[Line], *, one: bool) -> list[Submitted]:
    answers = await app.client.submit_many([line.asked for line in lines])
    taken = []
    for line, answer in zip(lines, answers, strict=True):
        if isinstance(answer, Submitted):
            taken.append(answer)
        elif one:
            raise answer
        else:
            refused(answer, line=line.number).tell()
    return taken


async def _warn(app: App, lanes: set[str]) -> None:
    """Say so where nobody is there to run it: a lane that nobody serves is the usual mistake."""
    async with app.database.connection() as conn:
        for lane in sorted(lanes):
            if not (await worker_engine.list_workers(conn, lane=lane, limit=1)).items:
                _note(
                    f"no live worker serves lane {lane} now: it waits there. `ff workers list` shows who serves what; "
                    "--app FILE.py:app takes the lane from the task"
                )


def _note(said: str) -> None:
    """A word to people; programs see it in the answer."""
    if not click.get_current_context().meta.get(JSON):
        click.echo(texts.printable(said), err=True)


async def _end(app: App, submitted: Submitted, timeout: timedelta | None) -> Ended | None:
    execution = app.execution(submitted.execution_id)
    try:
        with waiting(f"waiting for {submitted.execution_id}"):
            result = await execution.result(timeout)
    except TimeoutError:
        message = f"{submitted.execution_id} has not ended in time; it goes on: `ff executions explain` says why"
        Refused("not_ended", message, {"execution_id": submitted.execution_id}).tell()
        return None
    except ExecutionFailed as failed:
        said = "\n".join([str(failed), *getattr(failed, "__notes__", [])])
        Refused(failed.code, said, {"execution_id": submitted.execution_id, "failure": failed.failure}).tell()
        return None
    return Ended(execution_id=submitted.execution_id, outcome=submitted.outcome, result=result)
