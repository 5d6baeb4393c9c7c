"""The journal of a run: the results saved under a name and an occurrence number."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from flowfabric import payloads
from flowfabric.errors import InvalidBody, InvalidName, ShapeChanged
from flowfabric.ids import check_text, shown
from flowfabric.model import JournalEntry

LONGEST_NAME = 128
FAILED = "failed:"  # begins the names under which the failures of steps are saved that a handler has survived

step_running: ContextVar[str | None] = ContextVar("step_running", default=None)
"""The name of the step whose function runs."""


def earlier_names(was: str | Sequence[str]) -> Sequence[str]:
    """Read the earlier names of a step or a wait. Raises `TypeError` if one is no text."""
    names: Sequence[object] = [was] if isinstance(was, str) else list(was)
    if strange := [name for name in names if not isinstance(name, str)]:
        raise TypeError(
            f"was={shown(str(strange[0]))} is invalid; use the earlier name, or several: was=('one', 'two')"
        )
    return [str(name) for name in names]


class Place(msgspec.Struct, frozen=True):
    """A place in the journal: a name, which use of that name in this run (from 1), and the entry saved there.

    `number` counts the steps and sleeps of the run, from 1.
    """

    name: str
    occurrence: int
    entry: JournalEntry | None
    number: int = 0

    def keep(self, result: object, returns: Any) -> tuple[bytes, Any]:
        """Encode a result to save it, and decode it again as later runs will. Raises `InvalidBody`."""
        try:
            return payloads.keep(result, returns, "annotate what its function returns, or give returns={}")
        except InvalidBody as refused:
            raise InvalidBody(f"the result of step {self.name!r} {refused.message}", field="result") from None

    def read(self, saved: bytes | None, returns: Any) -> Any:
        """Decode a saved result. Raises `ShapeChanged` if it does not match the function's return annotation now."""
        try:
            return payloads.decode(saved, returns)
        except (msgspec.MsgspecError, TypeError) as error:
            what = f"the saved result of {self.name!r} (occurrence {self.occurrence})"
            raise ShapeChanged(
                f"{what} does not match the return annotation of its function now: {error}", name=self.name
            ) from None


class Places:
    """The places of one run in its journal, counted as the handler asks for them."""

    def __init__(self, journal: Sequence[JournalEntry]) -> None:
        # A sleep beside other waits has two entries, from its start and its end; sorted like this, the end counts.
        ends_last = sorted(journal, key=lambda entry: entry.by is not None) if journal else ()
        self._entries = {(entry.name, entry.occurrence): entry for entry in ends_last}
        self._unasked = {place for place, entry in self._entries.items() if not is_of_child(entry)}
        self._failed_at = min((e.at for e in journal if is_failure(e) and e.at is not None), default=None)
        self._uses: defaultdict[str, int] = defaultdict(int)
        self._renamed: dict[str, str] = {}
        self._count = 0

    def ask(self, kind: str, name: str, was: str | Sequence[str] = ()) -> Place:
        """Return the next place of that name, or the one saved with the same occurrence under an earlier name.

        Raises `ShapeChanged` if another kind was saved there, and `InvalidName` or `InvalidText`, before anything runs,
        if the name could not be saved.
        """
        if not 1 <= len(name.encode(errors="surrogatepass")) <= LONGEST_NAME:
            raise InvalidName(f"name {shown(name)} is invalid; use 1 to {LONGEST_NAME} bytes for a step or a wait")
        self._uses[check_text(name, "the name of a step")] += 1
        occurrence = self._uses[name]
        self._count += kind != "wait"
        entry = self._entries.get((name, occurrence))
        self._unasked.discard((name, occurrence))
        if was or self._renamed:
            earlier = [old for old in earlier_names(was) if old != name]
            self._check_earlier(name, earlier)
            for old in earlier:
                self._unasked.discard((old, occurrence))
                entry = entry or self._entries.get((old, occurrence))
        if entry is None:
            return Place(name, occurrence, None, self._count)
        if entry.kind != kind:
            what = f"{entry.name!r} (occurrence {occurrence}) was a {entry.kind} when it was saved and is a {kind} now"
            raise ShapeChanged(what, name=entry.name)
        return Place(entry.name, occurrence, entry, self._count)

    def _check_earlier(self, name: str, earlier: Sequence[str]) -> None:
        """Raise `ShapeChanged` if two names of this run would use the same saved results."""
        for old in earlier:
            other = old if old in self._uses else self._renamed.setdefault(old, name)
            if other != name:
                raise _ambiguous(old, name, other)
        if (other := self._renamed.get(name, name)) != name:
            raise _ambiguous(name, other, name)

    def unasked(self, retired: Collection[str] = ()) -> list[str]:
        """List the saved names that have not been asked for, unless they are retired; results of children need not be.

        Nor need what was saved after a step had failed: it belongs to a branch that this run need not take.
        """
        if (failed_at := self._failed_at) is not None:
            self._unasked = {place for place in self._unasked if (self._entries[place].at or failed_at) < failed_at}
        return sorted({name for name, _ in self._unasked if name not in retired})


def is_of_child(entry: JournalEntry) -> bool:
    """Whether an entry is the result of a child, which is kept with the child."""
    return entry.kind == "wait" and entry.name.startswith("child:")


def is_failure(entry: JournalEntry) -> bool:
    """Whether an entry is the failure of a step that the handler has survived."""
    return entry.kind == "step" and entry.name.startswith(FAILED)


def _ambiguous(old: str, new: str, other: str) -> ShapeChanged:
    what = f"{old!r} is the earlier name of {new!r} (was=)"
    also = "a name that the handler still uses" if other == old else f"that of {other!r}"
    return ShapeChanged(f"{what} and also {also}; what is saved there can belong to one of them only", name=old)
