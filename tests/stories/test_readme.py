"""The examples of the README, run as they are printed."""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from flowfabric.engine import executions, waits
from flowfabric.ids import parse_execution_id
from flowfabric.postgres.driver import Connection
from tests.app.scene import happens, working
from tests.sources import ROOT


def _examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


async def test_the_ten_lines_run_once_they_are_approved(database_url: str, conn: Connection) -> None:
    names: dict[str, Any] = {}
    exec(_examples()[0].replace("App()", f"App(url={database_url!r})"), names)

    async with working(names["app"]) as app:
        execution = await names["greet"].submit("Ada")
        await happens(execution, "execution_suspended")
        asked = (await execution.describe()).suspension
        digest = bytes.fromhex(asked.about_digest)
        await waits.deliver_approval(conn, execution.execution_id, "send", "approve", by="grace", digest=digest)
        await app.wake("default")

        assert await execution.result("20s") == "Hello, Ada"


@pytest.fixture
async def place_order(conn: Connection) -> Callable[[Connection, str], Awaitable[str]]:
    """The function in the README, on a database with the table it uses."""
    [_, example] = _examples()
    await conn.execute("create table orders (id bigint generated always as identity primary key, customer text)")
    names: dict[str, Any] = {}
    exec(example, names)
    shown: Callable[[Connection, str], Awaitable[str]] = names["place_order"]
    return shown


async def test_the_example_commits_the_order_and_its_execution_together(
    conn: Connection, place_order: Callable[[Connection, str], Awaitable[str]]
) -> None:
    execution_id = await place_order(conn, "ada")

    found = await executions.describe(conn, parse_execution_id(execution_id), payload=True)
    assert (found.task, found.lane, found.payload) == ("ship_order", "shipping", b'{"order":1}')
    [order] = await conn.fetch("select customer from orders where id = 1")
    assert order["customer"] == "ada"


async def test_the_example_leaves_neither_when_the_transaction_is_rolled_back(
    conn: Connection, place_order: Callable[[Connection, str], Awaitable[str]]
) -> None:
    with suppress(ZeroDivisionError):
        async with conn.transaction():
            await place_order(conn, "ada")
            raise ZeroDivisionError

    assert (await executions.list_executions(conn)).items == []
    assert await conn.fetch("select from orders union all select from flowfabric.events") == []
