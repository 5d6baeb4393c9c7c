"""Waitpoints created before the suspension, their tokens, and the rotation of signing keys."""

import asyncio
import secrets
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric import signing
from flowfabric.engine import claims, signing_keys, waits
from flowfabric.errors import (
    FlowFabricError,
    InvalidName,
    InvalidText,
    InvalidTime,
    InvalidToken,
    LeaseLost,
    PendingWaitpointExpired,
    TokenExpired,
    WaitpointClosed,
)
from flowfabric.model import Claim, CreatedWaitpoint
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.engine.waits.scene import to, waiting, wish
from tests.given import Given

HOUR = timedelta(hours=1)
SECRET = "5ecb0017" * 8


async def rotate(conn: Connection, kid: str, *, grace: timedelta = HOUR) -> str:
    secret = secrets.token_hex(32)
    await signing_keys.rotate_key(conn, kid, secret, grace=grace)
    return secret


async def test_creating_a_waitpoint_again_returns_the_pending_one(conn: Connection, given: Given) -> None:
    claim = await given.claimed(lease=HOUR)

    made = await waits.create_waitpoint(conn, claim.fence, "w")

    assert (made.outcome, made.key, made.token[:3]) == ("created", "w", "k1:")
    async with given.nothing_changes():
        again = await waits.create_waitpoint(conn, claim.fence, "w", expires_in=HOUR)
    assert (again.outcome, again.waitpoint_id, again.token) == ("existing", made.waitpoint_id, made.token)
    assert again.expires_at == made.expires_at
    other = await waits.create_waitpoint(conn, claim.fence, "v")
    assert other.waitpoint_id != made.waitpoint_id
    assert (await given.event("waitpoint_created")) == {
        "waitpoint_id": str(other.waitpoint_id),
        "key": "v",
        "kid": "k1",
    }


