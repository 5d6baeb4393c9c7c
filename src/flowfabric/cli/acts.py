"""`ff executions`: changing the course of what was submitted, one or many at once."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

import click

from flowfabric.app import App
from flowfabric.app.executions import Execution
from flowfabric.cli.answers import answering
from flowfabric.cli.options import acting, many_executions, one_execution, span, tag, time
from flowfabric.cli.refusals import refused
from flowfabric.cli.tables import tracked
from flowfabric.engine import executions as engine
from flowfabric.engine import holds, waits
from flowfabric.errors import FlowFabricError
from flowfabric.model import Page, PriorityChange

Done = dict[str, object]


async def _each(
    app: App, given: Sequence[str], doing: str, act: Callable[[Execution[object]], Awaitable[Done]]
) -> Page[Done] | None:
    """Do something with each; one that is refused is told of, and harms no other."""
    done: list[Done] = []
    for execution in tracked(given, doing):
        try:
            done.append({"execution_id": execution, **await act(app.execution(execution))})
        except FlowFabricError as refusal:
            refused(refusal, execution_id=execution).tell()
    return Page(done) if done else None


async def _wake(app: App, execution: Execution[object]) -> None:
    await app.wake((await execution.describe()).lane)


@click.command()
@many_executions
@click.option("--reason", help="Why; the log and the execution keep it.")
@acting
@answering("execution=execution_id", "state")
async def cancel(app: App, executions: Sequence[str], reason: str | None, by: str) -> Page[Done] | None:
    """End executions that are no longer wanted; whoever runs one learns at its next call. Safe to repeat.

    Several may be given; - reads them from standard input.

    \b
    Example:
      ff executions cancel {fp:24}:550e8400-e29b-41d4-a716-446655440000 --reason "sent twice"
    """

    async def act(execution: Execution[object]) -> Done:
        return {"state": await execution.cancel(reason, by=by)}

    return await _each(app, executions, "cancelling", act)


@click.command()
@many_executions
@click.option("--from-scratch", is_flag=True, help="Do saved steps and ended waits again, too.")
@click.option("--deadline", type=time, metavar="TIME", help="When it must have ended; the old deadline is dropped.")
@acting
@answering("execution=execution_id", "state")
async def replay(
    app: App, executions: Sequence[str], from_scratch: bool, deadline: timedelta | datetime | None, by: str
) -> Page[Done] | None:
    """Run executions that have ended again. What they have saved in steps is not done again.

    Several may be given; - reads them from standard input.

    \b
    Example:
      ff executions replay {fp:24}:550e8400-e29b-41d4-a716-446655440000
      ff executions list --state failed --ids | ff executions replay -
    """

    async def act(execution: Execution[object]) -> Done:
        state = await app.database.run(
            lambda conn: engine.replay(
                conn, execution.execution_id, by=by, deadline=deadline, keep_steps=not from_scratch
            )
        )
        await _wake(app, execution)
        return {"state": state}

    return await _each(app, executions, "replaying", act)


@click.command()
@many_executions
@click.option("--why", help="What for; `ff executions explain` shows it.")
@acting
@answering("execution=execution_id", "outcome")
async def hold(app: App, executions: Sequence[str], why: str | None, by: str) -> Page[Done] | None:
    """Keep executions from being claimed until `ff executions unhold`. Safe to repeat.

    Several may be given; - reads them from standard input.

    \b
    Example:
      ff executions hold {fp:24}:550e8400-e29b-41d4-a716-446655440000 --why "to look at it"
    """

    async def act(execution: Execution[object]) -> Done:
        async with app.database.connection() as conn:
            return {"outcome": await holds.hold(conn, execution.execution_id, by=by, why=why)}

    return await _each(app, executions, "holding", act)


@click.command()
@many_executions
@click.option("--why", help="What for; the log keeps it.")
@acting
@answering("execution=execution_id", "outcome", "state")
async def unhold(app: App, executions: Sequence[str], why: str | None, by: str) -> Page[Done] | None:
    """Let executions go that were held back. Safe to repeat.

    Several may be given; - reads them from standard input.

    \b
    Example:
      ff executions unhold {fp:24}:550e8400-e29b-41d4-a716-446655440000
    """

    async def act(execution: Execution[object]) -> Done:
        async with app.database.connection() as conn:
            done = await holds.unhold(conn, execution.execution_id, by=by, why=why)
        await _wake(app, execution)
        return {"outcome": done.outcome, "state": done.public_state}

    return await _each(app, executions, "letting go", act)


@click.command()
@many_executions
@click.option("--note", help="What for; the log keeps it.")
@click.option("--delay", type=span, metavar="SPAN", help="Not at once, but after this span.")
@acting
@answering("execution=execution_id", "state")
async def resume(
    app: App, executions: Sequence[str], note: str | None, delay: timedelta | None, by: str
) -> Page[Done] | None:
    """Let suspended executions go on, whatever they wait for.

    Several may be given; - reads them from standard input.

    \b
    Example:
      ff executions resume {fp:24}:550e8400-e29b-41d4-a716-446655440000 --note "answered by phone"
    """

    async def act(execution: Execution[object]) -> Done:
        async with app.database.connection() as conn:
            state = await waits.resume(conn, execution.execution_id, by=by, note=note, delay=delay)
        await _wake(app, execution)
        return {"state": state}

    return await _each(app, executions, "resuming", act)


@click.command("change-priority")
@one_execution
@click.argument("priority", type=click.IntRange(0, 9_000))
@acting
@answering(says=lambda change: f"priority {change.priority}, was {change.previous}")
async def change_priority(app: App, execution: str, priority: int, by: str) -> PriorityChange:
    """Let an execution go before others of its lane, or after them: 0 to 9000, the highest first.

    \b
    Example:
      ff executions change-priority {fp:24}:550e8400-e29b-41d4-a716-446655440000 100
    """
    execution_id = app.execution(execution).execution_id
    async with app.database.connection() as conn:
        return await engine.change_priority(conn, execution_id, priority, by=by)


@click.command("set-tag")
@one_execution
@click.argument("tag", type=tag, metavar="KEY=VALUE")
@acting
@answering(says=lambda done: f"tag {done['tag']}: {done['outcome']}")
async def set_tag(app: App, execution: str, tag: tuple[str, str], by: str) -> Done:
    """Give an execution a tag, or change it; without a value it is taken away. Safe to repeat.

    \b
    Example:
      ff executions set-tag {fp:24}:550e8400-e29b-41d4-a716-446655440000 billing.customer=4711
    """
    execution_id = app.execution(execution).execution_id
    async with app.database.connection() as conn:
        return {"tag": tag[0], "outcome": await engine.set_tag(conn, execution_id, tag[0], tag[1] or None, by=by)}
