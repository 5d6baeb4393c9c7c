"""Signals: messages to a waitpoint, sent by anyone who holds its token."""

from collections.abc import Iterator, Sequence
from uuid import UUID, uuid4

from flowfabric import calls
from flowfabric.errors import FlowFabricError, InvalidId
from flowfabric.ids import ExecutionId, check_text, expect_id, shown
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
        answers += await calls.each(some, _checked, lambda good: _send(conn, good, wait))
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


def _checked(signal: SignalToSend) -> SignalToSend:
    expect_id(ExecutionId, signal.execution_id, "execution id")
    for given in (signal.waitpoint_id, signal.signal_id):
        if not isinstance(given, UUID | None):
            raise InvalidId(f"id {shown(str(given))} is invalid; use a UUID", cause="invalid_uuid")
    texts = (signal.token, signal.name, signal.source_type, signal.source_identity, signal.category, signal.encoding)
    for text in (*texts, signal.waitpoint, signal.correlation_id, signal.idempotency_key):
        if text is not None:
            check_text(text, "signal")
    return signal


def _partition(signal: SignalToSend) -> int:
    """The partition if it fits a smallint, else -1, which has no executions either."""
    return signal.execution_id.partition if 0 <= signal.execution_id.partition < 1 << 15 else -1


async def _send(conn: Connection, signals: Sequence[SignalToSend], wait: bool) -> list[Delivered | FlowFabricError]:
    answered = await call.rows(
        conn,
        "deliver_signal",
        partitions=[_partition(signal) for signal in signals],
        executions=[signal.execution_id.uuid for signal in signals],
        waitpoints=[signal.waitpoint_id for signal in signals],
        tokens=[signal.token for signal in signals],
        names=[signal.name for signal in signals],
        ids=[signal.signal_id or uuid4() for signal in signals],
        source_types=[signal.source_type for signal in signals],
        source_identities=[signal.source_identity for signal in signals],
        categories=[signal.category for signal in signals],
        payloads=[signal.payload for signal in signals],
        encodings=[signal.encoding for signal in signals],
        correlation_ids=[signal.correlation_id for signal in signals],
        idempotency_keys=[signal.idempotency_key for signal in signals],
        digests=[signal.digest for signal in signals],
        keys=[signal.waitpoint for signal in signals]
        if any(signal.waitpoint_id is None for signal in signals)
        else None,
        wait=wait,
    )
    return calls.read_answers(answered, Delivered)
