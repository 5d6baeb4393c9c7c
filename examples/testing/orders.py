"""A small app to test: an order is charged, a large order needs an approval first, and a receipt is written."""

from flowfabric import App, Context, PermanentError

app = App()


class Bank:
    """The payment service; the tests replace it."""

    async def charge(self, customer: str, amount: int) -> str:
        return f"{customer} paid {amount}"


bank = Bank()


@app.task(lane="orders", retries=3, backoff="1m")
async def charge(ctx: Context, customer: str, amount: int) -> str:
    if amount <= 0:
        raise PermanentError(f"cannot charge an amount of {amount}")
    return await ctx.step("charge", bank.charge, customer, amount)


@app.task(lane="orders")
async def place_large_order(ctx: Context, customer: str, amount: int) -> str:
    verdict = await ctx.approval("consent", subject={"customer": customer, "amount": amount}, timeout="30d")
    if verdict.timed_out:
        return "timed out"
    if not verdict.approved:
        return f"rejected by {verdict.by[0]}"
    await ctx.sleep("2d", name="cancellation period")
    return await ctx.step("charge", bank.charge, customer, amount)


@app.task(lane="orders", retries=3, backoff="1m")
async def write_receipt(ctx: Context, customer: str, amounts: list[int]) -> int:
    async with ctx.stream("receipt") as out:
        await out.write(f"receipt for {customer}\n")
        for number, amount in enumerate(amounts, 1):
            await out.write(await ctx.step("line", line, amount))
            await ctx.progress(100 * number / len(amounts))
    return sum(amounts)


def line(amount: int) -> str:
    return f"{amount}\n"
