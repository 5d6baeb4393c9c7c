"""A worker that claims one execution, waits for a line of input, and then makes every call a worker can make.

Run with the URL of a database. It prints a line when it works, and the outcome of each call at the end.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from datetime import timedelta

import asyncpg

from flowfabric.engine import attempts, claims, executions
from flowfabric.errors import FlowFabricError
from flowfabric.model import Fence
from flowfabric.postgres.driver import Connection


async def main(url: str) -> None:
    conn = await asyncpg.connect(url)
    [claim] = await claims.claim(conn, "stopped", instance="stopped-1", lanes=["default"])
    await claims.renew(conn, claim.fence)
    print("working", flush=True)
    sys.stdin.readline()
    print(json.dumps(await try_everything(conn, claim.fence)), flush=True)
    await conn.close()


async def try_everything(conn: Connection, fence: Fence) -> dict[str, list[object]]:
    return {
        "renew": await outcome(claims.renew(conn, fence)),
        "complete": await outcome(attempts.complete(conn, fence, b'"stale"')),
        "fail": await outcome(attempts.fail(conn, fence, "stale")),
        "delay": await outcome(attempts.delay(conn, fence, timedelta(hours=1))),
        "cancel": await outcome(
            executions.cancel(conn, fence.execution_id, reason="stale", source="lease_holder", fence=fence)
        ),
    }


async def outcome(call: Awaitable[object]) -> list[object]:
    try:
        await call
    except FlowFabricError as refusal:
        return [refusal.code, refusal.fields]
    return ["done", {}]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
