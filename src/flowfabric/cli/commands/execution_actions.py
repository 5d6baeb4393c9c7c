"""`ff executions`: the commands that change executions, one or many at once. `executions.py` has those that read."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal

import click

from flowfabric.app import App
from flowfabric.app.executions import Execution
from flowfabric.cli import resolve
from flowfabric.cli.errors import command_error
from flowfabric.cli.options import (
    by_option,
    duration,
    execution_argument,
    executions_argument,
    json,
    reason_option,
    required_reason_option,
    tag,
    when,
)
from flowfabric.cli.output import prints
from flowfabric.cli.tables import progress
from flowfabric.errors import FlowFabricError
from flowfabric.model import Page, PriorityChange

Done = dict[str, object]


async def _each(
    app: App, given: Sequence[str], doing: str, act: Callable[[Execution[object]], Awaitable[Done]]
) -> Page[Done] | None:
    """Do something with each execution. An error is printed, and the others are still done."""
    done: list[Done] = []
    for execution in progress(given, doing):
        try:
            found = await resolve.execution(app, execution)
            done.append({"execution_id": found.execution_id, **await act(found)})
        except FlowFabricError as error:
            command_error(error, execution_id=execution).report()
    return Page(done) if done else None


@click.command()
@executions_argument
@reason_option
@by_option
@prints("execution=execution_id", "state")
async def cancel(app: App, executions: Sequence[str], reason: str | None, by: str) -> Page[Done] | None:
    """Cancel executions. A worker that runs one stops at its next call to the engine. Safe to repeat.

    Pass one or more ids, or - to read them from standard input.

    \b
    Example:
      ff executions cancel 019df237-3e80-8a31-800c-3f9b71e5d004 --reason "submitted twice"
    """

    async def act(execution: Execution[object]) -> Done:
        return {"state": await execution.cancel(reason, by=by)}

    return await _each(app, executions, "cancelling", act)


@click.command()
@executions_argument
@click.option("--complete", metavar="JSON",
              help="Complete it with this result, such as '{\"paid\": true}', or null for no result.")  # fmt: skip
@click.option("--fail", is_flag=True, help="Fail it for good; it is not retried.")
@required_reason_option
@by_option
@prints("execution=execution_id", "state")
async def override(
    app: App, executions: Sequence[str], complete: str | None, fail: bool, reason: str, by: str
) -> Page[Done] | None:
    """Complete or fail executions by hand, whatever their state. Waiting callers and flows continue with that outcome.

    A worker that runs one stops, and its own outcome is refused. Safe to repeat.

    Pass one or more ids, or - to read them from standard input.

    \b
    Example:
      ff executions override 019df237-3e80-8a31-800c-3f9b71e5d004 --complete '{"paid": true}' \\
        --reason "the bank confirmed it by phone"
      ff executions override 019df237-3e80-8a31-800c-3f9b71e5d004 --fail --reason "the order was withdrawn"
    """
    if fail is (complete is not None):
        raise click.UsageError("the outcome is missing or ambiguous; use either --complete JSON or --fail")

    outcome: Literal["success", "failed"] = "failed" if complete is None else "success"
    result = None if complete is None else json(complete)

    async def act(execution: Execution[object]) -> Done:
        return {"state": await execution.override(outcome, result, reason=reason, by=by)}

    return await _each(app, executions, "overriding", act)


@click.command()
@executions_argument
@click.option("--from", "from_step", metavar="STEP",
              help="Discard this step or wait and what was saved after it, and run that again. `ff executions steps` "
                   "lists the names.")  # fmt: skip
@click.option("--occurrence", type=click.IntRange(1), default=1, show_default=True,
              help="Which use of the name that --from gives, counted from 1.")  # fmt: skip
@click.option("--from-scratch", is_flag=True, help="Discard all saved steps and finished waits, and run them again.")
@click.option("--deadline", type=when, metavar="WHEN",
              help="Expire it if it has not ended by then: a duration (2h) or a timestamp (2026-05-04T09:00:00Z). "
                   "Without this option it has no deadline.")  # fmt: skip
@by_option
@prints("execution=execution_id", "state")
async def replay(
    app: App,
    executions: Sequence[str],
    from_step: str | None,
    occurrence: int,
    from_scratch: bool,
    deadline: timedelta | datetime | None,
    by: str,
) -> Page[Done] | None:
    """Run ended executions again. Steps that were saved are not repeated, unless you discard them.

    Executions that are held because their code has changed run again with --from or --from-scratch.

    Pass one or more ids, or - to read them from standard input.

    \b
    Example:
      ff executions replay 019df237-3e80-8a31-800c-3f9b71e5d004
      ff executions replay 019df237-3e80-8a31-800c-3f9b71e5d004 --from charge
      ff executions list --state failed --ids | ff executions replay -
    """
    if from_step is not None and from_scratch:
        raise click.UsageError("--from and --from-scratch exclude each other; use one of them")

    async def act(execution: Execution[object]) -> Done:
        moved = await app.executions.replay(
            execution.execution_id,
            by=by,
            deadline=deadline,
            from_step=from_step,
            from_occurrence=occurrence,
            from_scratch=from_scratch,
        )
        return {"state": moved.public_state}

    return await _each(app, executions, "replaying", act)


@click.command()
@executions_argument
@reason_option
@by_option
@prints("execution=execution_id", "outcome")
async def hold(app: App, executions: Sequence[str], reason: str | None, by: str) -> Page[Done] | None:
    """Keep executions from being claimed until `ff executions unhold`. Safe to repeat.

    Pass one or more ids, or - to read them from standard input.

    \b
    Example:
      ff executions hold 019df237-3e80-8a31-800c-3f9b71e5d004 --reason "checking the input"
    """

    async def act(execution: Execution[object]) -> Done:
        return {"outcome": await app.executions.hold(execution.execution_id, by=by, reason=reason)}

    return await _each(app, executions, "holding", act)


@click.command()
@executions_argument
@reason_option
@by_option
@prints("execution=execution_id", "outcome", "state")
async def unhold(app: App, executions: Sequence[str], reason: str | None, by: str) -> Page[Done] | None:
    """Release executions that were held with `ff executions hold`. Safe to repeat.

    Pass one or more ids, or - to read them from standard input.

    \b
    Example:
      ff executions unhold 019df237-3e80-8a31-800c-3f9b71e5d004
    """

    async def act(execution: Execution[object]) -> Done:
        done = await app.executions.unhold(execution.execution_id, by=by, reason=reason)
        return {"outcome": done.outcome, "state": done.public_state}

    return await _each(app, executions, "releasing", act)


@click.command()
@executions_argument
@reason_option
@click.option("--delay", type=duration, metavar="DURATION", help="Resume after this long (10m) instead of immediately.")
@by_option
@prints("execution=execution_id", "state")
async def resume(
    app: App, executions: Sequence[str], reason: str | None, delay: timedelta | None, by: str
) -> Page[Done] | None:
    """Resume suspended executions now, without the signal, approval or time they wait for.

    Pass one or more ids, or - to read them from standard input.

    \b
    Example:
      ff executions resume 019df237-3e80-8a31-800c-3f9b71e5d004 --reason "answered by phone"
    """

    async def act(execution: Execution[object]) -> Done:
        moved = await app.executions.resume(execution.execution_id, by=by, note=reason, delay=delay)
        return {"state": moved.public_state}

    return await _each(app, executions, "resuming", act)


@click.command("change-priority")
@execution_argument
@click.argument("priority", type=click.IntRange(0, 9_000))
@by_option
@prints(sentence=lambda change: f"priority {change.priority}, was {change.previous}")
async def change_priority(app: App, execution: str, priority: int, by: str) -> PriorityChange:
    """Change the priority of an execution in its lane: 0 to 9000, highest first.

    \b
    Example:
      ff executions change-priority 019df237-3e80-8a31-800c-3f9b71e5d004 100
    """
    execution_id = await resolve.execution_id(app, execution)
    return await app.executions.change_priority(execution_id, priority, by=by)


@click.command("set-tag")
@execution_argument
@click.argument("tag", type=tag, metavar="KEY=VALUE")
@by_option
@prints(sentence=lambda done: f"tag {done['tag']}: {done['outcome']}")
async def set_tag(app: App, execution: str, tag: tuple[str, str], by: str) -> Done:
    """Add or change a tag of an execution; KEY= removes it. Safe to repeat.

    \b
    Example:
      ff executions set-tag 019df237-3e80-8a31-800c-3f9b71e5d004 billing.customer=4711
    """
    execution_id = await resolve.execution_id(app, execution)
    return {"tag": tag[0], "outcome": await app.executions.set_tag(execution_id, tag[0], tag[1] or None, by=by)}
