"""One run of a handler: from a claim to exactly one outcome."""

import asyncio
import inspect
import traceback
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import msgspec

from flowfabric import payloads
from flowfabric.blocking import Blocking
from flowfabric.context import Context, Sleep, Unwind, Wait
from flowfabric.errors import Fenced, Refusal, ShapeChanged
from flowfabric.model import Claim, FailureClass
from flowfabric.task import Task

T = TypeVar("T")


class Permanent(Exception):
    """Raised by a handler whose failure no retry would mend."""


class Completed(msgspec.Struct, frozen=True):
    """The handler returned."""

    result: bytes


class Failed(msgspec.Struct, frozen=True):
    """The handler raised, or could not be called."""

    class_: FailureClass
    reason: str
    traceback: str | None = None


class Waiting(msgspec.Struct, frozen=True):
    """The handler was unwound because it waits."""

    wishes: Sequence[Sleep | Wait]


class Lost(msgspec.Struct, frozen=True):
    """The lease is gone: anything we said would be false."""


Outcome = Completed | Failed | Waiting | Lost


async def run(task: Task[..., Any], claim: Claim, context: Context, threads: Executor) -> Outcome:
    """Call the handler once and say how that ended, whatever it returned or raised."""
    try:
        arguments = task.arguments.decode(claim.payload)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        return Failed(FailureClass.PERMANENT, f"the payload does not fit {task.name}: {error}")
    try:
        result = await _call(task, arguments, context, threads)
    except Unwind:
        return Waiting(context.asked)
    except asyncio.CancelledError:
        return Lost()
    except Fenced:
        return Lost()
    except Exception as error:
        return _failed(task, error)
    if context.asked:
        return _swallowed()
    if unasked := context.unasked():
        return _failed(task, _changed(unasked))
    try:
        return Completed(payloads.encode(result))
    except Refusal as error:
        return Failed(FailureClass.PERMANENT, f"the result of {task.name} {error.message}")


async def _call(task: Task[..., Any], arguments: dict[str, Any], context: Context, threads: Executor) -> Any:
    if inspect.iscoroutinefunction(task.handler):
        if task.injected is not None:
            arguments[task.injected] = context
        return await task.handler(**arguments)
    loop = asyncio.get_running_loop()
    if task.injected is not None:
        arguments[task.injected] = Blocking(context, loop)
    return await loop.run_in_executor(threads, lambda: task.handler(**arguments))


def _failed(task: Task[..., Any], error: Exception) -> Failed:
    hopeless = isinstance(error, (Permanent, ShapeChanged, *task.permanent))
    return Failed(
        FailureClass.PERMANENT if hopeless else FailureClass.TRANSIENT,
        f"{type(error).__name__}: {error}",
        "".join(traceback.format_exception(error)),
    )


def _swallowed() -> Failed:
    return Failed(
        FailureClass.PERMANENT,
        "the handler caught what carries a waiting run out of it; catch Exception, not BaseException",
    )


def _changed(unasked: Sequence[str]) -> ShapeChanged:
    return ShapeChanged(
        f"an earlier run saved {', '.join(map(repr, unasked))} and this one completed without asking for it; "
        "give changed code a new task name, or replay without saved steps",
        name=unasked[0],
    )
