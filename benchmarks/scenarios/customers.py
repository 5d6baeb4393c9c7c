"""A claim of 100 when 5,000 customers wait, each with their own budget: the cost of turns between them."""

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.scenarios import routes
from flowfabric.engine import budgets, claims, executions
from flowfabric.model import Options, Submission

CUSTOMERS = 5_000
COUNT = 50_000
CLAIMS = 50


async def run(ground: Ground) -> int:
    """Claim repeatedly, each time starting after the customer that was served last."""
    count, calls = ground.scaled(COUNT, least=200), ground.scaled(CLAIMS, least=2)
    customers = min(CUSTOMERS, count)
    options = [Options(task="benchmark", budgets=[f"customer {number}"]) for number in range(customers)]
    async with ground.database() as database, database.connection() as conn:
        for number in range(customers):
            await budgets.create_budget(conn, f"customer {number}", hard_limits={"tokens": 1_000_000})
        for start in range(0, count, 5_000):
            numbers = range(start, min(start + 5_000, count))
            some = [Submission(options=options[number % customers], payload=b"{}") for number in numbers]
            await executions.submit_many(conn, some)
        after_route = 0
        for _ in range(calls):
            with ground.timed():
                taken = await claims.claim(
                    conn, "bench", instance="bench-1", lanes=["default"], take=100, after_route=after_route
                )
            after_route = taken[-1].route
            if len({claim.route for claim in taken}) != 100:
                raise AssertionError("a customer was served twice before another was served once")
    return calls


scenario = Scenario(
    name="customers",
    about="100 at a time, 5,000 customers with a budget each",
    run=run,
    unit="claims of 100/s",
    against={routes.one.name: 1 / 3},
)
