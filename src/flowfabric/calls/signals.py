"""Signals: checked and arranged as arrays to be sent, and read in pages, because a claim may not hold them all."""

from collections.abc import Sequence
from uuid import UUID, uuid4

import msgspec

from flowfabric.calls.arguments import about
from flowfabric.errors import InvalidId
from flowfabric.ids import ExecutionId, check_text, expect_id, shown
from flowfabric.model import Signal, SignalToSend
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


class _Page(msgspec.Struct):
    """Some signals, and the number of signals read so far if more follow."""

    signals: Sequence[Signal]
    following: int | None = None


async def read_signals(conn: Connection, execution_id: ExecutionId, suspension_id: UUID) -> list[Signal]:
    """Read the signals that ended a wait, in order of arrival, 1 MiB per call."""
    found: list[Signal] = []
    following: int | None = 0
    while following is not None:
        page = call.read(
            _Page,
            await call.value(
                conn, "read_signals", **about(execution_id), suspension=suspension_id, following=following
            ),
        )
        found += page.signals
        following = page.following
    return found


def check_signal(signal: SignalToSend) -> SignalToSend:
    """Return the signal if it can be sent. Raises `InvalidId`, `InvalidText`."""
    expect_id(ExecutionId, signal.execution_id, "execution id")
    for given in (signal.waitpoint_id, signal.signal_id):
        if not isinstance(given, UUID | None):
            raise InvalidId(f"id {shown(str(given))} is invalid; use a UUID", cause="invalid_uuid")
    texts = (signal.token, signal.name, signal.source_type, signal.source_identity, signal.category, signal.encoding)
    for text in (*texts, signal.waitpoint, signal.correlation_id, signal.idempotency_key):
        if text is not None:
            check_text(text, "signal")
    return signal


def signal_columns(signals: Sequence[SignalToSend]) -> dict[str, object]:
    """Return the signals of a call as arrays."""
    return {
        "partitions": [_partition(signal) for signal in signals],
        "executions": [signal.execution_id.uuid for signal in signals],
        "waitpoints": [signal.waitpoint_id for signal in signals],
        "tokens": [signal.token for signal in signals],
        "names": [signal.name for signal in signals],
        "ids": [signal.signal_id or uuid4() for signal in signals],
        "source_types": [signal.source_type for signal in signals],
        "source_identities": [signal.source_identity for signal in signals],
        "categories": [signal.category for signal in signals],
        "payloads": [signal.payload for signal in signals],
        "encodings": [signal.encoding for signal in signals],
        "correlation_ids": [signal.correlation_id for signal in signals],
        "idempotency_keys": [signal.idempotency_key for signal in signals],
        "digests": [signal.digest for signal in signals],
        "keys": [signal.waitpoint for signal in signals]
        if any(signal.waitpoint_id is None for signal in signals)
        else None,
    }


def _partition(signal: SignalToSend) -> int:
    """The partition if it fits a smallint, else -1, which has no executions either."""
    return signal.execution_id.partition if 0 <= signal.execution_id.partition < 1 << 15 else -1
