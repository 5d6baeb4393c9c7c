"""Signing keys: one signs, older ones verify until they expire, and no secret is ever shown."""

import logging
import secrets
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from hypothesis import given as generated
from hypothesis import settings
from hypothesis import strategies as st

from flowfabric import errors, signing, testing
from flowfabric.config import Config
from flowfabric.engine import claims, signing_keys, waits
from flowfabric.errors import AnotherKeyActive, InvalidBody, InvalidGrace, InvalidKid, InvalidSecret, RotationConflict
from flowfabric.model import Rotated, SignalToSend, Swept
from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate
from tests.conftest import Connect, Server
from tests.given import Given

VECTORS = msgspec.json.decode(Path(__file__).parents[1].joinpath("vectors.json").read_bytes())
SECRET = "5ecb0017" * 8
OTHER = "0ddba115" * 8

Install = Callable[[Connection, Any, Any], Awaitable[object]]
installing = pytest.mark.parametrize("install", [signing_keys.seed_key, signing_keys.rotate_key])


@pytest.fixture
async def empty(conn: Connection) -> None:
    """A keystore that was emptied manually."""
    await conn.execute("delete from flowfabric.keys")


async def kids(conn: Connection, *, active: bool | None = None) -> list[str]:
    """The existing keys; only active or only retired ones if asked for."""
    return [k.kid for k in await signing_keys.list_keys(conn) if active is None or (k.expires_at is None) is active]


async def digest(conn: Connection, kid: str, message: str) -> str:
    [row] = await conn.fetch(
        "select flowfabric._hmac(k, $2) as hex from flowfabric.keys k where k.kid = $1", kid, message
    )
    return str(row["hex"])


@pytest.mark.usefixtures("empty")
async def test_postgres_signs_as_python_does(conn: Connection) -> None:
    for vector in VECTORS["signatures"]:
        await conn.execute("delete from flowfabric.keys")
        await signing_keys.seed_key(conn, vector["kid"], vector["secret"])
        signed = f"{vector['kid']}:{await digest(conn, vector['kid'], vector['message'])}"

        assert signed == vector["token"]
        assert signed == signing.sign(bytes.fromhex(vector["secret"]), vector["kid"], vector["message"])


