"""A claim of 100 when all work is in one route, and when 5,000 routes have work."""

from collections.abc import Awaitable, Callable

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import claims, executions
from flowfabric.model import Options, Submission

COUNT = 50_000
CLAIMS = 50


def claiming(routes: int) -> Callable[[Ground], Awaitable[int]]:
    """Claim repeatedly, each time starting after the route that was served last."""

    async def run(ground: Ground) -> int:
        count, calls = ground.scaled(COUNT, least=200), ground.scaled(CLAIMS, least=2)
        options = [Options(task="benchmark", namespace=f"tenant {number}") for number in range(routes)]
        async with ground.database() as database, database.connection() as conn:
            for start in range(0, count, 5_000):
                numbers = range(start, min(start + 5_000, count))
                some = [Submission(options=options[number % routes], payload=b"{}") for number in numbers]
                await executions.submit_many(conn, some)
            after_route = 0
            with ground.timed():
                for _ in range(calls):
                    taken = await claims.claim(
                        conn, "bench", instance="bench-1", lanes=["default"], take=100, after_route=after_route
                    )
                    after_route = taken[-1].route
        return calls

    return run


one = Scenario(name="one_route", about="100 at a time, one route", run=claiming(1), unit="claims of 100/s")
many = Scenario(
    name="many_routes",
    about="100 at a time, 5,000 routes with work",
    run=claiming(5_000),
    unit="claims of 100/s",
    against={one.name: None},
)
