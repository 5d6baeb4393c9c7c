"""The journal as a run asks it: what is saved under a name and its how-manieth use."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from flowfabric import payloads
from flowfabric.errors import InvalidBody, InvalidName, ShapeChanged
from flowfabric.ids import check_text, shown
from flowfabric.model import JournalEntry

LONGEST_NAME = 128
REMEDY = "give changed code a new name, or replay without saved steps"


class Place(msgspec.Struct, frozen=True):
    """A name and its how-manieth use in this run, with what the journal has there."""

    name: str
    occurrence: int
    entry: JournalEntry | None

    def keep(self, result: object, returns: Any) -> tuple[bytes, Any]:
        """A result as it is saved, and as every later run will find it. Raises `InvalidBody`."""
        try:
            encoded = payloads.encode(result)
            return encoded, payloads.decode(encoded, returns)
        except InvalidBody as refused:
            raise InvalidBody(f"the result of step {self.name!r} {refused.message}", field="result") from None
        except (msgspec.ValidationError, TypeError) as error:
            what = f"the result of step {self.name!r} is not what its function is annotated to return: {error}"
            raise InvalidBody(what, field="result") from None

    def read(self, saved: bytes | None, returns: Any) -> Any:
        """A saved result. Raises `ShapeChanged` when it is not what the function returns now."""
        try:
            return payloads.decode(saved, returns)
        except (msgspec.MsgspecError, TypeError) as error:
            what = (
                f"what {self.name!r} (occurrence {self.occurrence}) saved is not what its function returns now: {error}"
            )
            raise ShapeChanged(f"{what}; {REMEDY}", name=self.name) from None


class Places:
    """The places of one run in its journal, counted as they are asked for."""

    def __init__(self, journal: Sequence[JournalEntry]) -> None:
        # A sleep that goes on beside other waits is there twice: as it was saved, and as it ended.
        told = sorted(journal, key=lambda entry: entry.by is not None) if journal else ()
        self._entries = {(entry.name, entry.occurrence): entry for entry in told}
        self._unasked = set(self._entries)
        self._uses: defaultdict[str, int] = defaultdict(int)

    def ask(self, kind: str, name: str) -> Place:
        """The next place of that name; asked for as another kind than was saved there, the handler has changed.

        What could not be saved is refused before anything runs. Raises `InvalidName`, `InvalidText`, `ShapeChanged`.
        """
        if not 1 <= len(name.encode(errors="surrogatepass")) <= LONGEST_NAME:
            raise InvalidName(f"name {shown(name)}: the name of a step or a wait is 1 to {LONGEST_NAME} bytes")
        self._uses[check_text(name, "the name of a step")] += 1
        occurrence = self._uses[name]
        entry = self._entries.get((name, occurrence))
        self._unasked.discard((name, occurrence))
        if entry is not None and entry.kind != kind:
            what = f"{name!r} (occurrence {occurrence}) was a {entry.kind} when it was saved and is a {kind} now"
            raise ShapeChanged(f"{what}; {REMEDY}", name=name)
        return Place(name, occurrence, entry)

    def unasked(self) -> list[str]:
        """What was saved and has not been asked for."""
        return sorted({name for name, _ in self._unasked}) if self._unasked else []
