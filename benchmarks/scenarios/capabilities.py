"""Work that needs one of ten sets of capabilities, beside work that no worker here can run."""

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import opened, until_none, working
from flowfabric.engine import lanes

COUNT = 40_000  # half of them are run: as many as in a plain drain
COVERED = tasks.SETS // 2
LEFT = """
select from flowfabric.tickets where phase = 'active'
union all
select from flowfabric.routes r where r.lane = 'routed' and r.needs <@ '{{{}}}' and exists (
    select from flowfabric.tickets t
    where t.lane = 'routed' and t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.priority = 0
      and t.route = r.id)
limit 1
"""


async def run(ground: Ground) -> int:
    """Run two workers that cover half of the sets; the work of the other half stays before and between theirs."""
    each = ground.scaled(COUNT // tasks.SETS)
    skills = ",".join(["common", *(f"skill-{index}" for index in range(COVERED))])
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
            await until_none(conn, LEFT.format(skills))
    return each * COVERED


scenario = Scenario(
    name="capabilities",
    about="ten sets of needs, two workers that cover five of them",
    run=run,
    against={"raw_drain": None, "drain_two_workers": None},
)
