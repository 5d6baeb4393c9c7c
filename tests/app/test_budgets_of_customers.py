"""A budget per customer, created when the work of the customer is submitted."""

from flowfabric import App, Context, Execution
from tests.app.scene import TIMEOUT, happens, working


async def test_a_customer_who_has_used_up_a_budget_keeps_nobody_else_waiting(app: App) -> None:
    @app.task
    async def answer(ctx: Context, customer: str, tokens: int) -> str:
        await ctx.report_usage(f"customer-{customer}", tokens=tokens)
        return customer

    async def ask(customer: str, tokens: int) -> Execution[str]:
        budget = f"customer-{customer}"
        await app.budgets.create(budget, hard_limits={"tokens": 100}, on_hard_limit="suspend", reset_interval="1d")
        return await answer.with_options(budgets=[budget], tags={"customer": customer}).submit(customer, tokens)

    async with working(app):
        assert await (await ask("ann", 60)).result(TIMEOUT) == "ann"
        await happens(await ask("ann", 60), "execution_suspended")
        assert await (await ask("ben", 60)).result(TIMEOUT) == "ben"
        shown = (await app.budgets.list()).items
        assert [(each.name, each.used, each.waiting_count) for each in shown] == [
            ("customer-ann", {"tokens": 60}, 1),
            ("customer-ben", {"tokens": 60}, 0),
        ]
