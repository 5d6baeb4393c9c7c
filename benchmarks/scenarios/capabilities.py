"""Work that needs one of ten sets of capabilities, beside work that nobody here can do."""

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import opened, until_none, working
from flowfabric.engine import lanes

COUNT = 20_000
COVERED = tasks.SETS // 2
LEFT = "select from flowfabric.executions where kind in ({}) and outcome is null limit 1"


async def run(ground: Ground) -> int:
    """Two workers cover half of the sets; the work of the other half stays, in front of and between theirs."""
    each = ground.scaled(COUNT // tasks.SETS)
    skills = ",".join(["common", *(f"skill-{index}" for index in range(COVERED))])
    mine = ", ".join(f"'{task.name}'" for task in tasks.ROUTED[:COVERED])
    async with (
        opened(ground) as app,
        working(ground, 2, "--lanes", "routed", "--capabilities", skills),
        app.database.connection() as conn,
    ):
        await lanes.configure_lane(conn, "routed")
        await lanes.pause_lane(conn, "routed", by="benchmark")
        for task in reversed(tasks.ROUTED):
            await task.submit_many([(number,) for number in range(each)])
        with ground.timed():
            await lanes.resume_lane(conn, "routed", by="benchmark")
            await app.wake("routed")
            await until_none(conn, LEFT.format(mine))
    return each * COVERED


scenario = Scenario(
    name="capabilities",
    about="ten sets of needs, two workers that cover five of them",
    run=run,
    against={"raw_drain": None, "drain_two_workers": None},
)
