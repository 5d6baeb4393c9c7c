"""The codec that encrypts payloads with AES-GCM. Needs `pip install 'flowfabric[encryption]'`."""

import os
import re

from flowfabric.errors import BadSetting
from flowfabric.ids import shown

NONCE_BYTES = 12
KEY_ID = re.compile(r"[!-~]{1,48}")


class AesGcm:
    """Encrypts payloads with AES-256-GCM: `App(codec=AesGcm("2026-11", key))`, with a key of 32 bytes.

    The id of the key is stored beside each payload. To change the key, put the new one first and keep the old one:
    `App(codec=[AesGcm("2026-11", new), AesGcm("2025-11", old)])`. Each payload is bound to its execution and its place
    there: what was copied to another place cannot be decrypted. Use one key for at most 2^32 payloads.
    """

    def __init__(self, key_id: str, key: bytes | str) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise BadSetting("AesGcm needs cryptography; run: pip install 'flowfabric[encryption]'") from None
        if not KEY_ID.fullmatch(key_id):
            raise BadSetting(
                f"key id {shown(key_id)} is invalid; use 1 to 48 printable ASCII characters without spaces"
            )
        try:
            secret = bytes.fromhex(key) if isinstance(key, str) else bytes(key)
        except ValueError:
            secret = b""
        if len(secret) != 32:
            raise BadSetting(f"key {key_id} is invalid; use 32 random bytes, or as text 64 hexadecimal digits")
        self.name = f"aes-gcm:{key_id}"
        self._cipher = AESGCM(secret)

    def __repr__(self) -> str:
        return f"AesGcm({self.name!r})"

    def encode(self, payload: bytes, owner: str) -> bytes:
        """Encrypt a payload: a random nonce of 12 bytes, then the ciphertext with its tag."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, payload, self._bound(owner))

    def decode(self, stored: bytes, owner: str) -> bytes:
        """Decrypt a payload. Raises `cryptography.exceptions.InvalidTag` if the key or the owner is another."""
        return self._cipher.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:], self._bound(owner))

    def _bound(self, owner: str) -> bytes:
        return f"{self.name}\0{owner}".encode()