@pytest.mark.usefixtures("empty")
async def test_postgres_and_python_sign_any_text_alike(conn: Connection) -> None:
    await signing_keys.seed_key(conn, "any", SECRET)
    texts: list[str] = []

    @settings(max_examples=300, database=None)
    @generated(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    statement = (
        "select flowfabric._hmac(k, m) as hex from flowfabric.keys k, unnest($1::text[]) with ordinality m (m, n)"
    )
    signed = [f"any:{row['hex']}" for row in await conn.fetch(f"{statement} order by n", texts)]
    assert signed == [signing.sign(bytes.fromhex(SECRET), "any", text) for text in texts]


@installing
async def test_a_kid_is_a_short_plain_word(conn: Connection, install: Install) -> None:
    for kid in VECTORS["kids"]["valid"]:
        await conn.execute("delete from flowfabric.keys")
        await install(conn, kid, SECRET)
        assert await kids(conn, active=True) == [kid]


@installing
async def test_an_invalid_kid_is_refused(conn: Connection, given: Given, install: Install) -> None:
    for kid in [*VECTORS["kids"]["invalid"], "k1\n", "k\0", "\ud800", "k" * 5000]:
        async with given.nothing_changes():
            with pytest.raises(InvalidKid, match="1 to 64 letters, digits, dots, underscores or hyphens"):
                await install(conn, kid, SECRET)

    assert await kids(conn) == ["k1"]


@installing
async def test_a_secret_is_read_in_either_case(conn: Connection, install: Install) -> None:
    for secret in VECTORS["secrets"]["valid"]:
        await conn.execute("delete from flowfabric.keys")
        await install(conn, "k7", secret)
        assert await digest(conn, "k7", "hello") == signing.sign(bytes(range(32)), "k7", "hello").partition(":")[2]


@installing
async def test_an_invalid_secret_is_refused(conn: Connection, given: Given, install: Install) -> None:
    for secret in VECTORS["secrets"]["invalid"]:
        async with given.nothing_changes():
            with pytest.raises(InvalidSecret, match="exactly 64 hexadecimal digits"):
                await install(conn, "k2", secret)

    assert await kids(conn) == ["k1"]


NEARLY: list[Any] = [
    SECRET[:-1], f"{SECRET}0", f"{SECRET}\n", f" {SECRET}", f"{SECRET}\0", f"{SECRET}\ud800", f"0x{SECRET}",
    f"{SECRET}'", f"{SECRET[:-1]}ä", SECRET.encode(), [SECRET], bytes.fromhex(SECRET), int(SECRET, 16), None,
]  # fmt: skip


@installing
@pytest.mark.parametrize("swapped", [False, True])
async def test_no_refusal_and_no_log_shows_a_secret_that_was_mistyped(
    conn: Connection, install: Install, swapped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for secret in NEARLY:
        with pytest.raises((InvalidSecret, InvalidKid, TypeError, AttributeError)) as raised:
            await install(conn, *((secret, "k2") if swapped else ("k2", secret)))

        said = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + caplog.text
        assert swapped or isinstance(raised.value, InvalidSecret)
        assert not any(part in said.lower() for part in ("5ecb0017", "\\xcb", str(int(SECRET, 16))))
    assert await kids(conn) == ["k1"]


async def test_no_answer_no_event_and_no_activity_shows_a_secret(
    conn: Connection, given: Given, connect: Connect
) -> None:
    answers = [
        await signing_keys.rotate_key(conn, "k2", SECRET, by="ops"),
        await signing_keys.rotate_key(conn, "k2", SECRET),
    ]
    with pytest.raises(RotationConflict) as known:
        await signing_keys.rotate_key(conn, "k2", OTHER)
    activity = await (await connect()).fetch("select query from pg_stat_activity where pid = $1", conn.get_server_pid())  # type: ignore[attr-defined]
    logged = await given.rows("select e::text as line from flowfabric.events e")

    said = repr((answers, await signing_keys.list_keys(conn), known.value, activity, logged)).lower()
    assert "rotate_key" in said
    assert "5ecb0017" not in said
    assert "0ddba115" not in said


async def test_the_keys_are_listed_by_name_and_without_secrets(conn: Connection) -> None:
    await signing_keys.rotate_key(conn, "a2", SECRET, grace=timedelta(hours=1))
    [active, old] = await signing_keys.list_keys(conn)

    assert (active.kid, active.expires_at, old.kid) == ("a2", None, "k1")
    assert old.expires_at is not None
    assert timedelta(0) <= active.created_at - (old.expires_at - timedelta(hours=1)) < timedelta(seconds=1)
    assert set(msgspec.structs.asdict(active)) == {"kid", "created_at", "expires_at"}


async def test_a_rotation_is_answered_and_logged(conn: Connection, given: Given) -> None:
    rotated = await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(minutes=5), by="ops")
    [row] = await given.rows("select subject, by from flowfabric.events where kind = 'key_rotated'")

    assert rotated == Rotated(outcome="rotated", kid="k2", previous_kid="k1", removed=0, open_waitpoints=0)
    assert (row["subject"], row["by"]) == ("k2", "ops")
    assert await given.event("key_rotated") == {"previous_kid": "k1", "grace_ms": 300_000}


async def test_rotating_to_the_active_key_changes_nothing(conn: Connection, given: Given) -> None:
    await signing_keys.rotate_key(conn, "k2", SECRET)
    before = await signing_keys.list_keys(conn)
    async with given.nothing_changes():
        again = await signing_keys.rotate_key(conn, "k2", SECRET.upper(), grace=timedelta(0))

    assert again == Rotated(outcome="noop", kid="k2")
    assert await signing_keys.list_keys(conn) == before


@pytest.mark.parametrize(("kid", "secret"), [("k3", OTHER), ("k2", SECRET), ("k2", OTHER)])
async def test_a_kid_is_never_used_twice(conn: Connection, given: Given, kid: str, secret: str) -> None:
    """A known kid with another secret, or one that is retired, is refused."""
    await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(0))
    await signing_keys.rotate_key(conn, "k3", SECRET)
    before = await signing_keys.list_keys(conn)
    async with given.nothing_changes():
        with pytest.raises(RotationConflict, match=f"kid '{kid}' already exists"):
            await signing_keys.rotate_key(conn, kid, secret)

    assert await signing_keys.list_keys(conn) == before


