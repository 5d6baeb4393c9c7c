"""Submit a task in the same transaction as your own insert: both are committed, or neither.

`ff dev examples/transaction.py:app` in one terminal, `python examples/transaction.py` in another.
"""

import asyncio

from flowfabric import App
from flowfabric.engine import executions

app = App()

ORDERS = (
    "create table if not exists orders (id bigint generated always as identity primary key, customer text not null)"
)


@app.task(lane="shipping", retries=5)
async def ship(order: int) -> str:
    return f"order {order} is on its way"


async def place_order(customer: str) -> str:
    async with app.database.transaction() as conn:  # or your own asyncpg connection
        [row] = await conn.fetch("insert into orders (customer) values ($1) returning id", customer)
        execution = await ship.submit_in(conn, row["id"])
        if not customer.isalpha():
            raise ValueError(f"{customer!r} is not a customer: neither the order nor the shipping was stored")
    await app.wake("shipping")  # notifies the workers; without this, they find the execution by polling
    return await execution.result("1m")


async def main() -> None:
    async with app:
        async with app.database.connection() as conn:
            await conn.execute(ORDERS)
        for customer in ("ada", "---"):
            try:
                print(await place_order(customer))
            except ValueError as refused:
                print(refused)
        async with app.database.connection() as conn:
            orders = await conn.fetch("select customer from orders")
            ships = (await executions.list_executions(conn, lane="shipping")).items
        print(f"{len(orders)} order, {len(ships)} execution")


if __name__ == "__main__":
    asyncio.run(main())
