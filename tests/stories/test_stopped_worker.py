"""A worker that is stopped past its lease and continued: all its calls are refused, and the new attempt counts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from flowfabric.engine import attempts, claims, executions
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, PublicState
from tests.given import Given
from tests.sources import ROOT

PROGRAM = ROOT / "tests" / "stories" / "stoppable_worker.py"
CALLS = ["renew", "complete", "fail", "delay", "cancel"]


@pytest.fixture
async def execution_id(given: Given) -> ExecutionId:
    return await given.submitted()


@pytest.fixture
def worker(execution_id: ExecutionId, database_url: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has claimed the execution, renewed its lease, and is stopped."""
    command = [sys.executable, str(PROGRAM), database_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # returns when the process has stopped
        yield process
        process.kill()


def continued(worker: subprocess.Popen[str]) -> dict[str, list[object]]:
    """Continue the worker, and return the outcomes of its calls."""
    worker.send_signal(signal.SIGCONT)
    said, _ = worker.communicate("continue\n", timeout=30)
    answers: dict[str, list[object]] = json.loads(said)
    return answers


def refused(code: str, fields: object) -> dict[str, list[object]]:
    """The outcome of every call, if all are refused with this code."""
    return {call: [code, fields] for call in CALLS}


async def reclaimed(given: Given) -> Claim:
    """Let the lease expire, and another worker claim the execution."""
    await given.time_passes(seconds=30)
    assert (await claims.expire_leases(given.conn)).moved == 1
    [claim] = await given.claim(worker="other", instance="other-1")
    return claim


async def test_all_calls_of_a_stopped_worker_are_refused_while_another_runs(
    worker: subprocess.Popen[str], given: Given, execution_id: ExecutionId
) -> None:
    claim = await reclaimed(given)
    before = await given.events(execution_id)

    assert continued(worker) == refused("lease_lost", {"cause": "superseded"})

    assert (claim.attempt.number, claim.attempt.type, claim.fence.epoch) == (2, "reclaim", 2)
    assert await given.events(execution_id) == before
    await attempts.complete(given.conn, claim.fence, b'"fresh"')
    assert (await executions.get_result(given.conn, execution_id)).result == b'"fresh"'


async def test_all_calls_of_a_stopped_worker_are_refused_after_another_has_finished(
    worker: subprocess.Popen[str], given: Given, execution_id: ExecutionId
) -> None:
    await attempts.complete(given.conn, (await reclaimed(given)).fence, b'"fresh"')
    ended = {"phase": "terminal", "outcome": "success", "epoch": 2, "attempt": 2}

    answers = continued(worker)

    assert answers["cancel"] == ["execution_ended", {"outcome": "success"}]
    assert answers == refused("execution_not_active", ended) | {"cancel": answers["cancel"]}
    assert (await executions.get_result(given.conn, execution_id)).result == b'"fresh"'
    assert (await given.events(execution_id)).count("execution_completed") == 1


async def test_all_calls_of_a_stopped_worker_are_refused_when_nobody_has_noticed(
    worker: subprocess.Popen[str], given: Given, execution_id: ExecutionId
) -> None:
    """The lease has expired, but no sweep has run yet."""
    await given.time_passes(seconds=30)

    assert continued(worker) == refused("lease_lost", {"cause": "expired"})

    assert await given.state(execution_id) is PublicState.ACTIVE
    assert (await reclaimed(given)).attempt.number == 2
