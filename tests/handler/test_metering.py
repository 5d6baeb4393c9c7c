"""Calls that are charged to a budget by the usage in their responses."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flowfabric import App, Context, ExecutionFailed, SyncContext, metered
from flowfabric.errors import InvalidUsage
from flowfabric.handler.metering import token_counts
from tests.app.scene import TIMEOUT, happens, later, working
from tests.engine.budgets.scene import TEAM, figures, make, read
from tests.given import Given


class Client:
    """The client of a vendor, whose responses contain the usage."""

    def __init__(self, usage: Any = None) -> None:
        self.calls: list[str] = []
        self._usage = {"input_tokens": 30, "output_tokens": 12} if usage is None else usage

    async def create(self, *, model: str, prompt: str) -> dict[str, Any]:
        self.calls.append(prompt)
        await asyncio.sleep(0)
        return {"text": f"{model} on {prompt}", "usage": self._usage}

    def ask(self, prompt: str) -> dict[str, Any]:
        self.calls.append(prompt)
        return {"text": prompt, "usage": self._usage}


@pytest.fixture(autouse=True)
async def team(given: Given) -> None:
    await make(given.conn)


async def test_a_metered_step_is_called_and_charged_once(app: App, given: Given) -> None:
    client = Client()

    @app.task
    async def report(ctx: Context) -> str:
        answer = await ctx.step("ask", metered(ctx, TEAM, client.create), model="small", prompt="tides")
        await ctx.sleep("1h")
        return str(answer["text"])

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        await later(app, given, execution, hours=2)
        assert await execution.result(TIMEOUT) == "small on tides"
    assert client.calls == ["tides"]
    assert (await read(given.conn)).used == {"tokens": 42, "input_tokens": 30, "output_tokens": 12, "requests": 1}


async def test_with_an_estimate_a_call_that_might_exceed_the_budget_is_not_made(app: App, given: Given) -> None:
    client = Client()

    @app.task
    async def report(ctx: Context) -> None:
        ask = metered(ctx, TEAM, client.create, tokens=60)
        await ctx.step("first", ask, model="small", prompt="first")
        await ctx.step("second", ask, model="small", prompt="second")

    async with working(app):
        with pytest.raises(ExecutionFailed, match="BudgetExhausted"):
            await (await report.submit()).result(TIMEOUT)
    assert (client.calls, await figures(given.conn)) == (["first"], (42, 0, 0))


async def test_with_an_estimate_a_response_without_usage_costs_the_estimate(app: App, given: Given) -> None:
    client = Client(usage={})

    @app.task
    async def report(ctx: Context) -> None:
        await ctx.step("ask", metered(ctx, TEAM, client.ask, tokens=60), "tides")

    async with working(app):
        await (await report.submit()).result(TIMEOUT)
    assert await figures(given.conn) == (60, 0, 0)


@pytest.mark.parametrize("estimate", [{}, {"tokens": 60}])
async def test_a_synchronous_handler_can_meter_calls(app: App, given: Given, estimate: Any) -> None:
    client = Client()

    @app.task
    def report(ctx: SyncContext) -> str:
        with pytest.raises(TypeError, match="create"):
            metered(ctx, TEAM, client.create)
        return str(ctx.step("ask", metered(ctx, TEAM, client.ask, **estimate), "tides")["text"])

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == "tides"
    assert (await figures(given.conn), client.calls) == ((42, 0, 0), ["tides"])


async def test_the_usage_of_a_response_can_be_read_by_a_custom_function(app: App, given: Given) -> None:
    by_price: Callable[[Any], dict[str, int]] = lambda response: {"cost_micros": len(response["text"])}  # noqa: E731

    @app.task
    async def report(ctx: Context) -> None:
        await ctx.step("ask", metered(ctx, TEAM, Client().ask, read=by_price), "tides")

    async with working(app):
        await (await report.submit()).result(TIMEOUT)
    assert (await read(given.conn)).used == {"cost_micros": 5}


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"input_tokens": 3, "output_tokens": 4}, {"input_tokens": 3, "output_tokens": 4, "requests": 1}),
        ({"prompt_tokens": 3, "completion_tokens": 4}, {"input_tokens": 3, "output_tokens": 4, "requests": 1}),
        ({"prompt_tokens": 3, "output_tokens": None}, {"input_tokens": 3, "requests": 1}),
        ({"input_tokens": 0, "prompt_tokens": 9}, {"input_tokens": 0, "requests": 1}),
    ],
)
def test_counts_are_read_by_attribute_and_by_key(usage: dict[str, Any], counts: dict[str, int]) -> None:
    assert token_counts({"usage": usage}) == counts
    assert token_counts(SimpleNamespace(usage=SimpleNamespace(**usage))) == counts
    assert token_counts(SimpleNamespace(usage=usage)) == counts


@pytest.mark.parametrize("response", [None, "text", {}, {"usage": None}, {"usage": {"total": 3}}, SimpleNamespace()])
def test_a_response_without_counts_is_refused(response: Any) -> None:
    with pytest.raises(InvalidUsage, match=r"`usage`.*read="):
        token_counts(response)
