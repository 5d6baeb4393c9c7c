"""What every request passes first: the names under which this server may be called, and the path as it was sent."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from flowfabric.errors import HostNotAllowed, OriginNotAllowed
from flowfabric.ids import shown

LOOPBACK = ("localhost", "127.0.0.1", "::1")

HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers of every answer: nothing here is a page, and nothing may be kept or framed."""


def check(headers: Iterable[tuple[bytes, bytes]], hosts: Collection[str] | None) -> None:
    """Refuse what a page of another site makes a browser send: by DNS rebinding, or from its own origin.

    Raises `HostNotAllowed`, `OriginNotAllowed`.
    """
    host, origin = _only(headers, b"host"), _only(headers, b"origin")
    if hosts is not None and _name(host) not in hosts:
        raise HostNotAllowed(f"host {shown(host)} is not allowed; use {' or '.join(hosts)}", host=host)
    if origin and urlsplit(origin).netloc.lower() != host.lower():
        raise OriginNotAllowed(
            f"origin {shown(origin)} is not allowed; call the API from a program, not from a page of another site",
            origin=origin,
        )


def own_path(scope: Mapping[str, Any]) -> str:
    """The path below the mount, percent-encoded as it was sent, so that an encoded slash belongs to a name."""
    path: str = scope["path"]
    root: str = scope.get("root_path") or ""
    if root and path.startswith(root):
        path = path[len(root) :]
    raw = bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
    decoded = unquote(raw)
    if raw and decoded.endswith(path):
        above = quote(decoded[: len(decoded) - len(path)])
        if raw.startswith(above):
            return raw[len(above) :] or "/"
    return quote(path) or "/"


def _only(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """The value of a header; two different ones count as none."""
    found = {value for each, value in headers if each.lower() == name}
    return found.pop().decode("latin-1") if len(found) == 1 else ""


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
