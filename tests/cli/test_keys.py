"""Keys: no secret is shown, or taken from the command line."""

import secrets

from flowfabric.engine import signing_keys
from tests.cli.conftest import Run
from tests.given import Given

SECRET = "ab" * 32


async def test_a_secret_comes_from_standard_input(here: Run, given: Given) -> None:
    code, out, err = await here("keys rotate k2 --secret-file -", stdin=f"{SECRET}\n")

    assert code == 0
    assert SECRET not in out + err
    assert (await signing_keys.seed_key(given.conn, "k2", SECRET)).same_secret is True


async def test_without_a_file_a_new_secret_is_made_and_not_shown(here: Run, given: Given) -> None:
    _, out, err = await here("keys rotate k2")

    [stored] = await given.rows("select encode(secret, 'hex') as secret from flowfabric.keys where kid = 'k2'")
    assert len(stored["secret"]) == 64
    assert stored["secret"] not in out + err


async def test_what_is_no_secret_is_refused_and_not_repeated(here: Run, given: Given) -> None:
    for wrong in (SECRET[:-1], "", "\0", secrets.token_bytes(64), b"\xff\xfe", SECRET * 100):
        async with given.nothing_changes():
            code, out, err = await here("keys rotate k2 --secret-file -", stdin=wrong)
        assert (code, out) == (1, "")
        assert err == "invalid_secret: a secret is exactly 64 hexadecimal digits (32 bytes)\n"


async def test_the_first_key_is_seeded_once(here: Run, given: Given) -> None:
    await given.rows("delete from flowfabric.keys")

    assert (await here("keys list")).out == "no keys; `ff keys seed KID` installs the first\n"
    assert (await here("keys seed k1 --secret-file -", stdin=SECRET)).out == "key k1: seeded\n"
    again = await here("keys seed k1 --secret-file -", stdin=SECRET.upper())
    assert again.out == "key k1: already_seeded, with the same secret\n"
