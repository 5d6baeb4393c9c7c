"""Failures that a handler survives: a later run may not have them, and then takes another branch."""

import asyncio

from flowfabric import payloads
from flowfabric.handler.journal import FAILED, LONGEST_NAME, Place
from flowfabric.handler.runtime import Runtime
from flowfabric.model import Claim

LONGEST_TEXT = 1_000


class Failures:
    """The failures of steps in one run. They are saved only if the handler survives them and saves something else.

    What is saved after a failure belongs to a branch that a later run takes only if the step fails again.
    """

    def __init__(self, runtime: Runtime, claim: Claim) -> None:
        self._runtime = runtime
        self._claim = claim
        self._new: list[tuple[Place, BaseException]] = []
        self._saving: asyncio.Lock | None = None

    def add(self, name: str, occurrence: int, error: BaseException) -> None:
        """Note that a step has failed in this run."""
        short = f"{FAILED}{name}".encode()[:LONGEST_NAME].decode(errors="ignore")
        self._new.append((Place(short, occurrence, None), error))

    async def save(self) -> None:
        """Save the failures of this run. Call it before something else is saved, which then follows them."""
        if not self._new and self._saving is None:
            return
        self._saving = self._saving or asyncio.Lock()
        async with self._saving:
            while self._new:
                place, error = self._new[0]
                with self._runtime.run_step(self._claim, place) as step:
                    await self._runtime.save_step(self._claim, step, payloads.encode(_described(error)))
                del self._new[0]


def _described(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"[:LONGEST_TEXT]
    except Exception:
        text = type(error).__name__
    return text.encode(errors="replace").decode()
