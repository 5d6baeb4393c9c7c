"""Ending an attempt: done, failed, or put off; many in one call, each under its fence."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from flowfabric import calls
from flowfabric.calls import Act
from flowfabric.errors import FlowFabricError, PayloadTooLarge
from flowfabric.ids import check_text, kept_text
from flowfabric.model import Completed, Completion, Delay, Delayed, Failed, FailureClass, FailureReport, Fence
from flowfabric.postgres.driver import Connection

T = TypeVar("T")

RESULT_LIMIT = 1_048_576
TRACEBACK_BYTES = 16_384


async def complete(conn: Connection, fence: Fence, result: bytes | None = None, *, encoding: str = "json") -> Completed:
    """Report that the work is done, with its result.

    Repeated, it raises `ExecutionNotActive` with the outcome, epoch and attempt that counted, which may be the
    caller's own. Raises `LeaseLost`, and `PayloadTooLarge` or `InvalidBody` without giving the lease up.
    """
    return calls.only(await complete_many(conn, [Completion(fence=fence, result=result, encoding=encoding)]))


async def complete_many(
    conn: Connection, completions: Sequence[Completion], *, result_limit: int = RESULT_LIMIT
) -> list[Completed | FlowFabricError]:
    """Report many pieces of work done, as if one after the other, and answer each in its place."""
    read = partial(_completion, result_limit=result_limit)
    return await calls.each_fenced(conn, "complete", completions, read, Completed, ends=True, result_limit=result_limit)


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
    """Report that the attempt failed; the stored policy decides whether it is tried again.

    Reason and traceback are made storable and cut, so that recording a failure cannot fail. Raises `LeaseLost`,
    `ExecutionNotActive`, `InvalidBody`, `InvalidTime`.
    """
    report = FailureReport(
        fence=fence, class_=class_, reason=reason, category=category, traceback=traceback, retry_after=retry_after
    )
    return calls.only(await fail_many(conn, [report]))


async def fail_many(conn: Connection, reports: Sequence[FailureReport]) -> list[Failed | FlowFabricError]:
    """Report many failed attempts, as if one after the other, and answer each in its place."""
    return await calls.each_fenced(conn, "fail", reports, _failure, Failed, ends=True)


async def delay(conn: Connection, fence: Fence, until: timedelta | datetime | None = None) -> Delayed:
    """Give the lease up and go on with the same attempt later, or at once when no moment is given.

    This is also how work is handed back: no retry and no reclaim is counted. Raises `LeaseLost`, `ExecutionNotActive`,
    `InvalidTime`.
    """
    return calls.only(await delay_many(conn, [Delay(fence=fence, until=until)]))


async def delay_many(conn: Connection, delays: Sequence[Delay]) -> list[Delayed | FlowFabricError]:
    """Put many attempts off, as if one after the other, and answer each in its place."""
    return await calls.each_fenced(conn, "delay", delays, _delay, Delayed)


def _completion(completion: Completion, *, result_limit: int) -> Act:
    size = len(calls.expect(bytes, completion.result, "result") or b"")
    if size > max(result_limit, calls.MOST_BYTES):  # no statement could carry it; SQL judges the others
        raise PayloadTooLarge(
            f"the result has {size} bytes and may have {result_limit}; keep large data elsewhere and pass a reference",
            limit=result_limit,
        )
    encoding: str | None = calls.expect(str, completion.encoding, "encoding")
    # JSON is the rule and stored as nothing.
    stored = check_text(encoding, "encoding") if encoding not in (None, "json") else None
    return Act(completion.fence, {"results": completion.result, "encodings": stored}, size)


def _failure(report: FailureReport) -> Act:
    values = {
        "classes": kept_text(str(report.class_)),
        "reasons": kept_text(str(report.reason)),
        "categories": report.category if report.category is None else kept_text(str(report.category)),
        "tracebacks": report.traceback and kept_text(str(report.traceback), TRACEBACK_BYTES),
        "retry_afters_ms": calls.span(report.retry_after, "retry_after"),
    }
    return Act(report.fence, values, TRACEBACK_BYTES)


def _delay(delay: Delay) -> Act:
    span, moment = calls.span_or_moment(delay.until, "until")
    name = delay.name and check_text(delay.name, "name")
    values = {
        "delays_ms": span,
        "delays_until": moment,
        "names": name,
        "occurrences": delay.occurrence,
        "whys": delay.why and kept_text(str(delay.why)),
    }
    return Act(delay.fence, values)
