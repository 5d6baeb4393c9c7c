"""What a run reports when it waits."""

from collections.abc import Sequence

import msgspec

from flowfabric.model.claims import Fence
from flowfabric.model.waits import Suspension, Wish


class ExecutionToSuspend(msgspec.Struct, frozen=True, kw_only=True):
    """An execution to suspend for these waits, under its fence."""

    fence: Fence
    waits: Sequence[Suspension | Wish]
    idempotency_key: str | None = None
