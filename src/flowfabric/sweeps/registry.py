"""The list of all sweeps: background maintenance that runs at fixed intervals."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol

import msgspec

from flowfabric.config import Config
from flowfabric.engine import (
    attempts,
    budgets,
    children,
    claims,
    events,
    executions,
    quotas,
    schedules,
    signing_keys,
    streams,
    waits,
    workers,
)
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection

REMOVAL_SHARE = 0.1


class Pass(Protocol):
    """One pass of a sweep: moves at most `limit` rows and skips the first `passing` rows."""

    async def __call__(self, conn: Connection, *, limit: int, passing: int) -> Swept: ...


class Sweep(msgspec.Struct, frozen=True):
    """A background task that runs at an interval. Safe to run twice, and in many processes at once."""

    name: str
    every: timedelta
    run: Pass
    limit: int = 500
    share: float | None = None
    """The share of the time that its passes may take, over all processes; None: the next pass follows at once."""


def sweeps(config: Config) -> Sequence[Sweep]:
    """Return all sweeps, with the settings of this process."""
    remove_ended = partial(executions.remove_ended, retention=config.retention)
    trim_events = partial(events.trim_events, retention=config.event_retention)
    return [
        Sweep("return_orphans", timedelta(milliseconds=250), workers.return_orphans),
        Sweep("deliver_child_ends", timedelta(milliseconds=250), children.deliver_child_ends),
        Sweep("promote_due", timedelta(seconds=1), executions.promote_due),
        Sweep("fire_schedules", timedelta(seconds=1), schedules.fire_schedules, limit=100),
        Sweep("expire_leases", timedelta(seconds=2), claims.expire_leases),
        Sweep("expire_grants", timedelta(seconds=2), claims.expire_grants),
        Sweep("time_out_waits", timedelta(seconds=2), waits.time_out_waits),
        Sweep("close_waitpoints", timedelta(seconds=5), waits.close_waitpoints),
        Sweep("retire_signing_keys", timedelta(seconds=60), signing_keys.retire_signing_keys),
        Sweep("time_out_attempts", timedelta(seconds=2), attempts.time_out_attempts),
        Sweep("expire_executions", timedelta(seconds=5), executions.expire_executions),
        Sweep("resume_budget_waits", timedelta(seconds=5), budgets.resume_budget_waits),
        Sweep("reset_budgets", timedelta(seconds=15), budgets.reset_budgets),
        Sweep("expire_reservations", timedelta(seconds=15), budgets.expire_reservations),
        Sweep("trim_windows", timedelta(seconds=30), quotas.trim_windows),
        Sweep("expire_workers", timedelta(seconds=30), workers.expire_workers),
        Sweep(
            "remove_idempotency_keys", timedelta(seconds=60), executions.remove_idempotency_keys, share=REMOVAL_SHARE
        ),
        Sweep("remove_ended", timedelta(seconds=60), remove_ended, share=REMOVAL_SHARE),
        Sweep("trim_frames", timedelta(seconds=5), streams.trim_frames),
        Sweep("extend_events", timedelta(seconds=60), events.extend_events, limit=16),
        Sweep("trim_events", timedelta(seconds=60), trim_events, limit=100),
    ]
