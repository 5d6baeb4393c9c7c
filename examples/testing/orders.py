"""A tiny app to be tested: an order is charged, and a large one needs somebody's consent."""

from flowfabric import App, Context, PermanentError

app = App()


class Bank:
    """Where the money comes from; the tests put another in its place."""

    async def charge(self, customer: str, amount: int) -> str:
        return f"{customer} paid {amount}"


bank = Bank()


@app.task(lane="orders", retries=3, backoff="1m")
async def charge(ctx: Context, customer: str, amount: int) -> str:
    if amount <= 0:
        raise PermanentError(f"an amount of {amount} cannot be charged")
    return await ctx.step("charge", bank.charge, customer, amount)


@app.task(lane="orders")
async def place_large_order(ctx: Context, customer: str, amount: int) -> str:
    verdict = await ctx.approval("consent", subject={"customer": customer, "amount": amount}, timeout="30d")
    if verdict.timed_out:
        return "lapsed"
    if not verdict.approved:
        return f"refused by {verdict.by[0]}"
    await ctx.sleep("2d", name="time to change one's mind")
    return await ctx.step("charge", bank.charge, customer, amount)
