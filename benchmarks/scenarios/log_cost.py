"""The cost of the event log: claim and complete with it, compared with the same without it."""

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.scenarios.drain import draining

LEAST = 5 / 6  # of the rate without the log, which may add a fifth to the time


async def drain_without(ground: Ground) -> int:
    """Drain in a database where events are not appended."""
    async with ground.raw() as conn:
        definition = await conn.fetchval("select pg_get_functiondef('flowfabric._append_each'::regproc)")
        head, mark, _ = definition.partition("AS $function$")
        await conn.execute(f"{head}{mark} begin end $function$")
    return await draining(100, 1)(ground)


without = Scenario(name="drain_without_log", about="100 at a time, nothing appended", run=drain_without)
with_log = Scenario(
    name="log_cost", about="100 at a time, with the log", run=draining(100, 1), against={without.name: LEAST}
)
