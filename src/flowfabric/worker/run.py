"""One run of a handler: from a claim to exactly one outcome."""

import asyncio
import logging
import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from flowfabric import payloads
from flowfabric.app.tasks import Task
from flowfabric.errors import Fenced, FlowFabricError
from flowfabric.handler.context import Context
from flowfabric.handler.logs import running
from flowfabric.handler.retries import NEVER_RETRIED
from flowfabric.handler.sync import SyncContext
from flowfabric.handler.waits import Stop, Unwind
from flowfabric.model import Claim, FailureClass, JournalEntry, Wish
from flowfabric.payloads.codecs import PLAIN, of_result
from flowfabric.worker.threads import Threads

log = logging.getLogger("flowfabric.worker")


class Completed(msgspec.Struct, frozen=True, gc=False):
    """The handler returned. `stored` is its result as the codec of the app encodes it, if the app has one."""

    result: bytes
    stored: bytes | None = None
    encoding: str = PLAIN


class Failed(msgspec.Struct, frozen=True):
    """The handler raised, or could not be called."""

    class_: FailureClass
    reason: str
    traceback: str | None = None


class Suspended(msgspec.Struct, frozen=True):
    """The handler was unwound because it waits: for one wait of each group to complete."""

    wishes: Sequence[Sequence[Wish]]


class Postponed(msgspec.Struct, frozen=True):
    """This worker cannot run the execution now; another worker may, or this one later."""

    delay: timedelta
    reason: str


class Lost(msgspec.Struct, frozen=True):
    """The lease is lost, so any report would be false."""


class Changed(msgspec.Struct, frozen=True):
    """The run does not fit what earlier runs have saved: the code has changed."""

    reason: str
    steps: Sequence[str]


Outcome = Completed | Failed | Suspended | Postponed | Changed | Lost


async def run(task: Task[..., Any], claim: Claim, context: Context, threads: Threads) -> Outcome:
    """Call the handler once and return the outcome, whatever the handler returned or raised.

    What it has appended to its stream is committed before the outcome is reported. If the run does not fit what earlier
    runs have saved, that is the outcome, even if the handler has caught the exception.
    """
    outcome = await _run(task, claim, context, threads)
    if not isinstance(outcome, Lost):
        try:
            await context.close_output(suspends=isinstance(outcome, Suspended))
        except (asyncio.CancelledError, Fenced):  # the lease is lost, or the worker stops
            return Lost()
        if (changed := context.leaving.changed) is not None:
            return Changed(changed.message, [str(changed.fields["name"])])
    return outcome


async def _run(task: Task[..., Any], claim: Claim, context: Context, threads: Threads) -> Outcome:
    try:
        inputs = {name: upstream.result for name, upstream in claim.inputs.items()} if claim.inputs else None
        arguments = task.arguments.decode(claim.payload, inputs)
    except Exception as error:
        what = f"the payload does not fit {task.name}: {_describe(error)}"
        return Changed(what, []) if _has_saved(claim) else Failed(FailureClass.PERMANENT, what)
    try:
        logged = running.set(claim)
        try:
            with context.capturing_logs(task.capture_logs):
                result = await _call(task, claim, arguments, context, threads)
        finally:
            running.reset(logged)  # a changed context would keep the next run from sharing this asyncio task
    except Stop:
        return Lost()
    except Unwind:
        return _swallowed(task, context) if context.leaving.swallowed else Suspended(context.asked)
    except BaseExceptionGroup as group:
        if group.split(Unwind)[1] is None:  # waits in a task group are unwound together
            return Suspended(context.asked) if group.subgroup(Stop) is None else Lost()
        return _failed(task, group)
    except asyncio.CancelledError as error:
        return Lost() if _is_cancelled() else _failed(task, error)
    except Fenced:
        return Lost()
    except (Exception, SystemExit) as error:  # SystemExit in a handler ends the run, not the worker
        return (
            _swallowed(task, context, error) if context.asked and not _while_unwinding(error) else _failed(task, error)
        )
    if context.asked:
        return _swallowed(task, context)
    if unawaited := context.unawaited():
        log.warning(
            "task %s did not await %s, so the call did nothing; write await before it (execution %s)",
            *(task.name, ", ".join(unawaited), claim.execution_id),
        )
    if unasked := context.unasked(task.retired):
        return Changed(_unasked(unasked), unasked)
    return _completed(task, claim, result)


