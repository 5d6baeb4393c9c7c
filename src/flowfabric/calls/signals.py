"""The signals that ended a wait, read in pages: they may be larger than a claim or a page of a journal."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from flowfabric.calls.arguments import about
from flowfabric.ids import ExecutionId
from flowfabric.model import Signal
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
