"""The examples on the page of the testing kit: a comment names what the lines below it are an example of."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric import App, Context, testing
from flowfabric.engine import lanes
from flowfabric.testing import Clock, Server
from flowfabric.testing.engine import Engine, StillWaiting
from flowfabric.testing.sync import SyncClock, SyncEngine

app = App()


@app.task
async def charge(customer: str, amount: int) -> str:
    return f"{customer} paid {amount}"


@app.task
async def place_order(ctx: Context, customer: str) -> str:
    verdict = await ctx.approval("consent", timeout="30d")
    return "approved" if verdict.approved else "rejected"


# run_now
async def test_a_charge(run_now: Callable[..., Any]) -> None:
    assert await run_now(charge, "ada", 30) == "ada paid 30"


# app_worker
async def test_an_order(app_worker: Callable[..., Any], engine: Engine) -> None:
    await app_worker(app, concurrency=5)
    order = await place_order.submit("ada")
    await engine.approve(order)
    assert await order.result() == "approved"


# engine
async def test_a_rejection(app_worker: Callable[..., Any], engine: Engine) -> None:
    await app_worker(app)
    order = await place_order.submit("ada")
    await engine.reject(order, by="grace")
    assert await order.result() == "rejected"


# clock
async def test_a_timeout(app_worker: Callable[..., Any], clock: Clock) -> None:
    await app_worker(app)
    order = await place_order.submit("ada")
    await clock.advance("30d")
    assert await order.result() == "rejected"


# SyncEngine
def test_a_rejection_in_sync_code(app_worker: Callable[..., Any], engine: SyncEngine) -> None:
    sync = app_worker(app)
    order = sync(place_order).submit("ada")
    engine.reject(order, by="grace")
    assert order.result() == "rejected"


# flowfabric_engine
async def test_with_both_engines(engine: object, flowfabric_engine: Engine) -> None:
    await flowfabric_engine.open(app)  # `engine` is a fixture of your own, for example SQLAlchemy's


# flowfabric_url
async def test_the_database(flowfabric_url: str) -> None:
    conn = await asyncpg.connect(flowfabric_url)
    await conn.close()


# flowfabric_tables
@pytest.fixture(scope="session")
def flowfabric_tables() -> str:
    return Path("schema.sql").read_text()


# flowfabric_template, flowfabric_server
@pytest.fixture
async def second_url(flowfabric_server: Server, flowfabric_template: str) -> str:
    return flowfabric_server.url(await flowfabric_server.create(flowfabric_template))


async def of_engines(engine: Engine, clock: Clock) -> None:
    # Engine, Engine.work
    await engine.work(app, concurrency=5)
    # Engine.run_now
    assert await engine.run_now(charge, "ada", 30) == "ada paid 30"
    # Engine.open
    await engine.open(app)
    order = await place_order.submit("ada")
    # Engine.use
    engine.use(app)
    async with app:
        order = await place_order.submit("ada")
    # Engine.approve
    await engine.approve(order, "consent", by="grace")
    # Engine.reject
    await engine.reject(order, "consent", by="grace", note="too expensive")
    # Engine.signal
    await engine.signal(order, "paid", {"amount": 30})
    # Engine.settle
    await charge.submit("ada", 30)
    await engine.settle()  # the charge has run now
    # Engine.sweep
    moved = await engine.sweep()
    # Engine.run
    page = await engine.run(lanes.list_lanes)
    # StillWaiting
    with pytest.raises(StillWaiting):
        await engine.run_now(place_order, "ada")
    # Clock, Clock.advance
    await clock.advance("2d")
    await clock.advance(datetime(2030, 1, 1, tzinfo=UTC))
    # Clock.now
    deadline = await clock.now() + timedelta(days=30)


def of_sync_clocks(clock: SyncClock) -> None:
    # SyncClock
    clock.advance("2d")


async def of_servers(conn: asyncpg.Connection, server: Server) -> None:
    # Server, running
    with testing.running(Path("/tmp/flowfabric-tests")) as server:
        template = await server.make_template()
    # Server.url
    conn = await asyncpg.connect(server.url("postgres"))
    # Server.make_template
    template = await server.make_template("create table orders (id bigint primary key)")
    # Server.database
    async with server.database(await server.make_template()) as url:
        conn = await asyncpg.connect(url)
    # Server.create, Server.drop
    name = await server.create()
    await server.drop(name)
    # Server.execute
    await server.execute("create role reader")
    # install_clock
    await testing.install_clock(conn)
    # move_clock
    await testing.move_clock(conn, timedelta(days=2))
    # now
    now = await testing.now(conn)
