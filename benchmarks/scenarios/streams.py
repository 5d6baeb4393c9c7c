"""Streams: frames per second beside a bare insert, the delay to a reader, many tails, and what an end costs."""

import asyncio
import os
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import asyncpg

from benchmarks import tasks
from benchmarks.figures import percentiles
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.scenarios.life_cost import SUBMISSION, Costs
from benchmarks.workers import TIMEOUT, drained, opened, until, working
from flowfabric import Execution
from flowfabric.engine import attempts, claims, executions, lanes, streams
from flowfabric.model import Completion, Frame, FrameToAppend

EXECUTIONS = 200
FRAMES = 500
TURNS = 3
IN_FLIGHT = 2  # calls of a worker that append frames
DELAYS = 400
TAILS = 1_000
LIVES = 5_000
BATCH = 100
KINDS = ("plain", "stream")  # in turns
STORED = """
select count(distinct xmin::text)::int as calls, extract(epoch from max(at) - min(at))::float8 as seconds
from flowfabric.frames
"""
MAKE = """
create table narrow_frames (execution int, number int, at timestamptz, kind text, payload bytea,
                            primary key (execution, number))
"""
INSERT = """
insert into narrow_frames
select x.execution, x.number, now(), 'stdout', x.payload from unnest($1::int[], $2::int[], $3::bytea[])
    as x (execution, number, payload)
"""


async def rate(ground: Ground) -> int:
    """Take turns: frames of a worker, and bare inserts of as many rows at a time as the worker's calls had frames.

    `appended` are frames that the handler waits for, one by one; `written` are pieces of text, which share frames.
    """
    found: dict[str, list[float]] = defaultdict(list)
    count, frames = ground.scaled(EXECUTIONS, least=2), ground.scaled(FRAMES, least=20)
    async with opened(ground) as app, working(ground, 1, "--concurrency", str(EXECUTIONS)), ground.raw() as conn:
        await conn.execute(MAKE)
        for _ in range(TURNS):
            for name, task in (("appended", tasks.framed), ("written", tasks.spoken)):
                await app.lanes.pause("default", by="benchmark")
                await task.submit_many([(frames,)] * count)
                await app.lanes.resume("default", by="benchmark")
                with ground.timed():
                    await drained(conn)
                [stored] = await conn.fetch(STORED)
                size = count * frames / stored["calls"]
                bare = await inserts(ground, count * frames, round(size))
                found[f"{name}_ratio"].append(count * frames / stored["seconds"] / bare)
                found[f"{name}_per_s"].append(count * frames / stored["seconds"])
                found[f"{name}_bare_per_s"].append(bare)
                found[f"{name}_per_call"].append(size)
                await conn.execute("truncate narrow_frames, flowfabric.frames, flowfabric.streams")
    ground.tell(**{name: median(values) for name, values in found.items()})
    return 2 * TURNS * count * frames


async def inserts(ground: Ground, rows: int, size: int) -> float:
    """Insert rows of a narrow table, `size` at a time, on as many connections as a worker uses: rows per second."""

    async def write(conn: asyncpg.Connection, first: int) -> None:
        for start in range(first, rows, IN_FLIGHT * size):
            numbers = list(range(start, start + size))
            await conn.execute(INSERT, [0] * size, numbers, [b"%d" % number for number in numbers])

    conns = [await asyncpg.connect(ground.url) for _ in range(IN_FLIGHT)]
    try:
        began = time.perf_counter()
        await asyncio.gather(*(write(conn, place * size) for place, conn in enumerate(conns)))
        return rows / (time.perf_counter() - began)
    finally:
        for conn in conns:
            await conn.close()


