"""Signals: messages to a waitpoint, sent by anyone who holds its token."""

from collections.abc import Iterator, Sequence
from uuid import UUID

from flowfabric import calls
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId
from flowfabric.model import Delivered, Signal, SignalToSend
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def deliver_signal(conn: Connection, signal: SignalToSend) -> Delivered:
    """Deliver a signal to a waitpoint; if it satisfies the wait, the execution resumes in the same transaction.

    Safe to repeat with a `signal_id` or an `idempotency_key`: the answer is `duplicate`, even if the wait has ended.
    Raises `InvalidSignal`, `InvalidText`, `PayloadTooLarge`, `MissingToken`, `InvalidToken`, `TokenExpired`, and only
    with a valid token `TargetNotSignalable`, `WaitpointClosed`, `SignalLimitExceeded`, `ApprovalDigestMismatch`.
    """
    return calls.only(await deliver_signals(conn, [signal]))


async def read_signals(conn: Connection, execution_id: ExecutionId, suspension_id: UUID) -> list[Signal]:
    """Read the signals that ended a wait, for a claim that came without them because they were too large.

    Empty if the suspension does not exist or ended without signals.
    """
    return await calls.read_signals(conn, execution_id, suspension_id)


async def deliver_signals(
    conn: Connection, signals: Sequence[SignalToSend], *, wait: bool = True
) -> list[Delivered | FlowFabricError]:
    """Deliver many signals, as if one after the other, and return one answer per signal.

    Up to 1,000 signals or 8 MiB go in one statement. Without `wait`, a statement raises `RowLocked` if another
    transaction keeps one of its executions locked.
    """
    answers: list[Delivered | FlowFabricError] = []
    for some in _statements(signals):
        answers += await calls.each(some, calls.check_signal, lambda good: _send(conn, good, wait))
    return answers


def _statements(signals: Sequence[SignalToSend]) -> Iterator[Sequence[SignalToSend]]:
    start = size = 0
    for number, signal in enumerate(signals):
        weight = len(signal.payload or b"")
        if number - start == calls.MOST_ITEMS or (size + weight > calls.MOST_BYTES and number > start):
            yield signals[start:number]
            start, size = number, 0
        size += weight
    yield signals[start:]


async def _send(conn: Connection, signals: Sequence[SignalToSend], wait: bool) -> list[Delivered | FlowFabricError]:
    answered = await call.rows(conn, "deliver_signal", **calls.signal_columns(signals), wait=wait)
    return calls.read_answers(answered, Delivered)
