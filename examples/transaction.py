"""One transaction for your own table and the work that follows from it: both are committed, or neither.

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
        submitted = await executions.submit(conn, ship.submission(row["id"]))
        if not customer.isalpha():
            raise ValueError(f"{customer!r} is not a valid name; neither the order nor its execution was committed")
    await app.wake("shipping")  # optional: without it, a worker finds the work at its next poll
    return str(submitted.execution_id)


async def main() -> None:
    async with app:
        async with app.database.connection() as conn:
            await conn.execute(ORDERS)
        for customer in ("ada", "---"):
            try:
                execution_id = await place_order(customer)
                print(await app.execution(execution_id).result("1m"))
            except ValueError as error:
                print(error)
        async with app.database.connection() as conn:
            orders = await conn.fetch("select customer from orders")
            ships = (await executions.list_executions(conn, lane="shipping")).items
        print(f"{len(orders)} order, {len(ships)} execution")


if __name__ == "__main__":
    asyncio.run(main())
