"""Tries: what is worth another one, and the tries of a step within its run."""

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from flowfabric.errors import Fenced, Invalid, ShapeChanged, TooManySteps
from flowfabric.handler.children import ChildFailed

LONGEST_PAUSE = 60.0  # seconds between two tries of a step


class PermanentError(Exception):
    """Raised by a handler whose failure no retry would mend."""


HOPELESS = (PermanentError, Invalid, ShapeChanged, TooManySteps, ChildFailed)
"""What would happen again, however often a handler is tried."""


async def with_retries(call: Callable[[], Any], retries: int, pause: timedelta) -> Any:
    """Call a function, and again after a pause that doubles each time, while it fails and there are retries left."""
    for made in range(retries + 1):
        try:
            result = call()
            return await result if inspect.isawaitable(result) else result
        except (*HOPELESS, Fenced):
            raise
        except Exception:
            if made == retries:
                raise
            await asyncio.sleep(min(pause.total_seconds() * 2 ** min(made, 20), LONGEST_PAUSE))
    raise AssertionError("a step was tried no time at all")
