"""Tests of the small app. Run `pytest` in this directory; an embedded Postgres starts automatically."""

import orders
import pytest
from orders import app, charge, place_large_order, write_receipt

from flowfabric import ExecutionFailed


class DownAtFirst(orders.Bank):
    """A bank that is unreachable for the first few calls."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    async def charge(self, customer: str, amount: int) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError("the bank is closed")
        return await super().charge(customer, amount)


async def test_a_charge_is_retried_while_the_bank_is_down(run_now, monkeypatch):
    bank = DownAtFirst(failures=2)
    monkeypatch.setattr(orders, "bank", bank)

    assert await run_now(charge, "ada", 30) == "ada paid 30"
    assert bank.calls == 3


async def test_a_charge_fails_after_four_attempts(run_now, monkeypatch):
    bank = DownAtFirst(failures=9)
    monkeypatch.setattr(orders, "bank", bank)

    with pytest.raises(ExecutionFailed, match="the bank is closed"):
        await run_now(charge, "ada", 30)
    assert bank.calls == 4


def test_an_invalid_amount_is_not_retried(run_now):
    with pytest.raises(ExecutionFailed, match="cannot charge an amount of 0"):
        run_now(charge, "ada", 0)


async def test_a_large_order_is_charged_two_days_after_its_approval(app_worker, engine, clock):
    await app_worker(app)
    order = await place_large_order.submit("ada", 9000)

    await engine.approve(order, by="grace")
    assert await order.state() == "delayed"
    await clock.advance("2d")
    assert await order.result() == "ada paid 9000"


async def test_without_an_answer_a_large_order_times_out_after_thirty_days(app_worker, clock):
    await app_worker(app)
    order = await place_large_order.submit("ada", 9000)

    await clock.advance("29d")
    assert await order.state() == "suspended"
    await clock.advance("1d")
    assert await order.result() == "timed out"


def test_a_large_order_is_rejected(app_worker, engine):
    sync = app_worker(app)
    order = sync(place_large_order).submit("ada", 9000)

    engine.reject(order, by="grace")
    assert order.result() == "rejected by grace"


async def test_a_receipt_is_shown_while_it_is_written(app_worker):
    await app_worker(app)
    receipt = await write_receipt.submit("ada", [30, 12])

    shown = [frame.text or "" async for frame in receipt.frames() if frame.kind == "stdout"]
    assert "".join(shown) == "receipt for ada\n30\n12\n"
    progress = await receipt.progress()
    assert progress is not None
    assert progress.percent == 100


def test_no_line_of_a_receipt_is_shown_twice_when_it_is_retried(app_worker, clock, monkeypatch):
    def fails_once(amount):
        monkeypatch.undo()
        raise ConnectionError("the printer is busy")

    monkeypatch.setattr(orders, "line", fails_once)
    receipt = app_worker(app)(write_receipt).submit("ada", [30, 12])
    clock.advance("2m")

    shown = [frame.text or "" for frame in receipt.frames(attempts="valid") if frame.kind == "stdout"]
    assert "".join(shown) == "receipt for ada\n30\n12\n"
