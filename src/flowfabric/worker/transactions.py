"""Transaction steps: steps that write to the user's tables, and save their result in the same transaction."""

from collections.abc import Awaitable, Callable

from flowfabric.app import App
from flowfabric.engine import steps
from flowfabric.handler.runtime import RunningStep
from flowfabric.model import Claim, Saved, Step
from flowfabric.payloads.codecs import Codecs, of_step
from flowfabric.postgres.driver import Connection
from flowfabric.worker.leased import LeasedCalls


class SavedBefore(Exception):
    """The transaction had been committed, although the worker got no reply; this one must be rolled back."""

    def __init__(self, result: bytes) -> None:
        super().__init__()
        self.result = result


class Transactions:
    """Runs transaction steps; nothing of a step is kept unless its lease is valid when its result is saved."""

    def __init__(self, app: App, leased: LeasedCalls) -> None:
        self._app = app
        self._leased = leased

    async def run(self, claim: Claim, running: RunningStep, write: Callable[[Connection], Awaitable[bytes]]) -> bytes:
        """Write and save in one transaction, and return the saved result; repeat it while the database is unavailable.

        The step is saved last, so that the ticket is locked only for the commit.
        """

        async def write_and_save(conn: Connection) -> bytes:
            result = await write(conn)
            if not conn.is_in_transaction():
                raise RuntimeError(
                    f"step {running.place.name!r} has ended its own transaction; let the context commit it"
                )
            step = finished(self._app.codecs, claim, running, result)
            saved = await steps.save_step(conn, step, result_limit=self._app.config.payload_limit)
            if saved.outcome == "duplicate":
                raise SavedBefore(saved_before(self._app.codecs, claim, running, saved))
            return result

        try:
            return await self._leased.persist(claim, lambda: self._app.database.run_transaction(write_and_save))
        except SavedBefore as before:
            return before.result


def finished(codecs: Codecs, claim: Claim, running: RunningStep, result: bytes) -> Step:
    """A step that has run, as it is saved."""
    place = running.place
    return Step(
        fence=claim.fence,
        name=place.name,
        occurrence=place.occurrence,
        result=codecs.encode(result, of_step, claim.execution_id, place.name, place.occurrence),
        encoding=codecs.label,
        lasted=running.elapsed,
    )


def saved_before(codecs: Codecs, claim: Claim, running: RunningStep, saved: Saved) -> bytes:
    """The result that an earlier call has saved. Raises `PayloadUnreadable`."""
    owner = of_step(claim.execution_id, running.place.name, running.place.occurrence)
    return b"null" if saved.result is None else codecs.decode(saved.result, saved.encoding, owner)
