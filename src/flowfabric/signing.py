"""HMAC sign and verify, and the messages that are signed.

A token is `<kid>:<64 hexadecimal digits>`: the name of the key, then HMAC-SHA256 over `<kid>:<message>`. Whoever logs
one logs its kid and `fingerprint`, never the token.
"""

import hashlib
import hmac
import re
from enum import StrEnum
from uuid import UUID

_KID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRET = re.compile(r"[0-9A-Fa-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Verification(StrEnum):
    """What verifying a token showed; callers outside are not told which."""

    OK = "ok"
    MALFORMED = "malformed"
    WRONG_KID = "wrong_kid"
    SIGNATURE_MISMATCH = "signature_mismatch"


def is_kid(text: str) -> bool:
    """Whether a key may have this name."""
    return _KID.fullmatch(text) is not None


def is_secret(text: str) -> bool:
    """Whether this is a secret as people write it: 64 hexadecimal digits, in either case."""
    return _SECRET.fullmatch(text) is not None


def sign(secret: bytes, kid: str, message: str) -> str:
    """The token that proves the message under that key."""
    return f"{kid}:{_digest(secret, kid, message)}"


def verify(secret: bytes, kid: str, message: str, token: str) -> Verification:
    """Whether the token proves the message under that key; raises nothing, whatever the token."""
    token_kid, _, digest = token.partition(":")
    if not _DIGEST.fullmatch(digest):
        return Verification.MALFORMED
    if token_kid != kid:
        return Verification.WRONG_KID
    if not hmac.compare_digest(digest, _digest(secret, kid, message)):
        return Verification.SIGNATURE_MISMATCH
    return Verification.OK


def fingerprint(token: str) -> str:
    """What may be shown of a token: enough to tell two apart, useless for anything else."""
    return hashlib.sha256(_bytes(token)).hexdigest()[:16]


def waitpoint_message(execution_id: str, waitpoint_id: UUID) -> str:
    """What a waitpoint's token proves; the execution id in its canonical spelling."""
    return f"{execution_id}:{waitpoint_id}"


def grant_message(execution_id: str, worker: str, instance: str, expires_at: int) -> str:
    """What a grant's signature proves; the execution id in its canonical spelling, the expiry in milliseconds."""
    partition_key, _, uuid = execution_id.rpartition(":")
    return f"{partition_key}|{uuid}|{worker}|{instance}|{expires_at}"


def grant_key(execution_id: str, expires_at: int, token: str) -> str:
    """A grant as the worker carries it; `token` is the signed `grant_message`."""
    return f"pg:{execution_id}:{expires_at}:{token}"


def _digest(secret: bytes, kid: str, message: str) -> str:
    return hmac.digest(secret, _bytes(f"{kid}:{message}"), "sha256").hex()


def _bytes(text: str) -> bytes:
    # A lone surrogate has no UTF-8; it is hashed all the same, so that no text can make verifying raise.
    return text.encode(errors="surrogatepass")
