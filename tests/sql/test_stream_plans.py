"""Rows read by calls of streams: about what they return, however many frames there are beside."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.engine import streams
from flowfabric.engine.doctor import diagnose
from flowfabric.model import Claim, Tail
from flowfabric.postgres.driver import Connection
from tests.engine.streams.scene import appended, frame
from tests.given import Given
from tests.sql.reading import reading

TABLES = ["streams", "frames"]
FRAMES = 2_000
OTHERS = """
insert into flowfabric.streams (partition, attempt, max_frames, frame_count, durable_count, execution, trim_at)
select i % 256, 1, 10000, 200, 200, md5(i::text)::uuid, null from generate_series(1, 500) i;
insert into flowfabric.frames (partition, attempt, ms, ordinal, at, seq, kind, mode, execution, payload)
select i % 256, 1, 1700000000000 + n, n, now(), 0, 'event', 'durable', md5(i::text)::uuid, 'x'
from generate_series(1, 500) i, generate_series(1, 200) n;
"""

Read = Callable[[Connection, Claim, list[str]], Awaitable[Any]]


def tail(after: int) -> Read:
    async def read(conn: Connection, claim: Claim, ids: list[str]) -> object:
        tails = [Tail(execution_id=claim.execution_id, after=ids[after]) for _ in range(10)]
        return await streams.tail_frames(conn, tails, limit=20)

    return read


CALLS: dict[str, tuple[Read, int]] = {
    "page": (lambda conn, claim, ids: streams.read_frames(conn, claim.execution_id, start=ids[900], limit=20), 60),
    "range": (lambda conn, claim, ids: streams.read_frames(conn, claim.execution_id, start=ids[5], end=ids[9]), 40),
    "end": (lambda conn, claim, ids: streams.read_frames(conn, claim.execution_id, start=ids[-3]), 20),
    "ten tails in the middle": (tail(1_000), 700),
    "ten tails that wait": (tail(-1), 30),
    "summary": (lambda conn, claim, _: streams.read_summary(conn, claim.execution_id), 10),
    "what is valid": (lambda conn, claim, _: streams.find_valid_frames(conn, claim.execution_id), 10),
    "nothing to trim": (lambda conn, _, __: streams.trim_frames(conn), 5),
    "doctor": (lambda conn, _, __: diagnose(conn, large_stream=1), 300),
    "append": (lambda conn, claim, _: streams.append_frames(conn, [frame(claim)] * 20), 40),
}


@pytest.mark.parametrize("is_analyzed", [False, True], ids=["without statistics", "analyzed"])
async def test_calls_read_about_what_they_return(given: Given, is_analyzed: bool) -> None:
    claim = await given.claimed()
    ids = await appended(given.conn, claim, *[b"1"] * FRAMES)
    await given.conn.execute(OTHERS)
    if is_analyzed:
        await given.conn.execute("analyze flowfabric.streams, flowfabric.frames, flowfabric.tickets")

    for name, (call, most) in CALLS.items():
        async with given.conn.transaction():
            _, read = await reading(given.conn, call(given.conn, claim, ids), TABLES)
        assert (name, read.rows <= most, read.whole) == (name, True, 0), (name, read)


async def test_a_pass_that_trims_reads_about_what_it_deletes(given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 100}})
    await appended(given.conn, claim, *[b"1"] * FRAMES)
    await given.conn.execute(OTHERS)

    async with given.conn.transaction():
        swept, read = await reading(given.conn, streams.trim_frames(given.conn, limit=500), TABLES)
    assert swept.moved == 500
    assert (read.rows <= 2_100, read.whole) == (True, 0), read


async def test_a_tail_that_retention_has_passed_reads_one_entry_more(given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 100}})
    await appended(given.conn, claim, *[b"1"] * FRAMES)
    await streams.trim_frames(given.conn, limit=10_000)
    await given.conn.execute("vacuum flowfabric.frames")

    tails = [Tail(execution_id=claim.execution_id)]
    async with given.conn.transaction():
        [page], read = await reading(given.conn, streams.tail_frames(given.conn, tails, limit=10), TABLES)
    assert page.trimmed_to is not None
    assert read.rows <= 40, read
