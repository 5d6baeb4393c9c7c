"""Who calls the HTTP API."""

from typing import NamedTuple


class Caller(NamedTuple):
    """The caller of a request; its name is in the event of every change that it makes."""

    name: str


LOCAL = Caller("http")
"""A caller without a key: the server listens on this machine only, or the app around it has let the caller in."""
