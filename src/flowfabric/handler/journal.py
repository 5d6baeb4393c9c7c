"""The journal of a run: the results saved under a name and an occurrence number."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from flowfabric import payloads
from flowfabric.errors import InvalidBody, InvalidName, ShapeChanged
from flowfabric.ids import check_text, shown
from flowfabric.model import JournalEntry

LONGEST_NAME = 128
REMEDY = "use a new name for changed code, or replay without saved steps"


class Place(msgspec.Struct, frozen=True):
    """A place in the journal: a name, which use of that name in this run (from 1), and the entry saved there."""

    name: str
    occurrence: int
    entry: JournalEntry | None

    def keep(self, result: object, returns: Any) -> tuple[bytes, Any]:
        """Encode a result to save it, and decode it again as later runs will. Raises `InvalidBody`."""
        try:
            encoded = payloads.encode(result)
            return encoded, payloads.decode(encoded, returns)
        except InvalidBody as refused:
            raise InvalidBody(f"the result of step {self.name!r} {refused.message}", field="result") from None
        except (msgspec.ValidationError, TypeError) as error:
            what = f"the result of step {self.name!r} does not match the return annotation of its function: {error}"
            raise InvalidBody(what, field="result") from None

    def read(self, saved: bytes | None, returns: Any) -> Any:
        """Decode a saved result. Raises `ShapeChanged` if it does not match the function's return annotation now."""
        try:
            return payloads.decode(saved, returns)
        except (msgspec.MsgspecError, TypeError) as error:
            what = f"the saved result of {self.name!r} (occurrence {self.occurrence})"
            raise ShapeChanged(
                f"{what} does not match the return annotation of its function now: {error}; {REMEDY}", name=self.name
            ) from None


class Places:
    """The places of one run in its journal, counted as the handler asks for them."""

    def __init__(self, journal: Sequence[JournalEntry]) -> None:
        # A sleep beside other waits has two entries, from its start and its end; sorted like this, the end counts.
        ends_last = sorted(journal, key=lambda entry: entry.by is not None) if journal else ()
        self._entries = {(entry.name, entry.occurrence): entry for entry in ends_last}
        self._unasked = set(self._entries)
        self._uses: defaultdict[str, int] = defaultdict(int)

    def ask(self, kind: str, name: str) -> Place:
        """Return the next place of that name. Raises `ShapeChanged` if another kind was saved there.

        Raises `InvalidName` or `InvalidText`, before anything runs, if the name could not be saved.
        """
        if not 1 <= len(name.encode(errors="surrogatepass")) <= LONGEST_NAME:
            raise InvalidName(f"name {shown(name)} is invalid; use 1 to {LONGEST_NAME} bytes for a step or a wait")
        self._uses[check_text(name, "the name of a step")] += 1
        occurrence = self._uses[name]
        entry = self._entries.get((name, occurrence))
        self._unasked.discard((name, occurrence))
        if entry is not None and entry.kind != kind:
            what = f"{name!r} (occurrence {occurrence}) was a {entry.kind} when it was saved and is a {kind} now"
            raise ShapeChanged(f"{what}; {REMEDY}", name=name)
        return Place(name, occurrence, entry)

    def unasked(self) -> list[str]:
        """List the saved names that have not been asked for."""
        return sorted({name for name, _ in self._unasked}) if self._unasked else []
