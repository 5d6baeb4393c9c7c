"""A worker that claims one execution and, when it is told to go on, tries every call a worker can make.

Run with the URL of a database. It prints a line when it works, reads one, and prints what each of its calls came to.
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
        "renew": await told(claims.renew(conn, fence)),
        "complete": await told(attempts.complete(conn, fence, b'"stale"')),
        "fail": await told(attempts.fail(conn, fence, "stale")),
        "delay": await told(attempts.delay(conn, fence, timedelta(hours=1))),
        "cancel": await told(
            executions.cancel(conn, fence.execution_id, reason="stale", source="lease_holder", fence=fence)
        ),
    }


async def told(call: Awaitable[object]) -> list[object]:
    try:
        await call
    except FlowFabricError as refusal:
        return [refusal.code, refusal.fields]
    return ["done", {}]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
