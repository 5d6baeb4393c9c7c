"""Private: sign and verify messages with HMAC, and the messages that are signed.

A token is `<kid>:<64 hexadecimal digits>`: the id of the signing key, then HMAC-SHA256 over `<kid>:<message>`. Do not
log a token; log its kid and its `fingerprint`.
"""

import hashlib
import hmac
import re
from enum import StrEnum
from uuid import UUID

from flowfabric.ids import read_execution_id

_KID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRET = re.compile(r"[0-9A-Fa-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Verification(StrEnum):
    """The result of verifying a token. External callers do not learn the reason of a failure."""

    OK = "ok"
    MALFORMED = "malformed"
    WRONG_KID = "wrong_kid"
    SIGNATURE_MISMATCH = "signature_mismatch"


def is_kid(text: str) -> bool:
    """Whether this is a valid key id."""
    return _KID.fullmatch(text) is not None


def is_secret(text: str) -> bool:
    """Whether this is a valid secret: 64 hexadecimal digits, in upper or lower case."""
    return _SECRET.fullmatch(text) is not None


def sign(secret: bytes, kid: str, message: str) -> str:
    """Sign a message and return the token."""
    return f"{kid}:{_digest(secret, kid, message)}"


def verify(secret: bytes, kid: str, message: str, token: str) -> Verification:
    """Verify that a token signs the message with this key. Never raises, whatever the token."""
    token_kid, _, digest = token.partition(":")
    if not _DIGEST.fullmatch(digest):
        return Verification.MALFORMED
    if token_kid != kid:
        return Verification.WRONG_KID
    if not hmac.compare_digest(digest, _digest(secret, kid, message)):
        return Verification.SIGNATURE_MISMATCH
    return Verification.OK


def fingerprint(token: str) -> str:
    """Return a hash that identifies a token in logs and cannot be used in its place."""
    return hashlib.sha256(_bytes(token)).hexdigest()[:16]


def waitpoint_message(execution_id: str, waitpoint_id: UUID) -> str:
    """Return the message that a waitpoint's token signs. The id of the execution may have any form."""
    return f"{read_execution_id(execution_id).wire}:{waitpoint_id}"


def grant_message(execution_id: str, worker: str, instance: str, expires_at: int) -> str:
    """Return the message that a grant signs. The expiry is in milliseconds."""
    partition_key, _, uuid = read_execution_id(execution_id).wire.rpartition(":")
    return f"{partition_key}|{uuid}|{worker}|{instance}|{expires_at}"


def grant_key(execution_id: str, expires_at: int, token: str) -> str:
    """Return the text of a grant for the worker; `token` is the signed `grant_message`."""
    return f"pg:{read_execution_id(execution_id).wire}:{expires_at}:{token}"


def _digest(secret: bytes, kid: str, message: str) -> str:
    return hmac.digest(secret, _bytes(f"{kid}:{message}"), "sha256").hex()


def _bytes(text: str) -> bytes:
    # Lone surrogates are not valid UTF-8. They are hashed anyway, so that verifying never raises.
    return text.encode(errors="surrogatepass")
