"""A budget: the cost of a model is counted as it is spent, and a call that might exceed the limit is not made.

`ff dev examples/budget.py:app` in one terminal, `python examples/budget.py` in another. Then run
`ff budgets describe team-a`.
"""

import asyncio

from flowfabric import App, Context, ExecutionFailed, metered
from flowfabric.engine import budgets

app = App(
    budgets={"team-a": {"hard_limits": {"tokens": 100}, "soft_limits": {"tokens": 60}, "reset_interval": "1d"}},
    quotas={"model": {"max_concurrent": 2}},
)


@app.task(budgets=["team-a"], quotas=["model"])
async def answer(ctx: Context, question: str) -> str:
    ask = metered(ctx, "team-a", model, tokens=50)  # reserves 50 tokens, then settles the real cost
    response = await ctx.step("ask", ask, question)
    return str(response["text"])


async def model(question: str) -> dict[str, object]:
    """Stands for a vendor's client, whose responses contain their cost."""
    return {"text": f"all about {question}", "usage": {"input_tokens": 10, "output_tokens": 5 * len(question)}}


async def main() -> None:
    async with app:
        for question in ("tides", "the moon", "stars"):
            execution = await answer.submit(question)
            try:
                print(await execution.result("1m"))
            except ExecutionFailed as failed:
                print(f"failed: {failed.failure.reason if failed.failure else None}")
        async with app.database.connection() as conn:
            team = await budgets.describe_budget(conn, "team-a")
        print(f"used {team.used['tokens']} of {team.hard_limits['tokens']} tokens, {team.used['requests']} requests")


if __name__ == "__main__":
    asyncio.run(main())
