"""Retries: the errors that are never retried, and the retries of a step within its run."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from flowfabric.errors import ChildFailed, Fenced, Invalid, PermanentError, ShapeChanged, TooManySteps
from flowfabric.postgres.backoff import Backoff

LONGEST_PAUSE = 60.0  # seconds between two retries of a step

NEVER_RETRIED = (PermanentError, Invalid, ShapeChanged, TooManySteps, ChildFailed)
"""Errors that would occur again, however often a handler is retried."""


async def with_retries(call: Callable[[], Awaitable[Any]], retries: int, pause: timedelta) -> Any:
    """Call a function; while it fails and retries are left, call it again after a pause that doubles each time."""
    backoff = Backoff(pause.total_seconds(), max(LONGEST_PAUSE, pause.total_seconds()))
    for made in range(retries + 1):
        try:
            return await call()
        except (*NEVER_RETRIED, Fenced):
            raise
        except Exception:
            if made == retries:
                raise
            await backoff.wait()
    raise AssertionError("the loop ran at least once, so it has returned or raised")
