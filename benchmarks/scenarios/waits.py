"""Signals that resume suspended executions, and the cost of one signal beside few and many waiting executions."""

from collections.abc import Awaitable, Callable

import asyncpg

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.waiting import FILL
from flowfabric.engine import claims, executions, waits
from flowfabric.model import Options, SignalToSend, Submission, Suspension

RESUMED = 4_000
AT_ONCE = 100
SENT = 200
FEW, MANY = 100, 100_000
SUBMISSION = Submission(options=Options(task="benchmark"), payload=b"{}")
WISH = Suspension(condition={"kind": "single", "waitpoint": "answer", "name": "go"}, waitpoints=["answer"])


async def suspended(conn: asyncpg.Connection, amount: int) -> list[SignalToSend]:
    """Create this many waiting executions and return the signal that resumes each."""
    await executions.submit_many(conn, [SUBMISSION] * amount)
    signals = []
    async with conn.transaction():
        while taken := await claims.claim(conn, "bench", instance="bench-1", lanes=["default"], take=500):
            for claim in taken:
                [point] = (await waits.suspend(conn, claim.fence, WISH)).waitpoints
                token = point.token or ""
                signals.append(
                    SignalToSend(execution_id=claim.execution_id, waitpoint_id=point.id, token=token, name="go")
                )
    return signals


async def resume(ground: Ground) -> int:
    """Send a batch of signals, then claim the resumed executions."""
    count = ground.scaled(RESUMED // AT_ONCE) * AT_ONCE
    async with ground.raw() as conn:
        signals = await suspended(conn, count)
        await conn.execute("vacuum analyze")
        for start in range(0, count, AT_ONCE):
            with ground.timed():
                await waits.deliver_signals(conn, signals[start : start + AT_ONCE])
                taken = await claims.claim(conn, "bench", instance="bench-1", lanes=["default"], take=AT_ONCE)
            assert len(taken) == AT_ONCE
    return count


def delivering(others: int) -> Callable[[Ground], Awaitable[int]]:
    """Send one signal at a time beside many waiting executions, in one transaction, so that no commit is measured."""

    async def run(ground: Ground) -> int:
        sent = ground.scaled(SENT)
        async with ground.raw() as conn:
            signals = await suspended(conn, sent)
            await conn.execute(FILL, ground.scaled(others))
            await conn.execute("vacuum analyze")
            async with conn.transaction():
                for signal in signals:
                    with ground.timed():
                        await waits.deliver_signal(conn, signal)
        return sent

    return run


resumed = Scenario(
    name="waits",
    about="100 signals, then a claim of the 100 resumed executions",
    run=resume,
    unit="resumed/s",
    against={"raw_signals": None},
)
few = Scenario(name="deliver_among_few", about=f"one of {FEW:,}", run=delivering(FEW), unit="signals/s")
many = Scenario(
    name="deliver_among_many",
    about=f"one of {MANY:,}",
    run=delivering(MANY),
    unit="signals/s",
    against={few.name: None},
)
