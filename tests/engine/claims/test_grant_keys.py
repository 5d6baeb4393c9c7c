"""Grant keys: exactly one spelling is accepted, and every variation of it is refused."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given as generated
from hypothesis import settings
from hypothesis import strategies as st

from flowfabric import signing
from flowfabric.engine import claims, signing_keys
from flowfabric.errors import InvalidGrant
from flowfabric.ids import parse_execution_id
from flowfabric.model import Grant
from flowfabric.postgres.driver import Connection
from flowfabric.signing import Verification
from tests.given import Given

VECTORS = msgspec.json.decode(Path(__file__).parents[2].joinpath("vectors.json").read_bytes())["grants"]
SECRET = "5ecb0017" * 8
JUDGE = """
    select k.key, flowfabric._grant_fault(t, p.expires_ms, p.kid, p.digest, $2)::text as fault
    from unnest($1::text[]) k (key) cross join lateral flowfabric._parse_grant(k.key) p
    left join flowfabric.tickets t on t.partition = p.partition and t.id = p.id
"""


async def causes(conn: Connection, texts: list[str], at: datetime) -> dict[str, str]:
    """The cause for which each key is refused at that time; `good` if it is accepted."""
    judged = await conn.fetch(JUDGE, texts, at)
    faults = {row["key"]: msgspec.json.decode(row["fault"] or "{}") for row in judged}
    return {key: fault.get("cause", fault.get("code", "good")) for key, fault in faults.items()}


@pytest.fixture
async def granted(conn: Connection, given: Given) -> list[Grant]:
    """Two grants for one worker, signed with a known secret."""
    await signing_keys.rotate_key(conn, "k2", SECRET)
    for _ in range(2):
        await given.submitted()
    return await claims.issue_grant(conn, given.worker, instance=given.instance, lanes=["default"], take=2)


def verify(given: Given, key: str) -> Verification:
    """Verify a grant key in Python, for the worker the grant was issued to."""
    head, expiry, kid, digest = key.rsplit(":", 3)
    execution_id = head.removeprefix("pg:")
    message = signing.grant_message(execution_id, given.worker, given.instance, int(expiry))
    return signing.verify(bytes.fromhex(SECRET), "k2", message, f"{kid}:{digest}")


def flipped(key: str) -> Iterator[str]:
    """The key with one bit flipped at a time, without NUL."""
    for at, bit in ((at, bit) for at in range(len(key)) for bit in range(7)):
        turned = chr(ord(key[at]) ^ 1 << bit)
        yield key[:at] + turned * (turned != "\0") + key[at + 1 :]


def mixed(one: str, two: str) -> Iterator[str]:
    """All combinations of the parts of two keys, except the two keys themselves."""
    parts = [key.split(":") for key in (one, two)]
    for choice in range(1 << len(parts[0])):
        key = ":".join(parts[choice >> at & 1][at] for at in range(len(parts[0])))
        if key not in (one, two):
            yield key


async def test_no_altered_grant_key_is_accepted(conn: Connection, given: Given, granted: list[Grant]) -> None:
    one, two = [grant.grant_key for grant in granted]
    places = range(len(one))
    changed = {
        *flipped(one),
        *flipped(two),
        *mixed(one, two),
        *(one[:at] for at in places),
        *(two[at + 1 :] for at in places),
    }
    changed |= {
        key[:at] + put + key[at + gone :] for key in (one, two) for at in places for put, gone in (("", 1), ("0", 0))
    }
    changed |= {f"{one}\n", f" {one}", f"{one} ", one.upper(), f"{one}:{one}", one.replace("pg:", "pg:pg:")}
    said = await causes(conn, [one, two, *(changed - {one, two})], granted[0].expires_at - timedelta(seconds=1))

    assert [key for key, cause in said.items() if cause == "good"] == [one, two]
    assert len(said) > 2_500
    assert Counter(said.values()).keys() == {
        "good", "malformed", "unknown_kid", "unknown_grant", "signature_mismatch"}  # fmt: skip


async def test_python_accepts_no_altered_grant_key_either(given: Given, granted: list[Grant]) -> None:
    one, two = [grant.grant_key for grant in granted]
    assert verify(given, one) is verify(given, two) is Verification.OK
    digits = [
        f"{key[:at]}{digit:x}{key[at + 1 :]}" for key in (one, two) for at in range(-64, -1) for digit in range(16)
    ]

    for key in [*digits, *mixed(one, two)]:
        assert (verify(given, key) is Verification.OK) == (key in (one, two))


@pytest.mark.parametrize("vector", VECTORS)
async def test_a_grant_signed_elsewhere_is_valid(conn: Connection, given: Given, vector: dict[str, Any]) -> None:
    await conn.execute("delete from flowfabric.keys")
    await signing_keys.seed_key(conn, vector["kid"], vector["secret"])
    await given.submitted(execution_id=parse_execution_id(vector["execution_id"]))
    expires_at = datetime.fromtimestamp(vector["expires_at"] / 1000, UTC)
    await conn.execute(
        "update flowfabric.tickets "
        "set eligibility = 'granted', grant_kid = $1, grant_worker = $2, grant_instance = $3, expires_at = $4",
        vector["kid"],
        vector["worker"],
        vector["instance"],
        expires_at,
    )

    key = vector["grant_key"]
    assert await causes(conn, [key], expires_at - timedelta(microseconds=1)) == {key: "good"}
    assert await causes(conn, [key], expires_at) == {key: "grant_expired"}
    [row] = await conn.fetch(
        "select flowfabric._grant_message(partition, id, $1, $2, $3) as text from flowfabric.tickets",
        vector["worker"],
        vector["instance"],
        vector["expires_at"],
    )
    assert row["text"] == vector["message"]


async def test_a_grant_and_its_signing_key_are_valid_before_their_expiry_and_not_at_it(
    conn: Connection, granted: list[Grant]
) -> None:
    key, ends_at = granted[0].grant_key, granted[0].expires_at
    before = timedelta(microseconds=1)
    assert await causes(conn, [key], ends_at - before) == {key: "good"}
    assert await causes(conn, [key], ends_at) == {key: "grant_expired"}
    await signing_keys.rotate_key(conn, "k3", "0ddba115" * 8, grace=timedelta(seconds=5))
    retires_at = next(k.expires_at for k in await signing_keys.list_keys(conn) if k.kid == "k2")

    assert retires_at is not None
    assert await causes(conn, [key], retires_at - before) == {key: "good"}
    assert await causes(conn, [key], retires_at) == {key: "unknown_kid"}


async def test_every_expiry_in_milliseconds_is_read_back_exactly(conn: Connection) -> None:
    [row] = await conn.fetch(
        "select count(*) from generate_series(1790000000000, 1790000010000) ms "
        "where (extract(epoch from timestamptz 'epoch' + ms * interval '1 ms') * 1000) <> ms"
    )

    assert row["count"] == 0


numbers = st.one_of(st.integers(0, 10**40).map(str), st.sampled_from(["-1", "00", "32768", "99999", "1e3", "٣", ""]))
storable = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
nearly = st.builds(
    "pg:{{fp:{}}}:{}:{}:{}:{}".format,
    numbers,
    st.one_of(st.uuids().map(str), st.uuids().map(lambda uuid: str(uuid).upper()), st.text(storable, max_size=40)),
    numbers,
    st.one_of(st.just("k1"), st.text(storable, max_size=70)),
    st.one_of(st.just("0" * 64), st.from_regex(r"[0-9a-f]{63,65}", fullmatch=True), st.text(storable, max_size=70)),
)


async def test_any_text_is_answered_with_a_cause(conn: Connection) -> None:
    texts: list[str] = []

    @settings(max_examples=600, database=None)
    @generated(st.one_of(st.text(storable), nearly))
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    said = await causes(conn, texts, datetime(2026, 1, 1, tzinfo=UTC))
    assert set(said.values()) <= {"malformed", "unknown_kid", "unknown_grant"}


@pytest.mark.parametrize("partition", ["32767", "32768", "65536", "99999"])
async def test_an_unknown_partition_holds_no_grant(conn: Connection, given: Given, partition: str) -> None:
    key = f"pg:{{fp:{partition}}}:{'0' * 8}-0000-0000-0000-{'0' * 12}:{'9' * 15}:k1:{'0' * 64}"

    for call in (claims.verify_grant(conn, key), claims.claim_granted(conn, key, given.worker, instance="pool-1")):
        with pytest.raises(InvalidGrant) as raised:
            await call
        assert raised.value.fields == {"cause": "unknown_grant"}


@pytest.mark.parametrize("text", ["\0", "pg:\ud800", "ä", "x" * 1_000_000, b"pg:5ecb0017", None, 5])
async def test_a_value_that_is_not_a_grant_is_malformed_and_not_shown(
    conn: Connection, given: Given, text: Any
) -> None:
    for call in (claims.verify_grant(conn, text), claims.claim_granted(conn, text, given.worker, instance="pool-1")):
        with pytest.raises(InvalidGrant) as raised:
            await call
        assert str(raised.value) == "invalid_grant: the grant is invalid: malformed; request another"
        assert raised.value.fields == {"cause": "malformed"}