async def test_the_token_is_the_documented_signature(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    secret = await rotate(conn, "k2")

    made = await waits.create_waitpoint(conn, claim.fence, "w")

    message = signing.waitpoint_message(str(claim.execution_id), made.waitpoint_id)
    assert made.token == signing.sign(bytes.fromhex(secret), "k2", message)
    [listed] = (await waits.list_waitpoints(conn, claim.execution_id)).items
    assert (listed.kid, listed.fingerprint) == ("k2", signing.fingerprint(made.token))


async def test_an_invalid_waitpoint_is_refused(conn: Connection, given: Given) -> None:
    claim = await given.claimed()

    async with given.nothing_changes():
        for key in ("", "k" * 129, "é" * 65):
            with pytest.raises(InvalidName):
                await waits.create_waitpoint(conn, claim.fence, key)
        for span in (timedelta(0), timedelta(days=30, milliseconds=1), timedelta.max, timedelta.min):
            with pytest.raises(InvalidTime):
                await waits.create_waitpoint(conn, claim.fence, "w", expires_in=span)
        with pytest.raises(InvalidText):
            await waits.create_waitpoint(conn, claim.fence, "w\0")
    await waits.create_waitpoint(conn, claim.fence, "k" * 128, expires_in=timedelta(days=30))
    await given.time_passes(seconds=30)
    with pytest.raises(LeaseLost):
        await waits.create_waitpoint(conn, claim.fence, "w")


async def test_an_unused_waitpoint_is_closed_when_it_expires(conn: Connection, given: Given) -> None:
    claim = await given.claimed(lease=HOUR)
    made = await waits.create_waitpoint(conn, claim.fence, "w", expires_in=timedelta(minutes=2))
    await given.time_passes(minutes=1)
    assert (await waits.close_waitpoints(conn)).moved == 0
    await given.time_passes(minutes=1)

    with pytest.raises(WaitpointClosed):
        await waits.deliver_signal(conn, to(claim.execution_id, made.waitpoint_id, made.token))
    assert (await waits.close_waitpoints(conn)).moved == 1
    assert (await waits.close_waitpoints(conn)).moved == 0

    [listed] = (await waits.list_waitpoints(conn, claim.execution_id)).items
    assert (listed.state, listed.close_reason, listed.expires_at) == ("closed", "never_committed", None)
    assert await given.event("waitpoint_closed") == {
        "waitpoint_id": str(made.waitpoint_id),
        "key": "w",
        "reason": "never_committed",
    }


async def test_an_expired_waitpoint_is_replaced_before_any_sweep_has_run(conn: Connection, given: Given) -> None:
    claim = await given.claimed(lease=HOUR)
    old = await waits.create_waitpoint(conn, claim.fence, "w", expires_in=timedelta(minutes=1))
    await given.time_passes(minutes=1)

    new = await waits.create_waitpoint(conn, claim.fence, "w")

    assert (new.outcome, new.waitpoint_id == old.waitpoint_id) == ("created", False)
    assert (await given.events(claim.execution_id))[3:] == ["waitpoint_closed", "waitpoint_created"]


async def test_a_waitpoint_that_is_being_adopted_is_not_closed(
    conn: Connection, given: Given, connect: Connect
) -> None:
    """The sweep skips the locked ticket, and checks the expiry again under the lock."""
    claim = await given.claimed(lease=HOUR)
    made = await waits.create_waitpoint(conn, claim.fence, "w", expires_in=timedelta(minutes=1))
    other = await connect()

    async with other.transaction():
        await waits.suspend(other, claim.fence, wish())
        await given.time_passes(minutes=1)
        assert (await waits.close_waitpoints(conn)).moved == 0
    assert (await waits.close_waitpoints(conn)).moved == 0

    done = await waits.deliver_signal(conn, to(claim.execution_id, made.waitpoint_id, made.token))
    assert done.effect == "resume_condition_satisfied"


async def test_a_waitpoint_whose_signing_key_was_removed_is_replaced(conn: Connection, given: Given) -> None:
    claim = await given.claimed(lease=timedelta(minutes=1))
    old = await waits.create_waitpoint(conn, claim.fence, "w", expires_in=timedelta(days=30))
    await rotate(conn, "k2", grace=timedelta(0))
    await given.time_passes(days=8)
    await signing_keys.retire_signing_keys(conn)
    await claims.expire_leases(conn)
    [claim] = await given.claim()

    with pytest.raises(PendingWaitpointExpired):
        await waits.suspend(conn, claim.fence, wish(waitpoints=[("w", old.waitpoint_id)]))
    new = await waits.create_waitpoint(conn, claim.fence, "w")

    assert (new.outcome, new.token[:3]) == ("created", "k2:")


async def test_old_tokens_are_valid_until_the_grace_period_ends(conn: Connection, given: Given) -> None:
    """Afterwards they are `token_expired`, and `invalid_token` once the signing key is removed."""
    inside, after, removed = [await waiting(given) for _ in range(3)]
    await rotate(conn, "k2", grace=HOUR)
    await given.time_passes(minutes=59)
    assert (await waits.deliver_signal(conn, inside.signal())).outcome == "accepted"
    await given.time_passes(minutes=1)

    async with given.nothing_changes():
        with pytest.raises(TokenExpired) as refused:
            await waits.deliver_signal(conn, after.signal())
        with pytest.raises(TokenExpired):
            await waits.deliver_signal(conn, inside.signal())
    assert refused.value.fields == {}
    await given.time_passes(days=7)
    await signing_keys.retire_signing_keys(conn)
    with pytest.raises(InvalidToken):
        await waits.deliver_signal(conn, removed.signal())


async def test_a_grace_period_of_zero_retires_a_secret_immediately(conn: Connection, given: Given) -> None:
    old = await waiting(given)
    await rotate(conn, "k2", grace=timedelta(0))
    new = await waiting(given)

    with pytest.raises(TokenExpired):
        await waits.deliver_signal(conn, old.signal())
    assert (await waits.deliver_signal(conn, new.signal())).outcome == "accepted"
    assert (new.point().token or "")[:3] == "k2:"


async def test_tokens_of_ten_rotations_within_the_grace_period_are_all_valid(conn: Connection, given: Given) -> None:
    asked = []
    for number in range(10):
        asked.append(await waiting(given))
        await rotate(conn, f"r{number}", grace=timedelta(days=1))

    told = await waits.deliver_signals(conn, [one.signal() for one in asked])

    assert [type(one).__name__ for one in told] == ["Delivered"] * 10


async def test_a_secret_in_its_grace_period_cannot_sign_for_newer_waitpoints(conn: Connection, given: Given) -> None:
    await signing_keys.rotate_key(conn, "leaked", SECRET)
    await rotate(conn, "next", grace=timedelta(days=1))
    younger = await waiting(given)
    message = signing.waitpoint_message(str(younger.execution_id), younger.point().id)

    async with given.nothing_changes():
        for kid in ("leaked", "next"):
            with pytest.raises(InvalidToken):
                await waits.deliver_signal(
                    conn, younger.signal(token=signing.sign(bytes.fromhex(SECRET), kid, message))
                )


class Generation(list[tuple[Claim, CreatedWaitpoint]]):
    """Waitpoints whose tokens one signing key has signed."""


async def generation(conn: Connection, claim: Claim, name: str, amount: int) -> Generation:
    return Generation(
        [(claim, await waits.create_waitpoint(conn, claim.fence, f"{name}-{number}")) for number in range(amount)]
    )


async def answers(conn: Connection, generations: Sequence[Generation]) -> list[str]:
    """The answer to the tokens of each generation; all tokens of one generation get the same answer."""
    told = []
    for some in generations:
        signals = [to(claim.execution_id, made.waitpoint_id, made.token, "x") for claim, made in some]
        done = await waits.deliver_signals(conn, signals)
        [word] = {one.code if isinstance(one, FlowFabricError) else one.outcome for one in done}
        told.append(word)
    return told


async def test_a_thousand_tokens_through_three_rotations(conn: Connection, given: Given) -> None:
    claim = await given.claimed(lease=HOUR)
    old = [await generation(conn, claim, f"g{number}", 250) for number in range(1)]
    for number in range(1, 4):
        await rotate(conn, f"k{number + 1}", grace=timedelta(minutes=10 * number))
        old.append(await generation(conn, claim, f"g{number}", 250))

    assert await answers(conn, old) == ["accepted"] * 4
    await given.time_passes(minutes=9)
    assert await answers(conn, old) == ["accepted"] * 4
    await given.time_passes(minutes=1)
    assert await answers(conn, old) == ["token_expired", "accepted", "accepted", "accepted"]
    await given.time_passes(minutes=10)
    assert await answers(conn, old) == ["token_expired", "token_expired", "accepted", "accepted"]
    await given.time_passes(minutes=10)
    assert await answers(conn, old) == ["token_expired"] * 3 + ["accepted"]
    crossed = [
        to(claim.execution_id, one.waitpoint_id, other.token, "x")
        for (_, one), (_, other) in zip(old[3], [*old[3][1:], old[3][0]], strict=True)
    ]
    told = await waits.deliver_signals(conn, crossed)
    assert {type(one) for one in told} == {InvalidToken}


async def test_two_concurrent_calls_create_one_waitpoint(given: Given, connect: Connect) -> None:
    claim = await given.claimed()
    one, two = await connect(), await connect()
    async with one.transaction():
        first = await waits.create_waitpoint(one, claim.fence, "w")
        later = asyncio.ensure_future(waits.create_waitpoint(two, claim.fence, "w"))
        await blocked(given, two, later)
    second = await later

    assert (first.outcome, second.outcome) == ("created", "existing")
    assert isinstance(second.waitpoint_id, UUID)
    assert second.token == first.token
