"""Tries: what is worth another one, and the tries of a step within its run."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from flowfabric.errors import ChildFailed, Fenced, Invalid, PermanentError, ShapeChanged, TooManySteps
from flowfabric.postgres.backoff import Backoff

LONGEST_PAUSE = 60.0  # seconds between two tries of a step

HOPELESS = (PermanentError, Invalid, ShapeChanged, TooManySteps, ChildFailed)
"""What would happen again, however often a handler is tried."""


async def with_retries(call: Callable[[], Any], retries: int, pause: timedelta) -> Any:
    """Call a function, and again after a pause that doubles each time, while it fails and there are retries left."""
    backoff = Backoff(pause.total_seconds(), max(LONGEST_PAUSE, pause.total_seconds()))
    for made in range(retries + 1):
        try:
            result = call()
            return await result if inspect.isawaitable(result) else result
        except (*HOPELESS, Fenced):
            raise
        except Exception:
            if made == retries:
                raise
            await backoff.wait()
    raise AssertionError("a step was tried no time at all")
