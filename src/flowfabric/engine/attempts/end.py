"""Ends of attempts: complete, fail or delay; many in one call, each checked against its fence."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from flowfabric import calls
from flowfabric.calls import Act
from flowfabric.errors import FlowFabricError
from flowfabric.ids import check_text, kept_text
from flowfabric.model import Completed, Completion, Delay, Delayed, Failed, FailureClass, FailureReport, Fence
from flowfabric.postgres.driver import Connection

T = TypeVar("T")

RESULT_LIMIT = 1_048_576
TRACEBACK_BYTES = 16_384
FIRST_BYTES = 4_096  # of a traceback that is cut in the middle


async def complete(conn: Connection, fence: Fence, result: bytes | None = None, *, encoding: str = "json") -> Completed:
    """Complete an execution with its result.

    A repeated call raises `ExecutionNotActive` with the outcome, epoch and attempt that ended the execution, which may
    be the caller's own. Raises `LeaseLost`, `ExecutionNotFound` if retention has removed the execution, and
    `PayloadTooLarge` or `InvalidBody`, which keep the lease.
    """
    return calls.only(await complete_many(conn, [Completion(fence=fence, result=result, encoding=encoding)]))


async def complete_many(
    conn: Connection, completions: Sequence[Completion], *, result_limit: int = RESULT_LIMIT, wait: bool = True
) -> list[Completed | FlowFabricError]:
    """Complete many executions, as if one after the other, and return one result per item, in order.

    Without `wait`, an item whose execution or flow another transaction has locked is refused with `RowLocked`, so
    that the other items do not wait for it.
    """
    read = partial(_completion, result_limit=result_limit)
    return await calls.each_fenced(
        conn, "complete", completions, read, Completed, ends=True, result_limit=result_limit, wait=wait
    )


async def fail(
    conn: Connection,
    fence: Fence,
    reason: str,
    *,
    class_: FailureClass = FailureClass.TRANSIENT,
    category: str | None = None,
    traceback: str | None = None,
    retry_after: timedelta | None = None,
) -> Failed:
    """Fail an attempt; the execution's policy decides whether it is retried.

    Reason and traceback are truncated, and characters that Postgres cannot store are replaced, so that recording a
    failure never fails. Raises `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`, `InvalidBody`, `InvalidTime`.
    """
    report = FailureReport(
        fence=fence, class_=class_, reason=reason, category=category, traceback=traceback, retry_after=retry_after
    )
    return calls.only(await fail_many(conn, [report]))


async def fail_many(
    conn: Connection, reports: Sequence[FailureReport], *, wait: bool = True
) -> list[Failed | FlowFabricError]:
    """Fail many attempts, as if one after the other, and return one result per item, in order.

    Without `wait`, an item whose execution or flow another transaction has locked is refused with `RowLocked`, so
    that the other items do not wait for it.
    """
    return await calls.each_fenced(conn, "fail", reports, _failure, Failed, ends=True, wait=wait)


async def delay(conn: Connection, fence: Fence, until: timedelta | datetime | None = None) -> Delayed:
    """Release the lease and continue the same attempt at `until`, or immediately if it is `None`.

    Also used to release an unfinished execution: no retry and no reclaim is counted. Raises `LeaseLost`,
    `ExecutionNotActive`, `ExecutionNotFound`, `InvalidTime`.
    """
    return calls.only(await delay_many(conn, [Delay(fence=fence, until=until)]))


async def delay_many(
    conn: Connection, delays: Sequence[Delay], *, wait: bool = True
) -> list[Delayed | FlowFabricError]:
    """Delay many attempts, as if one after the other, and return one result per item, in order.

    Without `wait`, an item whose execution or flow another transaction has locked is refused with `RowLocked`, so
    that the other items do not wait for it.
    """
    return await calls.each_fenced(conn, "delay", delays, _delay, Delayed, wait=wait)


def _completion(completion: Completion, *, result_limit: int) -> Act:
    size, encoding = calls.check_result(completion.result, completion.encoding, result_limit)
    return Act(completion.fence, {"results": completion.result, "encodings": encoding}, size)


def _failure(report: FailureReport) -> Act:
    values = {
        "classes": kept_text(str(report.class_)),
        "reasons": kept_text(str(report.reason)),
        "categories": report.category if report.category is None else kept_text(str(report.category)),
        "tracebacks": report.traceback and _ends(str(report.traceback)),
        "retry_afters_ms": calls.span(report.retry_after, "retry_after"),
    }
    return Act(report.fence, values, TRACEBACK_BYTES)


def _ends(traceback: str) -> str:
    """Cut a long traceback in the middle: its end names the error, and its beginning the frames of the program."""
    storable = kept_text(traceback, len(traceback.encode(errors="replace")) * 3).encode()
    if len(storable) <= TRACEBACK_BYTES:
        return storable.decode()
    first, last = storable[:FIRST_BYTES], storable[FIRST_BYTES - TRACEBACK_BYTES + 60 :]
    first = first.rpartition(b"\n")[0] or first
    last = last.partition(b"\n")[2] or last
    left_out = len(storable) - len(first) - len(last)
    return f"{first.decode(errors='ignore')}\n  … {left_out:,} bytes left out\n{last.decode(errors='ignore')}"


def _delay(delay: Delay) -> Act:
    span, moment = calls.span_or_moment(delay.until, "until")
    name = delay.name and check_text(delay.name, "name")
    values = {
        "delays_ms": span,
        "delays_until": moment,
        "names": name,
        "occurrences": calls.expect(int, delay.occurrence, "occurrence"),
        "reasons": delay.reason and kept_text(str(delay.reason)),
    }
    return Act(delay.fence, values)