async def delay(ground: Ground) -> int:
    """Follow one execution that appends a frame every few milliseconds, in another process."""
    seen, committed = [], []
    count = ground.scaled(DELAYS, least=10)
    async with opened(ground), working(ground, 1):
        execution = await tasks.timed_frames.submit(count)
        async with asyncio.timeout(TIMEOUT):
            async for frame in execution.frames():
                now = time.monotonic()
                if isinstance(frame, Frame):
                    seen.append(now - frame.data["appended"])
                    committed.append(frame.data["previous_call"])
    ground.tell(**percentiles("frame", seen[10:]), **percentiles("append", committed[10:]))
    ground.tell(p99_by_p50=ground.figures["frame_p99_ms"] / ground.figures["frame_p50_ms"])
    return len(seen)


async def tails(ground: Ground) -> int:
    """Follow many executions at once in this process; each appends a frame every few seconds."""
    delays: list[float] = []
    count = ground.scaled(TAILS, least=10)

    async def follow(execution: Execution[None]) -> None:
        async for frame in execution.frames():
            if isinstance(frame, Frame):
                delays.append(time.monotonic() - frame.data)  # noqa: PERF401 - what came first is dropped

    async with opened(ground) as app, working(ground, 1, "--concurrency", str(TAILS)):
        submitted = await tasks.ticking.submit_many([(20, 5 * count / TAILS)] * count)
        before = resident()
        async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
            for each in submitted:
                group.create_task(follow(each))
            await until(lambda: app.tails.waiting_count == count)
            memory = resident() - before
            delays.clear()
    ground.tell(**percentiles("frame", delays), memory_per_tail_kib=memory / count / 1_024)
    return len(delays)


def resident() -> int:
    """The memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def cost(ground: Ground) -> int:
    """Claim and complete executions that have a stream of one frame, in turns with others that have none."""
    async with ground.raw() as conn:
        costs = {kind: Costs(conn) for kind in KINDS}
        await lanes.configure_lane(conn, "default")
        lives = max(ground.scaled(LIVES) // BATCH, 1)
        for warm in (20, lives):
            for each in costs.values():
                each.seconds.clear()
            for number in range(2 * warm):
                kind = KINDS[number % 2]
                await live(conn, costs[kind], has_stream=kind == "stream")
    for kind, each in costs.items():
        for (stage, side), seconds in each.seconds.items():
            ground.tell(**{f"{kind}_{stage}_{side}_us": seconds / lives / BATCH * 1e6})
    sums = {
        kind: sum(s for (stage, _), s in each.seconds.items() if stage == "complete") for kind, each in costs.items()
    }
    ground.tell(ratio=sums["stream"] / sums["plain"])
    return 2 * lives * BATCH


async def live(conn: asyncpg.Connection, costs: Costs, *, has_stream: bool) -> None:
    await executions.submit_many(conn, [SUBMISSION] * BATCH)
    async with costs.of("claim"):
        taken = await claims.claim(conn, "bench", instance="bench-1", lanes=["default"], take=BATCH, slots=BATCH)
    if has_stream:
        async with costs.of("append"):
            await streams.append_frames(conn, [FrameToAppend(fence=claim.fence, payload=b"1") for claim in taken])
    async with costs.of("complete"):
        await attempts.complete_many(conn, [Completion(fence=claim.fence, result=b"{}") for claim in taken])


frames = Scenario(
    name="frames",
    about="200 executions of one worker append 500 frames each, or write 500 pieces of text; beside bare inserts",
    run=rate,
    unit="x the rate of bare inserts",
    figure="appended_ratio",
    goal=0.4,
)
frame_latency = Scenario(
    name="frame_latency",
    about="from the call that appends a frame to a reader in another process",
    run=delay,
    unit="ms, p50",
    figure="frame_p50_ms",
    less_is_better=True,
    goal=5,
    against={"raw_latency": None},
)
many_tails = Scenario(
    name="many_tails",
    about="1,000 executions that one process follows, 200 frames a second: the delay, and memory for each tail",
    run=tails,
    unit="ms, p50",
    figure="frame_p50_ms",
    less_is_better=True,
)
stream_cost = Scenario(
    name="stream_cost",
    about="processor time of a claim and a completion, with a stream and without",
    run=cost,
    unit="x a completion without",
    figure="ratio",
    less_is_better=True,
)
