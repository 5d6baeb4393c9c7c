"""Signals: messages to a waitpoint, from whoever holds its token."""

from collections.abc import Sequence
from uuid import uuid4

from flowfabric import calls, db
from flowfabric.db import Connection
from flowfabric.errors import Refusal
from flowfabric.ids import check_text
from flowfabric.model import Delivered, SignalToSend


async def deliver_signal(conn: Connection, signal: SignalToSend) -> Delivered:
    """Send a signal to a waitpoint; the execution goes on in the same transaction when that satisfies it.

    Safe to repeat with a `signal_id` or an `idempotency_key`: `duplicate`, whatever has happened since. Raises
    `InvalidSignal`, `PayloadTooLarge`, `MissingToken`, `InvalidToken`, `TokenExpired`, and only with a good token
    `TargetNotSignalable`, `WaitpointClosed`, `SignalLimitExceeded`.
    """
    return calls.only(await deliver_signals(conn, [signal]))


async def deliver_signals(conn: Connection, signals: Sequence[SignalToSend]) -> list[Delivered | Refusal]:
    """Send many signals, as if one after the other, and answer each in its place."""
    return await calls.each(signals, _checked, lambda good: _send(conn, good))


def _checked(signal: SignalToSend) -> SignalToSend:
    texts = (signal.token, signal.name, signal.source_type, signal.source_identity, signal.category, signal.encoding)
    for text in (*texts, signal.correlation_id or "", signal.idempotency_key or ""):
        check_text(text, "a text of the signal")
    return signal


async def _send(conn: Connection, signals: Sequence[SignalToSend]) -> list[Delivered | Refusal]:
    answered = await db.rows(
        conn,
        "deliver_signal",
        partitions=[signal.execution_id.partition for signal in signals],
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
