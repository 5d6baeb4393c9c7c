"""Codecs: change what is stored, for example compress or encrypt it, and change it back when it is read.

The name of the codec is stored beside each payload, so that older payloads stay readable. What no codec has changed is
labelled `json`.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, ParamSpec, Protocol, runtime_checkable

from flowfabric.errors import BadSetting, PayloadUnreadable
from flowfabric.ids import ExecutionId, check_text, shown

P = ParamSpec("P")

PLAIN = "json"
LONGEST_NAME = 64


@runtime_checkable
class Codec(Protocol):
    """Changes payloads before they are stored, and back: `App(codec=...)`. It must be safe to use from threads.

    `owner` says what a payload is and to which execution it belongs, such as `019df237-…/result`. A codec that
    encrypts authenticates it, so that a payload cannot be moved; others ignore it.
    """

    @property
    def name(self) -> str:
        """Stored beside each payload: what is needed to read it, such as the algorithm and the id of the key."""
        ...

    def encode(self, payload: bytes, owner: str) -> bytes:
        """Return what to store."""
        ...

    def decode(self, stored: bytes, owner: str) -> bytes:
        """Return the payload that was encoded for this owner. Raises any exception if it cannot be read."""
        ...


class Codecs:
    """The codecs of an app: the first encodes, and all of them decode, each what has its name."""

    def __init__(self, given: Codec | Sequence[Codec] | None = None) -> None:
        codecs: list[Any] = [] if given is None else list(given) if isinstance(given, Sequence) else [given]
        self._by_name: dict[str, Codec] = {}
        for codec in codecs:
            name = getattr(codec, "name", None)
            if not isinstance(codec, Codec) or not isinstance(name, str):
                raise BadSetting(f"codec {codec!r} is invalid; use an object with name, encode and decode")
            if (
                name == PLAIN
                or name in self._by_name
                or not 1 <= len(check_text(name, "codec").encode()) <= LONGEST_NAME
            ):
                raise BadSetting(
                    f"codec name {shown(name)} is invalid; use a different name for each codec, of 1 to {LONGEST_NAME} "
                    f"bytes and not {PLAIN}"
                )
            self._by_name[name] = codec
        self._first = codecs[0] if codecs else None

    @property
    def names(self) -> Collection[str]:
        """The names of the codecs."""
        return self._by_name

    @property
    def label(self) -> str:
        """What is stored beside a payload that these codecs encode."""
        return PLAIN if self._first is None else self._first.name

    def encode(self, payload: bytes, owner: Callable[P, str], *about: P.args, **named: P.kwargs) -> bytes:
        """Return what to store, with `label`; `owner(*about)` is its owner."""
        return payload if self._first is None else self._first.encode(payload, owner(*about, **named))

    def decode(self, stored: bytes, label: str, *owners: str) -> bytes:
        """Return the payload that was stored with this label, for one of these owners. Raises `PayloadUnreadable`."""
        if label == PLAIN:
            return stored
        codec = self._by_name.get(label)
        if codec is None:
            raise PayloadUnreadable(
                f"{owners[0]} is encoded by codec {shown(label)}, which this program does not have; its codecs: "
                f"{', '.join(self._by_name) or 'none'}; add it: App(codec=[...])",
                encoding=label,
            )
        failed = Exception()
        for owner in owners:
            try:
                return codec.decode(stored, owner)
            except Exception as error:
                failed = error
        said = ": ".join(filter(None, [type(failed).__name__, str(failed)]))
        raise PayloadUnreadable(
            f"codec {shown(label)} could not decode {owners[0]}: {said}; use the key with which it was encoded, or "
            "restore what was stored",
            encoding=label,
        ) from failed


def of_arguments(execution_id: ExecutionId) -> str:
    """Name the arguments of an execution."""
    return f"{execution_id}/arguments"


def of_schedule(namespace: str, task: str) -> str:
    """Name the arguments with which schedules submit a task; they are encoded before the executions exist."""
    return f"{namespace}/{task}/schedule"


def of_result(execution_id: ExecutionId) -> str:
    """Name the result of an execution."""
    return f"{execution_id}/result"


def of_step(execution_id: ExecutionId, name: str, occurrence: int) -> str:
    """Name the result of a step."""
    return f"{execution_id}/step/{occurrence}/{name}"


def of_signal(execution_id: ExecutionId) -> str:
    """Name the payload of a signal that was sent to an execution."""
    return f"{execution_id}/signal"
