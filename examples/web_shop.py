"""A web shop on FastAPI with sync SQLAlchemy: the order and its shipping are stored in one transaction.

Run `ff worker web_shop.py:app` and `uvicorn web_shop:api` in this directory, with FLOWFABRIC_URL set.
Needs `pip install fastapi uvicorn sqlalchemy "psycopg[binary]"`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from flowfabric import App, SyncConnection, SyncContext

app = App()
engine = create_engine(os.environ["FLOWFABRIC_URL"].replace("postgresql://", "postgresql+psycopg://"))


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """What a customer ordered, and how it is sent."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    execution_id: Mapped[str | None]
    parcel: Mapped[str | None]


@app.task(lane="shipping", retries=5)
def ship(ctx: SyncContext, order: int) -> str:
    label = ctx.step("label", lambda: f"parcel {order}")
    ctx.transaction_step("send", send, order, label)  # the update and the step are committed together
    return label


def send(conn: SyncConnection, order: int, label: str) -> None:
    conn.execute("update orders set parcel = $2 where id = $1", order, label)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    async with app:
        yield
    engine.dispose()


api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=201)
def place_order(customer: str) -> dict[str, object]:
    """Store the order and submit its shipping, or neither. FastAPI runs `def` endpoints in threads."""
    with Session(engine) as session:
        order = Order(customer=customer)
        session.add(order)
        session.flush()  # gives the order its id
        order.execution_id = str(ship.submit_in(session, order.id).execution_id)
        if not customer.isalpha():
            raise HTTPException(422, f"{customer!r} is not a customer")  # nothing is stored
        session.commit()  # notifies the workers
        return {"order": order.id}


@api.get("/orders/{number}")
def look(number: int) -> dict[str, object]:
    with Session(engine) as session:
        order = session.get(Order, number)
        if order is None or order.execution_id is None:
            raise HTTPException(404, f"order {number} does not exist")
        shipping = app.sync().execution(order.execution_id)  # the app is open in the lifespan, on the event loop
        return {"parcel": order.parcel, "shipping": shipping.explain().sentence}