@pytest.mark.parametrize(
    "grace", [timedelta(milliseconds=-1), timedelta.min, timedelta.max, timedelta(days=104_249_992)]
)
async def test_an_invalid_grace_is_refused(conn: Connection, given: Given, grace: timedelta) -> None:
    async with given.nothing_changes():
        with pytest.raises(InvalidGrace, match="use 0 to 9,007,199,254,740,991"):
            await signing_keys.rotate_key(conn, "k2", SECRET, grace=grace)

    assert await kids(conn) == ["k1"]


async def test_no_other_number_makes_a_rotation_fail(conn: Connection) -> None:
    for grace in (-(2**63), -1, 2**53, 2**63 - 1, None):
        with pytest.raises(asyncpg.PostgresError, match="invalid_grace") as raised:
            await conn.fetch("select flowfabric.rotate_key('k2', $1, $2)", SECRET, grace)
        assert raised.value.sqlstate == "FF422"


async def test_the_longest_grace_is_a_century(conn: Connection) -> None:
    await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(milliseconds=2**53 - 1))
    [old, _] = await signing_keys.list_keys(conn)

    assert old.expires_at is not None
    assert old.expires_at > await testing.now(conn) + timedelta(days=36_000)


async def test_a_rotation_logs_the_operator(conn: Connection) -> None:
    with pytest.raises(InvalidBody) as raised:
        await signing_keys.rotate_key(conn, "k2", SECRET, by="x" * 257)

    assert raised.value.fields == {"field": "by"}
    assert await kids(conn) == ["k1"]


async def test_later_rotations_do_not_lengthen_an_earlier_grace(conn: Connection, given: Given) -> None:
    await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(minutes=1))
    [first, _] = await signing_keys.list_keys(conn)
    await given.time_passes(seconds=30)
    await signing_keys.rotate_key(conn, "k3", OTHER, grace=timedelta(days=9))

    assert (await signing_keys.list_keys(conn))[0] == first
    assert await kids(conn, active=True) == ["k3"]


@pytest.mark.usefixtures("empty")
async def test_the_first_key_is_seeded_once(conn: Connection, given: Given) -> None:
    first = await signing_keys.seed_key(conn, "s1", SECRET)
    async with given.nothing_changes():
        again = await signing_keys.seed_key(conn, "s1", SECRET.upper())
        other = await signing_keys.seed_key(conn, "s1", OTHER)

    assert (first.outcome, first.kid, first.same_secret) == ("seeded", "s1", None)
    assert (again.outcome, again.kid, again.same_secret) == ("already_seeded", "s1", True)
    assert (other.outcome, other.same_secret) == ("already_seeded", False)
    assert (await given.events())[-1] == "key_seeded"
    assert await digest(conn, "s1", "m") == signing.sign(bytes.fromhex(SECRET), "s1", "m").partition(":")[2]


@pytest.mark.parametrize("kid", ["k1", "k3"])
async def test_nothing_is_seeded_beside_another_active_key(conn: Connection, given: Given, kid: str) -> None:
    await signing_keys.rotate_key(conn, "k2", SECRET)
    async with given.nothing_changes():
        with pytest.raises(AnotherKeyActive, match="key 'k2' is already active; use rotate_key") as raised:
            await signing_keys.seed_key(conn, kid, OTHER)

    assert raised.value.fields == {"kid": "k2"}
    assert await kids(conn) == ["k1", "k2"]


async def test_a_retired_kid_is_not_seeded_again(conn: Connection) -> None:
    await signing_keys.rotate_key(conn, "k2", SECRET)
    await conn.execute("delete from flowfabric.keys where kid = 'k2'")

    with pytest.raises(RotationConflict, match="kid 'k1' already exists and is retired"):
        await signing_keys.seed_key(conn, "k1", OTHER)
    assert (await signing_keys.rotate_key(conn, "k4", OTHER)).previous_kid is None
    assert await kids(conn, active=True) == ["k4"]


async def test_the_table_allows_one_active_key_only(conn: Connection) -> None:
    """Concurrent rotations can never leave two active keys."""
    with pytest.raises(asyncpg.UniqueViolationError, match="keys_one_active"):
        await conn.execute("insert into flowfabric.keys values ('k2', now(), null, '', '', '')")
    await signing_keys.rotate_key(conn, "k3", SECRET)
    with pytest.raises(asyncpg.UniqueViolationError, match="keys_one_active"):
        await conn.execute("update flowfabric.keys set expires_at = null")

    assert await kids(conn, active=True) == ["k3"]


