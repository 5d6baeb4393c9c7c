"""`ff workers`: marking an instance as dead."""

from flowfabric.engine import workers
from tests.cli.conftest import Run
from tests.given import Given


async def test_an_instance_that_nobody_knows_cannot_be_marked_as_dead(here: Run, given: Given) -> None:
    await workers.register_worker(given.conn, "pool", instance="pool-1", lanes=["default"])

    async with given.nothing_changes():
        unknown = await here("workers mark-dead pool-7 --json")
    marked = await here("workers mark-dead pool-1 --json")
    again = await here("workers mark-dead pool-1")

    assert (unknown.code, unknown.error["error"]) == (1, "no_such_worker")
    assert all(part in unknown.error["message"] for part in ("'pool-7'", "registered instances: pool-1"))
    assert (marked.code, marked.document["outcome"]) == (0, "marked")
    assert again.code == 1
    assert "registered instances: none" in again.err
