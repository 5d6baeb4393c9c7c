"""The failure of the last attempt that failed, as a description has it on request."""

from flowfabric.engine import attempts, executions
from flowfabric.ids import ExecutionId
from flowfabric.model import Failure
from flowfabric.postgres.driver import Connection
from tests.given import Given

RETRY = {"retry": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def last_failure(conn: Connection, execution_id: ExecutionId) -> tuple[str | None, str | None] | None:
    """Reason and traceback."""
    found = (await executions.describe(conn, execution_id, last_failure=True)).last_failure
    return None if found is None else (found.reason, found.traceback)


async def test_it_is_that_of_the_last_failed_attempt_before_and_after_the_end(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=RETRY)
    it = claim.execution_id
    assert await last_failure(conn, it) is None
    for number in (1, 2, 3):
        await attempts.fail(conn, claim.fence, f"no {number}", traceback=f"line {number}")
        assert await last_failure(conn, it) == (f"no {number}", f"line {number}")
        claim = (await given.claim() or [claim])[0]

    await executions.replay(conn, it, by="ada")
    assert await last_failure(conn, it) == ("no 3", "line 3")
    [claim] = await given.claim()
    await attempts.complete(conn, claim.fence)
    assert await last_failure(conn, it) == ("no 3", "line 3")


async def test_a_cancelled_attempt_has_not_failed(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=RETRY)
    await attempts.fail(conn, claim.fence, "no", traceback="line 1")
    await given.claim()
    await executions.cancel(conn, claim.execution_id)

    assert await last_failure(conn, claim.execution_id) == ("no", "line 1")


async def test_an_execution_that_never_failed_has_none_and_it_is_read_only_on_request(
    conn: Connection, given: Given
) -> None:
    assert await last_failure(conn, await given.completed()) is None
    assert await last_failure(conn, await given.cancelled()) is None

    found = await executions.describe(conn, await given.failed())
    assert (found.last_failure, found.failure) == (
        None,
        Failure(class_="permanent", category="permanent", reason="it broke"),
    )