async def test_a_key_is_removed_seven_days_after_its_expiry(conn: Connection, given: Given) -> None:
    await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(hours=1))
    await given.time_passes(days=7, minutes=59)
    assert await signing_keys.retire_signing_keys(conn) == Swept(moved=0)

    await given.time_passes(minutes=1)
    assert await signing_keys.retire_signing_keys(conn, passing=1) == Swept(moved=0)
    assert await signing_keys.retire_signing_keys(conn) == Swept(moved=1)
    assert await signing_keys.retire_signing_keys(conn) == Swept(moved=0)
    assert await kids(conn) == ["k2"]


async def test_a_sweep_removes_the_oldest_first_and_no_more_than_its_limit(conn: Connection, given: Given) -> None:
    for number in range(2, 6):
        await signing_keys.rotate_key(conn, f"k{number}", secrets.token_hex(32), grace=timedelta(hours=number))
    await given.time_passes(days=8)

    assert (await signing_keys.retire_signing_keys(conn, limit=3)).moved == 3
    assert await kids(conn) == ["k4", "k5"]


async def test_a_rotation_removes_old_keys_too(conn: Connection, given: Given) -> None:
    await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(0))
    await given.time_passes(days=7)
    rotated = await signing_keys.rotate_key(conn, "k3", OTHER)

    assert (rotated.removed, rotated.previous_kid) == (1, "k2")
    assert await kids(conn) == ["k2", "k3"]


async def test_without_an_active_key_nothing_is_signed(conn: Connection, given: Given) -> None:
    running = await given.claimed()
    await given.submitted()
    await conn.execute("delete from flowfabric.keys")
    async with given.nothing_changes():
        with pytest.raises(errors.NoActiveKey):
            await claims.issue_grant(conn, "w", instance="w-1", lanes=["default"])
        with pytest.raises(errors.NoActiveKey):
            await waits.create_waitpoint(conn, running.fence, "answer")

    await signing_keys.seed_key(conn, "k9", SECRET)
    assert len(await claims.issue_grant(conn, "w", instance="w-1", lanes=["default"])) == 1


@pytest.fixture
async def role(server: Server, connect: Connect) -> AsyncIterator[str]:
    """A role without privileges."""
    name = f"role_{uuid.uuid4().hex}"
    await server.execute(f"create role {name}")
    yield name
    await (await connect()).execute(f"drop owned by {name}")
    await server.execute(f"drop role {name}")


