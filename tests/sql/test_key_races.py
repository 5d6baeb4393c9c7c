"""Races for signing keys and grants, as interleavings of two connections."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from flowfabric import errors
from flowfabric.config import Config
from flowfabric.engine import claims, executions, holds, signing_keys
from flowfabric.ids import ExecutionId
from flowfabric.model import Grant, Rotated, Seeded
from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.given import Given, submission

SECRET = "5ecb0017" * 8
OTHER = "0ddba115" * 8

Call = Callable[[Connection], Awaitable[Any]]


class Race:
    """Two concurrent calls: the second starts before the first commits."""

    def __init__(self, given: Given, one: asyncpg.Connection, two: asyncpg.Connection) -> None:
        self.given, self.one, self.two = given, one, two

    async def run(self, first: Call, second: Call, *, wins: bool = True, meanwhile: float = 0) -> tuple[Any, Any]:
        """Return both answers or errors; the second must wait. Rolls the first back unless it `wins`."""
        transaction = self.one.transaction()
        await transaction.start()
        answer = await first(self.one)
        later = asyncio.ensure_future(second(self.two))
        await blocked(self.given, self.two, later)
        if meanwhile:
            await self.given.time_passes(seconds=meanwhile)
        await (transaction.commit() if wins else transaction.rollback())
        return answer, (await asyncio.gather(later, return_exceptions=True))[0]


@pytest.fixture
async def race(given: Given, connect: Connect) -> Race:
    return Race(given, await connect(), await connect())


def rotate(kid: str, secret: str = SECRET) -> Call:
    return lambda conn: signing_keys.rotate_key(conn, kid, secret)


def seed(kid: str, secret: str = SECRET) -> Call:
    return lambda conn: signing_keys.seed_key(conn, kid, secret)


async def active(conn: Connection) -> list[str]:
    return [key.kid for key in await signing_keys.list_keys(conn) if key.expires_at is None]


async def test_the_second_of_two_concurrent_rotations_waits_for_the_first(race: Race, conn: Connection) -> None:
    first, second = await race.run(rotate("k2"), rotate("k3", OTHER))

    assert (first.previous_kid, second.previous_kid) == ("k1", "k2")
    assert await active(conn) == ["k3"]


async def test_a_rolled_back_rotation_leaves_no_trace(race: Race, conn: Connection) -> None:
    _, second = await race.run(rotate("k2"), rotate("k3", OTHER), wins=False)

    assert second.previous_kid == "k1"
    assert [key.kid for key in await signing_keys.list_keys(conn)] == ["k1", "k3"]


async def test_the_same_rotation_twice_concurrently_rotates_once(race: Race, conn: Connection, given: Given) -> None:
    _, second = await race.run(rotate("k2"), rotate("k2"))

    assert second == Rotated(outcome="noop", kid="k2")
    assert (await given.events()).count("key_rotated") == 1


async def test_two_concurrent_secrets_for_one_kid_conflict(race: Race, conn: Connection) -> None:
    _, second = await race.run(rotate("k2"), rotate("k2", OTHER))

    assert isinstance(second, errors.RotationConflict)
    assert await active(conn) == ["k2"]


async def test_one_of_two_concurrent_seeds_wins(race: Race, conn: Connection) -> None:
    await conn.execute("delete from flowfabric.keys")
    _, second = await race.run(seed("s1"), seed("s1", OTHER))
    await conn.execute("delete from flowfabric.keys")
    _, third = await race.run(seed("s1"), seed("s2"))

    assert second == Seeded(outcome="already_seeded", kid="s1", same_secret=False)
    assert isinstance(third, errors.AnotherKeyActive)
    assert await active(conn) == ["s1"]


async def test_a_concurrent_seed_and_rotation_leave_one_active_key(race: Race, conn: Connection) -> None:
    await conn.execute("delete from flowfabric.keys")
    _, seeded = await race.run(rotate("k2"), seed("s1", OTHER))
    assert isinstance(seeded, errors.AnotherKeyActive)
    assert await active(conn) == ["k2"]

    await conn.execute("delete from flowfabric.keys")
    _, rotated = await race.run(seed("s1"), rotate("k2", OTHER))
    assert (rotated.outcome, rotated.previous_kid) == ("rotated", "s1")
    assert await active(conn) == ["k2"]


async def test_many_concurrent_rotations_and_seeds_leave_one_active_key(conn: Connection, connect: Connect) -> None:
    """A unique index allows one active key."""
    calls = [rotate(f"k{number}", secrets.token_hex(32)) for number in range(2, 10)] + [seed("k1"), seed("s1")]
    conns = [await connect() for _ in calls]
    said = await asyncio.gather(*(call(one) for call, one in zip(calls, conns, strict=True)), return_exceptions=True)

    rotated = [answer for answer in said if isinstance(answer, Rotated)]
    assert len(rotated) == 8
    assert len({answer.previous_kid for answer in rotated}) == 8
    assert len(await active(conn)) == 1
    assert len(await signing_keys.list_keys(conn)) == 9


async def test_many_concurrent_migrations_install_one_key(empty_url: str) -> None:
    """A new installation can sign immediately: the first migration seeds a key."""
    conns = [await asyncpg.connect(empty_url) for _ in range(4)]
    await asyncio.gather(*(migrate.migrate(one, Config()) for one in conns))

    assert await active(conns[0]) == ["k1"]
    [row] = await conns[0].fetch("select count(*) from flowfabric.events where kind = 'key_seeded'")
    assert row["count"] == 1
    for one in conns:
        await one.close()


async def test_two_concurrent_sweeps_do_not_wait_for_each_other(race: Race, given: Given) -> None:
    await signing_keys.rotate_key(given.conn, "k2", SECRET, grace=timedelta(0))
    await given.time_passes(days=7)
    async with race.one.transaction(), asyncio.timeout(10):
        assert (await signing_keys.retire_signing_keys(race.one)).moved == 1
        assert (await signing_keys.retire_signing_keys(race.two)).moved == 0
        assert (await signing_keys.rotate_key(race.two, "k3", OTHER)).removed == 0


@pytest.fixture
async def grant(given: Given) -> Grant:
    """A grant of the only execution, issued to `w-1`."""
    await given.submitted()
    [issued] = await claims.issue_grant(given.conn, "w", instance="w-1", lanes=["default"])
    return issued


def use(grant: Grant) -> Call:
    return lambda conn: claims.claim_granted(conn, grant.grant_key, "w", instance="w-1")


def cancel(grant: Grant) -> Call:
    return lambda conn: executions.cancel(conn, grant.execution_id, by="ops")


def hold(grant: Grant) -> Call:
    return lambda conn: holds.hold(conn, grant.execution_id, by="ops")


async def test_one_of_two_concurrent_uses_of_a_grant_wins(race: Race, given: Given, grant: Grant) -> None:
    first, second = await race.run(use(grant), use(grant))

    assert first.fence.epoch == 1
    assert isinstance(second, errors.InvalidGrant)
    assert second.fields == {"cause": "unknown_grant"}
    assert (await given.events(grant.execution_id)).count("lease_acquired") == 1


async def test_a_rolled_back_use_leaves_the_grant_valid(race: Race, grant: Grant) -> None:
    _, second = await race.run(use(grant), use(grant), wins=False)

    assert second.fence.epoch == 1


@pytest.mark.parametrize("stop", [cancel, hold])
async def test_a_grant_that_is_concurrently_invalidated_cannot_be_used(
    race: Race, given: Given, grant: Grant, stop: Callable[[Grant], Call]
) -> None:
    _, second = await race.run(stop(grant), use(grant))

    assert isinstance(second, errors.InvalidGrant)
    assert second.fields == {"cause": "unknown_grant"}
    assert "lease_acquired" not in await given.events(grant.execution_id)


async def test_a_cancel_that_waited_for_the_use_of_a_grant_ends_the_active_execution(
    race: Race, given: Given, grant: Grant
) -> None:
    first, second = await race.run(use(grant), cancel(grant))

    assert (first.fence.epoch, second.public_state) == (1, "cancelled")
    assert (await given.events(grant.execution_id))[-2:] == ["lease_acquired", "execution_cancelled"]
    assert await given.count("tickets") == 0


async def test_a_grant_that_expires_while_its_use_waits_cannot_be_used(race: Race, given: Given, grant: Grant) -> None:

    async def look(conn: Connection) -> None:
        await executions.change_priority(conn, grant.execution_id, 7, by="ops")

    _, second = await race.run(look, use(grant), meanwhile=10)

    assert isinstance(second, errors.GrantExpired)
    assert "lease_acquired" not in await given.events(grant.execution_id)


async def test_an_expired_grant_cannot_be_used_after_a_claim(race: Race, given: Given, grant: Grant) -> None:
    await given.time_passes(seconds=10)
    first, second = await race.run(lambda conn: claims.claim(conn, "v", instance="v-1", lanes=["default"]), use(grant))

    assert [claim.execution_id for claim in first] == [grant.execution_id]
    assert isinstance(second, errors.InvalidGrant)
    assert (await given.events(grant.execution_id)).count("lease_acquired") == 1


async def test_claims_and_sweeps_skip_a_grant_in_use(race: Race, given: Given, grant: Grant) -> None:
    async with race.one.transaction():
        await use(grant)(race.one)
        await given.time_passes(minutes=1)
        async with asyncio.timeout(10):
            assert await claims.claim(race.two, "v", instance="v-1", lanes=["default"]) == []
            assert (await claims.expire_grants(race.two)).moved == 0


async def test_many_concurrent_grants_are_for_different_executions(given: Given, connect: Connect) -> None:
    await executions.submit_many(given.conn, [submission(namespace=f"n{at % 5}") for at in range(60)])

    async def ask(number: int) -> list[ExecutionId]:
        conn, used = await connect(), []
        while issued := await claims.issue_grant(conn, "w", instance=f"w-{number}", lanes=["default"], take=4):
            taken = [await claims.claim_granted(conn, g.grant_key, "w", instance=f"w-{number}") for g in issued]
            used += [claim.execution_id for claim in taken]
        return used

    used = [one for some in await asyncio.gather(*map(ask, range(5))) for one in some]
    assert len(used) == len(set(used)) == 60
