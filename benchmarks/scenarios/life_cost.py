"""What the life of a plain execution costs: rows, index entries, WAL bytes, and processor time on both sides."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.wal import Wal
from flowfabric.engine import attempts, claims, executions
from flowfabric.model import Claim, Completion, Options, Submission

COUNT = 10_000
WARM = 20
BATCH = 100
SUBMISSION = Submission(options=Options(task="benchmark"), payload=b"{}")


class Costs:
    """Processor time by stage: of this process, and of the server process behind its one connection."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.conn = conn
        self.server = Path(f"/proc/{conn.get_server_pid()}/schedstat")
        self.seconds: dict[tuple[str, str], float] = {}

    @asynccontextmanager
    async def of(self, stage: str) -> AsyncIterator[None]:
        there, here = self._server_seconds(), time.process_time()
        yield
        self._add(stage, "python", time.process_time() - here)
        self._add(stage, "postgres", self._server_seconds() - there)

    def _add(self, stage: str, side: str, seconds: float) -> None:
        self.seconds[stage, side] = self.seconds.get((stage, side), 0.0) + seconds

    def _server_seconds(self) -> float:
        return int(self.server.read_text().split()[0]) / 1e9


async def live(conn: asyncpg.Connection, costs: Costs, lives: int, size: int) -> None:
    """Submit, claim and complete this many executions, `size` at a time."""
    last: Claim | None = None
    for _ in range(lives // size):
        async with costs.of("submit"):
            await submit(conn, size)
        async with costs.of("claim"):
            taken = await claims.claim(
                conn,
                "bench",
                instance="bench-1",
                lanes=["default"],
                take=size,
                slots=size,
                after_route=last.route if last else 0,
                last=last,
            )
        last = taken[-1]
        async with costs.of("complete"):
            await complete(conn, taken)


async def submit(conn: asyncpg.Connection, size: int) -> None:
    if size == 1:
        await executions.submit(conn, SUBMISSION)
    else:
        await executions.submit_many(conn, [SUBMISSION] * size)


async def complete(conn: asyncpg.Connection, taken: Sequence[Claim]) -> None:
    if len(taken) == 1:
        await attempts.complete(conn, taken[0].fence, b"{}")
    else:
        await attempts.complete_many(conn, [Completion(fence=claim.fence, result=b"{}") for claim in taken])


async def run(ground: Ground) -> int:
    total = 0
    for name, count, size in (("batch", COUNT, BATCH), ("single", COUNT // 5, 1)):
        lives = ground.scaled(count, least=size) // size * size
        async with ground.raw() as conn, ground.raw() as other:
            await live(conn, Costs(conn), WARM * size, size)
            await other.execute("vacuum analyze")
            costs, wal = Costs(conn), await Wal.begin(other)
            with ground.timed():
                await live(conn, costs, lives, size)
            written = (await wal.written()).each(lives)
        ground.tell(**{f"{name}_{what}": number for what, number in written._asdict().items()})
        for (stage, side), seconds in costs.seconds.items():
            ground.tell(**{f"{name}_{stage}_{side}_us": seconds / lives * 1e6})
        ground.tell(**{f"{name}_us": sum(costs.seconds.values()) / lives * 1e6})
        total += lives
    return total


scenario = Scenario(
    name="life_cost",
    about="what a plain execution writes and computes, 100 at a time and one at a time",
    run=run,
    unit="µs for each, 100 at a time",
    figure="batch_us",
    less_is_better=True,
)