@pytest.mark.parametrize("usage", [False, True])
async def test_an_ordinary_role_reads_no_secret(role: str, conn: Connection, usage: bool) -> None:
    if usage:
        await conn.execute(f"grant usage on schema flowfabric to {role}")
        await conn.execute(f"grant select, insert, update on flowfabric.tickets, flowfabric.events to {role}")
    await conn.execute(f"set role {role}")
    for statement in ("select secret from flowfabric.keys", "select kid from flowfabric.keys", "table flowfabric.keys"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.fetch(statement)

    for call in (
        signing_keys.list_keys(conn),
        signing_keys.rotate_key(conn, "k2", SECRET),
        signing_keys.seed_key(conn, "k2", SECRET),
    ):
        with pytest.raises(errors.PrivilegeMissing) as raised:
            await call
        assert "5ecb0017" not in "".join(traceback.format_exception(raised.value))


async def stored(url: str, config: Config) -> dict[str, str]:
    """The keys with their secrets, after another migration."""
    conn = await asyncpg.connect(url)
    try:
        await migrate.migrate(conn, config)
        return {
            r["kid"]: r["hex"]
            for r in await conn.fetch("select kid, encode(secret, 'hex') as hex from flowfabric.keys")
        }
    finally:
        await conn.close()


async def test_the_first_migration_installs_the_configured_secret_once(empty_url: str) -> None:
    assert await stored(empty_url, Config(secret=SECRET.upper())) == {"k1": SECRET}
    assert await stored(empty_url, Config(secret=OTHER)) == {"k1": SECRET}
    assert await stored(empty_url, Config()) == {"k1": SECRET}


async def test_the_first_migration_generates_a_secret_if_none_is_configured(empty_url: str) -> None:
    """A new installation can sign without a rotation."""
    first = await stored(empty_url, Config())

    assert [len(bytes.fromhex(secret)) for secret in first.values()] == [32]
    assert await stored(empty_url, Config()) == first


async def test_a_migration_does_not_seed_an_emptied_keystore_again(empty_url: str) -> None:
    await stored(empty_url, Config(secret=SECRET))
    conn = await asyncpg.connect(empty_url)
    await conn.execute("delete from flowfabric.keys")
    await conn.close()

    assert await stored(empty_url, Config(secret=SECRET)) == {}


async def test_two_installations_have_different_keys(conn: Connection, empty_url: str) -> None:
    [made] = await conn.fetch("select encode(secret, 'hex') as hex from flowfabric.keys")

    assert await stored(empty_url, Config()) != {"k1": made["hex"]}


async def test_an_invalid_secret_leaves_nothing_migrated(empty_url: str) -> None:
    with pytest.raises(InvalidSecret) as raised:
        await stored(empty_url, Config(secret=f"{SECRET}0"))

    assert "5ecb0017" not in "".join(traceback.format_exception(raised.value))
    assert await stored(empty_url, Config(secret=OTHER)) == {"k1": OTHER}


async def waitpoint(conn: Connection, given: Given) -> SignalToSend:
    """A valid signal to a waitpoint just created."""
    claim = await given.claimed(lane=f"lane-{uuid.uuid4().hex}", lease=timedelta(hours=1))
    made = await waits.create_waitpoint(conn, claim.fence, "answer", expires_in=timedelta(days=30))
    return SignalToSend(
        execution_id=claim.execution_id, waitpoint_id=made.waitpoint_id, token=made.token, name="hello"
    )  # fmt: skip


async def outcome(conn: Connection, signal: SignalToSend) -> str:
    try:
        return (await waits.deliver_signal(conn, signal)).outcome
    except errors.FlowFabricError as refused:
        return refused.code


async def test_an_old_token_is_valid_during_the_grace_and_not_after(conn: Connection, given: Given) -> None:
    old = await waitpoint(conn, given)
    rotated = await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(minutes=10))
    young = await waitpoint(conn, given)
    await given.time_passes(minutes=9)
    said = [await outcome(conn, old)]
    await given.time_passes(minutes=1)
    said.append(await outcome(conn, old))
    await given.time_passes(days=7)
    assert await signing_keys.retire_signing_keys(conn) == Swept(moved=1)
    said.append(await outcome(conn, old))

    assert said == ["accepted", "token_expired", "invalid_token"]
    assert (rotated.open_waitpoints, young.token.partition(":")[0]) == (1, "k2")
    assert (await signing_keys.rotate_key(conn, "k3", OTHER)).open_waitpoints == 2


async def test_ten_rotations_inside_one_grace_all_verify(conn: Connection, given: Given) -> None:
    signals = [await waitpoint(conn, given)]
    for number in range(2, 12):
        await signing_keys.rotate_key(conn, f"k{number}", secrets.token_hex(32), grace=timedelta(hours=1))
        signals.append(await waitpoint(conn, given))

    assert [await outcome(conn, signal) for signal in signals] == ["accepted"] * 11
    assert len({signal.token.partition(":")[0] for signal in signals}) == 11


async def test_a_grace_of_0_retires_a_leaked_secret_immediately(conn: Connection, given: Given) -> None:
    signal = await waitpoint(conn, given)
    await signing_keys.rotate_key(conn, "k2", SECRET, grace=timedelta(0))

    assert await outcome(conn, signal) == "token_expired"


async def test_a_secret_in_its_grace_cannot_sign_for_a_younger_waitpoint(conn: Connection, given: Given) -> None:
    await signing_keys.rotate_key(conn, "leaked", SECRET)
    await signing_keys.rotate_key(conn, "k3", OTHER, grace=timedelta(hours=1))
    young = await waitpoint(conn, given)
    assert young.waitpoint_id is not None
    message = signing.waitpoint_message(str(young.execution_id), young.waitpoint_id)
    forged = signing.sign(bytes.fromhex(SECRET), "leaked", message)

    assert await outcome(conn, msgspec.structs.replace(young, token=forged)) == "invalid_token"
    assert young.token == signing.sign(bytes.fromhex(OTHER), "k3", message)
    assert await outcome(conn, young) == "accepted"
