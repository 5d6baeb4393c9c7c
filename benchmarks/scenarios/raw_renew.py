"""The bare loop: update the expiry of 10,000 rows in one statement."""

from benchmarks.ground import Ground
from benchmarks.scenario import RAW, Scenario

LEASES = 10_000
ROUNDS = 10


async def run(ground: Ground) -> int:
    leases, rounds = ground.scaled(LEASES), ground.scaled(ROUNDS)
    async with ground.raw() as conn:
        await conn.execute(
            "create table narrow_leases (id bigint primary key, expires_at timestamptz) with (fillfactor = 50)"
        )
        await conn.execute("insert into narrow_leases select generate_series(1, $1::int), clock_timestamp()", leases)
        ids = [*range(1, leases + 1)]
        with ground.timed():
            for _ in range(rounds):
                await conn.execute(
                    "update narrow_leases set expires_at = clock_timestamp() where id = any ($1::bigint[])", ids
                )
    return leases * rounds


scenario = Scenario(name="raw_renew", about="10,000 rows updated in one statement", run=run, unit="rows/s", engine=RAW)
