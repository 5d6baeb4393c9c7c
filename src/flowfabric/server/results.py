"""The result of an execution, and waiting for it."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from msgspec.structs import replace

from flowfabric.app import App
from flowfabric.errors import InvalidBody, PayloadUnreadable
from flowfabric.ids import ExecutionId
from flowfabric.model import Result
from flowfabric.payloads.codecs import PLAIN, of_result

LONGEST_WAIT = timedelta(minutes=10)


async def get_result(app: App, execution_id: str | ExecutionId, *, wait: str | timedelta = timedelta()) -> Result:
    """Return an execution's outcome and result; the outcome is `null` until it ends.

    With `wait`, at most `10m`, the answer comes when the execution has ended, or after this long. Raises
    `ExecutionNotFound`, `InvalidBody`.
    """
    assert isinstance(execution_id, ExecutionId)
    assert isinstance(wait, timedelta)
    if wait > LONGEST_WAIT:
        raise InvalidBody(f"wait {wait} is invalid; use at most 10m, and ask again", field="wait")
    found = await app.client.result(execution_id)
    if found.outcome is None and wait:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait.total_seconds()):
                found = await _ended(app, execution_id)
    return _readable(app, execution_id, found)


async def _ended(app: App, execution_id: ExecutionId) -> Result:
    while True:
        await app.waiters.wait(execution_id)
        found = await app.client.result(execution_id)
        if found.outcome is not None:
            return found


def _readable(app: App, execution_id: ExecutionId, found: Result) -> Result:
    """Decode the result, if this app has the codec; otherwise it stays as it is stored."""
    if found.result is None or found.encoding == PLAIN:
        return found
    with suppress(PayloadUnreadable):
        return replace(
            found, result=app.codecs.decode(found.result, found.encoding, of_result(execution_id)), encoding=PLAIN
        )
    return found
