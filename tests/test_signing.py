"""Signing and verifying: every test vector, and arbitrary tokens."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowfabric import signing
from flowfabric.signing import Verification

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text(encoding="utf-8"))
SECRET = bytes(range(32))
TOKEN = signing.sign(SECRET, "k1", "hello")

Vector = dict[str, Any]
fuzz = settings(deadline=None, max_examples=300)
characters = st.characters(exclude_categories=())


@pytest.mark.parametrize("vector", VECTORS["signatures"])
def test_a_message_is_signed_with_the_kid_in_front(vector: Vector) -> None:
    secret = bytes.fromhex(vector["secret"])

    assert f"{vector['kid']}:{vector['message']}".encode().hex() == vector["signed_hex"]
    assert signing.sign(secret, vector["kid"], vector["message"]) == vector["token"]
    assert signing.verify(secret, vector["kid"], vector["message"], vector["token"]) is Verification.OK


@pytest.mark.parametrize("vector", VECTORS["signature_refusals"])
def test_verifying_returns_what_is_wrong_with_a_token(vector: Vector) -> None:
    secret = bytes.fromhex(vector["secret"])

    assert signing.verify(secret, vector["kid"], vector["message"], vector["token"]) == vector["result"]


@pytest.mark.parametrize("text", VECTORS["kids"]["valid"])
def test_a_kid_is_a_short_plain_word(text: str) -> None:
    assert signing.is_kid(text)


@pytest.mark.parametrize("text", [*VECTORS["kids"]["invalid"], "k1\n", "k\0", "\ud800", "٣"])
def test_anything_else_is_not_a_kid(text: str) -> None:
    assert not signing.is_kid(text)


@pytest.mark.parametrize("text", VECTORS["secrets"]["valid"])
def test_a_secret_is_64_hexadecimal_digits(text: str) -> None:
    assert signing.is_secret(text)
    assert bytes.fromhex(text) == SECRET


@pytest.mark.parametrize("text", [*VECTORS["secrets"]["invalid"], "00 " * 32, "0" * 64 + "\n", "٣" * 64])
def test_anything_else_is_not_a_secret(text: str) -> None:
    assert not signing.is_secret(text)


@pytest.mark.parametrize("vector", VECTORS["waitpoint_tokens"])
def test_a_waitpoint_token_proves_execution_and_waitpoint(vector: Vector) -> None:
    message = signing.waitpoint_message(vector["execution_id"], UUID(vector["waitpoint_id"]))
    token = signing.sign(bytes.fromhex(vector["secret"]), vector["kid"], message)

    assert message == vector["message"]
    assert token == vector["token"]
    assert signing.fingerprint(token) == vector["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["grants"])
def test_a_grant_key_carries_the_signature_of_its_message(vector: Vector) -> None:
    message = signing.grant_message(vector["execution_id"], vector["worker"], vector["instance"], vector["expires_at"])
    token = signing.sign(bytes.fromhex(vector["secret"]), vector["kid"], message)

    assert message == vector["message"]
    assert message.startswith(vector["partition_key"] + "|")
    assert signing.grant_key(vector["execution_id"], vector["expires_at"], token) == vector["grant_key"]


@pytest.mark.parametrize("at", range(len(TOKEN)))
def test_no_token_with_another_character_verifies(at: int) -> None:
    others = {chr(code) for code in range(256)} | {"\ud800", "\uff10", "\uff41", "\u0661", ""}
    changed = [TOKEN[:at] + other + TOKEN[at + 1 :] for other in others - {TOKEN[at]}]

    assert all(signing.verify(SECRET, "k1", "hello", token) is not Verification.OK for token in changed)


@fuzz
@given(st.text(characters) | st.builds(lambda at, new: TOKEN[:at] + new + TOKEN[at:], st.integers(0, 67), characters))
def test_any_other_text_gets_a_verdict_and_never_verifies(token: str) -> None:
    assume(token != TOKEN)

    assert signing.verify(SECRET, "k1", "hello", token) in set(Verification) - {Verification.OK}
    assert len(signing.fingerprint(token)) == 16


@fuzz
@given(st.text(characters), st.text(characters))
def test_a_token_verifies_its_own_message_only(message: str, other: str) -> None:
    token = signing.sign(SECRET, "k1", message)

    assert signing.verify(SECRET, "k1", message, token) is Verification.OK
    assert (signing.verify(SECRET, "k1", other, token) is Verification.OK) == (message == other)
    assert signing.verify(bytes(32), "k1", message, token) is Verification.SIGNATURE_MISMATCH