def _completed(task: Task[..., Any], claim: Claim, result: object) -> Completed | Failed:
    try:
        encoded, _ = payloads.keep(result, task.returns, "annotate the task: -> {}")
    except FlowFabricError as error:
        return Failed(FailureClass.PERMANENT, f"the result of {task.name} {error.message}")
    codecs = task.app.codecs
    if codecs.label == PLAIN:
        return Completed(encoded)
    try:
        return Completed(encoded, codecs.encode(encoded, of_result, claim.execution_id), codecs.label)
    except Exception as error:  # of the app's codec, whose key may come from a service that is down
        return _failed(task, error)


def _has_saved(claim: Claim) -> bool:
    """Whether an earlier run has saved something."""
    return claim.journal is not None and bool(claim.journal.entries or claim.journal.more)


def started_without_version(task: Task[..., Any], claim: Claim, journal: Sequence[JournalEntry]) -> bool:
    """Whether code without versions has saved steps of an execution of a task that has versions now."""
    return task.is_versioned and claim.version is None and bool(journal)


async def _call(
    task: Task[..., Any], claim: Claim, arguments: dict[str, Any], context: Context, threads: Threads
) -> Any:
    if task.is_async:
        if task.injected is not None:
            arguments[task.injected] = context
        return await task.handler(**arguments)
    if task.injected is not None:
        loop = asyncio.get_running_loop()
        arguments[task.injected] = SyncContext(context, lambda: loop)
    return await threads.call(f"{claim.task} {claim.execution_id}", lambda: task.handler(**arguments))


def _is_cancelled() -> bool:
    """Whether the worker has cancelled this run; otherwise something that the handler awaited was cancelled."""
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0


def _failed(task: Task[..., Any], error: BaseException) -> Failed:
    permanent = isinstance(error, (*NEVER_RETRIED, *task.non_retryable))
    return Failed(
        FailureClass.PERMANENT if permanent else FailureClass.TRANSIENT,
        _describe(error),
        "".join(traceback.format_exception(error)),
    )


def _describe(error: BaseException) -> str:
    """Return type and message of an exception, or only the type if its `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error.message if isinstance(error, FlowFabricError) else error}"
    except Exception:
        return type(error).__name__


def _while_unwinding(error: BaseException) -> bool:
    """Whether the error was raised while the handler was unwound, for example in a `finally`."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, Unwind):
        inner = inner.__context__
    return inner is not None


def _swallowed(task: Task[..., Any], context: Context, error: BaseException | None = None) -> Failed:
    if task.is_async and context.leaving.is_in_gather:
        what = (
            "asyncio.gather(..., return_exceptions=True) or asyncio.wait swallowed the internal exception that unwinds "
            "a waiting run; use ctx.all_settled(...) for children that may fail, or gather without return_exceptions"
        )
    else:
        what = (
            "the handler caught the internal exception that unwinds a waiting run; catch Exception, not BaseException"
        )
    if error is None:
        return Failed(FailureClass.PERMANENT, what)
    traced = "".join(traceback.format_exception(error))
    return Failed(FailureClass.PERMANENT, f"{what}; after that it raised {_describe(error)}", traced)


def _unasked(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    saved, them = f"{', '.join(map(repr, names[:5]))}{more}", "it" if len(names) == 1 else "them"
    return f"an earlier run saved {saved}, and this run completed without asking for {them}"
