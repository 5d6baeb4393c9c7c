"""`ff signing-keys`: secrets are never printed, nor taken from arguments."""

import secrets

from flowfabric.engine import signing_keys
from tests.cli.conftest import Run
from tests.given import Given

SECRET = "ab" * 32


async def test_a_secret_can_come_from_standard_input(here: Run, given: Given) -> None:
    code, out, err = await here("signing-keys rotate k2 --secret-file -", stdin=f"{SECRET}\n")

    assert code == 0
    assert SECRET not in out + err
    assert (await signing_keys.seed_key(given.conn, "k2", SECRET)).same_secret is True


async def test_without_a_file_a_new_secret_is_created_and_not_printed(here: Run, given: Given) -> None:
    _, out, err = await here("signing-keys rotate k2")

    [stored] = await given.rows("select encode(secret, 'hex') as secret from flowfabric.keys where kid = 'k2'")
    assert len(stored["secret"]) == 64
    assert stored["secret"] not in out + err


async def test_an_invalid_secret_is_refused_and_not_printed(here: Run, given: Given) -> None:
    for wrong in (SECRET[:-1], "", "\0", secrets.token_bytes(64), b"\xff\xfe", SECRET * 100):
        async with given.nothing_changes():
            answer = await here("signing-keys rotate k2 --json --secret-file -", stdin=wrong)
        assert (answer.code, answer.out, answer.error["error"]) == (1, "", "invalid_secret")
        assert SECRET[:-1] not in answer.err


async def test_the_first_key_is_seeded_once(here: Run, given: Given) -> None:
    await given.rows("delete from flowfabric.keys")

    assert "ff signing-keys seed KID" in (await here("signing-keys list")).out
    first = await here("signing-keys seed k1 --json --secret-file -", stdin=SECRET)
    again = await here("signing-keys seed k1 --json --secret-file -", stdin=SECRET.upper())
    assert (first.document["outcome"], first.document["same_secret"]) == ("seeded", None)
    assert (again.document["outcome"], again.document["same_secret"]) == ("already_seeded", True)
