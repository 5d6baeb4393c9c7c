"""What a worker reads, as the codecs of its app decode it: arguments, inputs, and the journal."""

import logging
from collections.abc import Awaitable, Sequence
from datetime import timedelta

from msgspec.structs import replace

from flowfabric.app.encoding import owners
from flowfabric.errors import PayloadUnreadable
from flowfabric.ids import read_execution_id
from flowfabric.model import Claim, Input, JournalEntry, Signal
from flowfabric.payloads.codecs import PLAIN, Codecs, of_result, of_signal, of_step
from flowfabric.worker.run import Outcome, Postponed

log = logging.getLogger("flowfabric.worker")

UNREADABLE_DELAY = timedelta(seconds=5)


async def if_readable(claim: Claim, worker: str, running: Awaitable[Outcome]) -> Outcome:
    """Run an execution, or leave it to another worker if this one cannot read it."""
    try:
        return await running
    except PayloadUnreadable as error:
        log.error(
            "this worker cannot read execution %s of task %s, which is postponed, so that another one can run it: %s",
            *(claim.execution_id, claim.task, error.message),
        )
        return Postponed(UNREADABLE_DELAY, f"worker {worker} cannot read it: {error.message}")


def decode_claim(codecs: Codecs, claim: Claim) -> Claim:
    """Decode the arguments of a claim, and the results that upstreams pass to it. Raises `PayloadUnreadable`."""
    if claim.encoding != PLAIN and claim.payload is not None:
        own = owners(claim.execution_id, claim.namespace, claim.task)
        allowed = own if claim.passed_by is None else [of_result(claim.passed_by)]
        claim = replace(claim, payload=codecs.decode(claim.payload, claim.encoding, *allowed), encoding=PLAIN)
    if any(given.encoding != PLAIN for given in claim.inputs.values()):
        claim = replace(claim, inputs={name: _input(codecs, given) for name, given in claim.inputs.items()})
    return claim


def decode_journal(codecs: Codecs, claim: Claim, journal: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
    """Decode the results and signals of a journal. Raises `PayloadUnreadable`."""
    if all(entry.encoding == PLAIN and not entry.signals for entry in journal):
        return journal
    return [_entry(codecs, claim, entry) for entry in journal]


def _input(codecs: Codecs, given: Input) -> Input:
    if given.encoding == PLAIN or given.upstream is None:
        return given
    return Input(codecs.decode(given.result, given.encoding, of_result(given.upstream)), PLAIN, given.upstream)


def _entry(codecs: Codecs, claim: Claim, entry: JournalEntry) -> JournalEntry:
    if entry.encoding != PLAIN and entry.result is not None:
        owner = of_step(claim.execution_id, entry.name, entry.occurrence)
        entry = replace(entry, result=codecs.decode(entry.result, entry.encoding, owner), encoding=PLAIN)
    if any(signal.encoding != PLAIN for signal in entry.signals):
        entry = replace(entry, signals=[_signal(codecs, claim, signal) for signal in entry.signals])
    return entry


def _signal(codecs: Codecs, claim: Claim, signal: Signal) -> Signal:
    if signal.encoding == PLAIN or signal.payload is None:
        return signal
    is_child = signal.source_type == "system" and signal.category == "child"
    owner = of_result(read_execution_id(signal.source_identity)) if is_child else of_signal(claim.execution_id)
    return replace(signal, payload=codecs.decode(signal.payload, signal.encoding, owner), encoding=PLAIN)
