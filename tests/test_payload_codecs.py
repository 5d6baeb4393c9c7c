"""Codecs: which are accepted, and what AES-GCM refuses to decrypt."""

import secrets
import subprocess
import sys
from typing import Any

import pytest

from flowfabric import AesGcm, App
from flowfabric.errors import BadSetting, PayloadUnreadable
from flowfabric.ids import mint_execution_id
from flowfabric.payloads.codecs import Codecs, of_step

KEY = bytes(range(32))


class Named:
    def __init__(self, name: Any) -> None:
        self.name = name

    def encode(self, payload: bytes, owner: str) -> bytes:
        return payload[::-1]

    def decode(self, stored: bytes, owner: str) -> bytes:
        return stored[::-1]


def test_without_a_codec_payloads_are_stored_as_they_are() -> None:
    assert (Codecs().label, Codecs().encode(b"1", str, 7), Codecs().decode(b"1", "json", "x")) == ("json", b"1", b"1")


def test_the_first_codec_encodes_and_all_decode() -> None:
    codecs = Codecs([Named("new"), Named("old")])

    assert (codecs.label, codecs.encode(b"12", str, 7)) == ("new", b"21")
    assert [codecs.decode(b"21", label, "x") for label in ("new", "old", "json")] == [b"12", b"12", b"21"]
    with pytest.raises(PayloadUnreadable, match=r"x is encoded by codec 'older'.*its codecs: new, old; add it"):
        codecs.decode(b"21", "older", "x")


@pytest.mark.parametrize(
    "codec", [Named("json"), Named(""), Named("x" * 65), Named(3), object(), "zlib", [Named("a"), Named("a")]]
)
def test_an_invalid_codec_is_refused_when_the_app_is_made(codec: Any) -> None:
    with pytest.raises(BadSetting, match=r"codec .*is invalid; use"):
        App(codec=codec)


def test_aes_gcm_decrypts_only_with_the_same_key_at_the_same_place() -> None:
    codec, place = AesGcm("k1", KEY), of_step(mint_execution_id(), "save", 1)
    stored = codec.encode(b"secret", place)

    assert codec.decode(stored, place) == AesGcm("k1", KEY.hex()).decode(stored, place) == b"secret"
    assert b"secret" not in stored
    assert codec.encode(b"secret", place) != stored
    for other, damaged, where in [
        (AesGcm("k1", secrets.token_bytes(32)), stored, place),
        (AesGcm("k2", KEY), stored, place),
        (codec, stored[:-1] + bytes([stored[-1] ^ 1]), place),
        (codec, stored, of_step(mint_execution_id(), "save", 1)),
        (codec, b"", place),
    ]:
        with pytest.raises(PayloadUnreadable, match="could not decode"):
            Codecs(other).decode(damaged, other.name, where)


@pytest.mark.parametrize("key", [b"", bytes(16), "zz", "ab" * 31, "ab" * 33])
def test_a_key_of_another_length_is_refused_without_showing_it(key: Any) -> None:
    with pytest.raises(BadSetting, match="key k1 is invalid; use 32 random bytes") as refused:
        AesGcm("k1", key)
    assert not key or str(key) not in str(refused.value)


@pytest.mark.parametrize("key_id", ["", "a b", "x" * 49, "ü"])
def test_an_invalid_key_id_is_refused(key_id: str) -> None:
    with pytest.raises(BadSetting, match=r"key id .* is invalid"):
        AesGcm(key_id, KEY)


def test_a_key_is_never_shown() -> None:
    assert repr(AesGcm("k1", KEY)) == "AesGcm('aes-gcm:k1')"


def test_the_missing_package_is_named() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import flowfabric\n"
        "try: flowfabric.AesGcm('k1', bytes(32))\n"
        "except flowfabric.FlowFabricError as refused: print(refused.message)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said == "AesGcm needs cryptography; run: pip install 'flowfabric[encryption]'\n"
