"""The client of an app: sends submissions and signals and reads results, merged with calls made at the same time."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from flowfabric.app.encoding import Labels, settle
from flowfabric.app.lending import Lenders, Loan
from flowfabric.engine import claims, clock, executions, waits
from flowfabric.errors import FlowFabricError, KeyConflict
from flowfabric.ids import ExecutionId, mint_execution_id, mint_execution_ids
from flowfabric.model import Delivered, Result, SignalToSend, Submission, Submitted
from flowfabric.payloads.codecs import PLAIN, Codecs
from flowfabric.postgres.batching import Batch
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier

MOST = 1_000  # submissions in one statement
MOST_BYTES = 4 * 2**20
MOST_SIGNALS = 200
CONCURRENT = 3  # statements of one `submit_many`: one is encoded while two are written


class Client:
    """Sends submissions and signals, notifies the workers of the lanes that now have work, and reads results."""

    def __init__(self, database: Database, notifier: Notifier, codecs: Codecs) -> None:
        self._config = database.config
        self._codecs = codecs
        self._labels = Labels(codecs)
        self._database = database
        self._notifier = notifier
        self.lenders = Lenders()
        """The workers of this process, which may lease in the same call what it submits or resumes."""
        patience = database.config.call_timeout.total_seconds()
        self._submitting = Batch(partial(self._submit, wait=False), size=_size, in_flight=2, patience=patience)
        self.submit = self._submitting if codecs.label == PLAIN else self._submit_encoded
        self.signal = Batch(self._signal, most=MOST_SIGNALS, size=_size, in_flight=2, patience=patience)
        self.result = Batch(self._results, in_flight=2)

    async def close(self) -> None:
        """Return when every call that was made has been answered."""
        await self._submitting.close()
        await self.signal.close()
        await self.result.close()

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
        """Submit many as if one after the other, and answer each in its place.

        Submissions without keys and ids cannot conflict with each other, so their statements run concurrently. All
        count their age from one moment, which keeps the order of the call as the order in which they are claimed.
        """
        independent = all(item.key is None and item.execution_id is None for item in submissions)
        if self._codecs.label == PLAIN:
            return await self._submit_pieces(submissions, independent)
        encoded = list(map(self._labels.encode, submissions, mint_execution_ids(len(submissions))))
        answers = await self._submit_pieces(encoded, independent)
        return [await self._settled(*each) for each in zip(submissions, answers, strict=True)]

    async def _submit_encoded(self, submission: Submission) -> Submitted:
        encoded = self._labels.encode(submission, mint_execution_id())
        try:
            return await self._submitting(encoded)
        except KeyConflict as refused:
            answer = await self._settled(submission, refused)
            if isinstance(answer, FlowFabricError):
                raise
            return answer

    async def _settled(
        self, submission: Submission, answer: Submitted | FlowFabricError
    ) -> Submitted | FlowFabricError:
        if not isinstance(answer, KeyConflict):
            return answer
        return await self._database.run(lambda conn: settle(conn, self._codecs, submission, answer), repeat=True)

    async def _submit_pieces(
        self, submissions: Sequence[Submission], independent: bool
    ) -> list[Submitted | FlowFabricError]:
        pieces = [submissions[start : start + MOST] for start in range(0, len(submissions), MOST)]
        if len(pieces) < 2 or not independent or any(sum(map(_size, piece)) > MOST_BYTES for piece in pieces):
            return await self._submit(submissions)
        began = await self._database.run(clock.clock, repeat=True)
        room = asyncio.Semaphore(CONCURRENT)

        async def send(number: int, piece: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
            async with room:
                return await self._submit(piece, began + timedelta(microseconds=number * MOST))

        answers = await asyncio.gather(*(send(number, piece) for number, piece in enumerate(pieces)))
        return [answer for piece in answers for answer in piece]

    async def _submit(
        self, submissions: Sequence[Submission], counted_from: datetime | None = None, *, wait: bool = True
    ) -> list[Submitted | FlowFabricError]:
        # Ids minted here make the call repeatable after a lost reply: an id that is already stored is not stored again.
        arguments: dict[str, Any] = {
            "payload_limit": self._config.payload_limit,
            "counted_from": counted_from,
            "minted": mint_execution_ids(len(submissions)),
            "wait": wait,
        }
        loan = self.lenders.lend(lambda: [item.options for item in submissions if item.delay is None])
        if loan is None:
            answers = await self._database.run(
                lambda conn: executions.submit_many(conn, submissions, **arguments), repeat=True, wait=wait
            )
        else:
            with loan:
                answers, loan.claimed = await self._database.run(
                    lambda conn: claims.submit_and_claim(conn, submissions, loan.ask(), **arguments),
                    repeat=True,
                    wait=wait,
                )
        leased = _leased(loan)
        answered = zip(submissions, answers, strict=True)
        self._notifier.send(
            lanes=(
                item.options.lane
                for item, answer in answered
                if isinstance(answer, Submitted) and answer.execution_id not in leased
            )
        )
        return answers

    async def _signal(self, signals: Sequence[SignalToSend]) -> list[Delivered | FlowFabricError]:
        loan = self.lenders.lend(lambda: [None] * len(signals))
        if loan is None:
            answers = await self._database.run(
                lambda conn: waits.deliver_signals(conn, signals, wait=False), wait=False
            )
        else:
            with loan:
                answers, loan.claimed = await self._database.run(
                    lambda conn: claims.signal_and_claim(conn, signals, loan.ask(), wait=False), wait=False
                )
        leased = _leased(loan)
        answered = zip(signals, answers, strict=True)
        self._notifier.send(
            lanes={
                answer.lane
                for signal, answer in answered
                if isinstance(answer, Delivered) and answer.lane is not None and signal.execution_id not in leased
            }
        )
        return answers

    async def _results(self, execution_ids: Sequence[ExecutionId]) -> list[Result | FlowFabricError]:
        return await self._database.run(lambda conn: executions.get_result_many(conn, execution_ids), repeat=True)


def _size(item: Submission | SignalToSend) -> int:
    return len(item.payload or b"")


def _leased(loan: Loan | None) -> set[ExecutionId]:
    return set() if loan is None else {claim.execution_id for claim in loan.claimed or ()}
