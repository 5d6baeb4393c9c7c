"""Signals: messages to a waitpoint, from whoever holds its token."""

from collections.abc import Iterator, Sequence
from uuid import UUID, uuid4

from flowfabric import calls
from flowfabric.errors import FlowFabricError, InvalidId
from flowfabric.ids import check_text, shown
from flowfabric.model import Delivered, SignalToSend
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def deliver_signal(conn: Connection, signal: SignalToSend) -> Delivered:
    """Send a signal to a waitpoint; the execution goes on in the same transaction when that satisfies it.

    Safe to repeat with a `signal_id` or an `idempotency_key`: `duplicate`, whatever has happened since. Raises
    `InvalidSignal`, `InvalidText`, `PayloadTooLarge`, `MissingToken`, `InvalidToken`, `TokenExpired`, and only with a
    good token `TargetNotSignalable`, `WaitpointClosed`, `SignalLimitExceeded`, `ApprovalDigestMismatch`.
    """
    return calls.only(await deliver_signals(conn, [signal]))


async def deliver_signals(conn: Connection, signals: Sequence[SignalToSend]) -> list[Delivered | FlowFabricError]:
    """Send many signals, as if one after the other, and answer each in its place.

    Up to 1 000 signals or 8 MiB go in one statement.
    """
    answers: list[Delivered | FlowFabricError] = []
    for some in _statements(signals):
        answers += await calls.each(some, _checked, lambda good: _send(conn, good))
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
    for given in (signal.waitpoint_id, signal.signal_id):
        if not isinstance(given, UUID | None):
            raise InvalidId(f"id {shown(str(given))} is not a UUID", cause="invalid_uuid")
    texts = (signal.token, signal.name, signal.source_type, signal.source_identity, signal.category, signal.encoding)
    for text in (*texts, signal.correlation_id, signal.idempotency_key):
        if text is not None:
            check_text(text, "a text of the signal")
    return signal


def _partition(signal: SignalToSend) -> int:
    """A partition that can be stored: one that cannot has no executions, and neither has -1."""
    return signal.execution_id.partition if 0 <= signal.execution_id.partition < 1 << 15 else -1


async def _send(conn: Connection, signals: Sequence[SignalToSend]) -> list[Delivered | FlowFabricError]:
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
    )
    return calls.read_answers(answered, Delivered)
