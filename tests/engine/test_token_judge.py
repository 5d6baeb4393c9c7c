"""Postgres verifies the token of a signal exactly as Python does."""

from flowfabric import signing
from flowfabric.engine import signing_keys
from flowfabric.postgres.driver import Connection
from tests.engine.test_signing_keys import SECRET, VECTORS

JUDGED = """
select flowfabric._token_fault($1, $2, $3, k, flowfabric.clock()) ->> 'code' as code
from (select) as one left join flowfabric.keys k on k.kid = split_part($2, ':', 1)
"""


async def test_postgres_verifies_a_token_as_python_does(conn: Connection) -> None:
    for vector in VECTORS["signature_refusals"]:
        await conn.execute("delete from flowfabric.keys")
        await signing_keys.seed_key(conn, vector["kid"], vector["secret"])
        [row] = await conn.fetch(JUDGED, vector["message"], vector["token"], vector["kid"])

        refusal = "invalid_token" if vector["token"] else "missing_token"
        assert row["code"] == (None if vector["result"] == "ok" else refusal), vector


async def test_nothing_may_follow_a_digest(conn: Connection) -> None:
    await conn.execute("delete from flowfabric.keys")
    await signing_keys.seed_key(conn, "k1", SECRET)
    token = signing.sign(bytes.fromhex(SECRET), "k1", "message")

    codes = [(await conn.fetch(JUDGED, "message", token + tail, "k1"))[0]["code"] for tail in ("", "\n", " ", "0", ":")]
    assert codes == [None, *["invalid_token"] * 4]
