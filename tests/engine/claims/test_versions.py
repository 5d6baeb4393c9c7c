"""Versions of a task: an execution that has started under one is only for instances that have registered it."""

from typing import Any

import pytest

from flowfabric.config import Config
from flowfabric.doctor import diagnose
from flowfabric.engine import attempts, claims, executions, workers
from flowfabric.engine.overview import overview
from flowfabric.errors import ExecutionNotActive, ExecutionNotTerminal, InvalidBody
from flowfabric.ids import ExecutionId
from flowfabric.model import Begin, Begun, Claim, FailureClass, RegisteredTask
from flowfabric.postgres.driver import Connection
from tests.given import Given

RETRIES = {"retry": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 1}}}


async def serving(conn: Connection, instance: str, *versions: int, task: str = "report") -> str:
    """An instance that has registered these versions of a task."""
    tasks = [RegisteredTask(name=task, version=version) for version in versions]
    await workers.register_worker(conn, "pool", instance=instance, lanes=["default"], tasks=tasks)
    return instance


async def started(given: Given, version: int, **options: Any) -> Claim:
    """An execution whose first run has begun under a version."""
    claim = await given.claimed(**options)
    await claims.mark_begun_many(given.conn, [Begin(fence=claim.fence, version=version)])
    return claim


async def claimed_by(given: Given, *instances: str) -> list[int | None]:
    """The versions of what each of these instances in turn claims."""
    return [claim.version for instance in instances for claim in await given.claim(instance=instance)]


async def version(given: Given, execution_id: ExecutionId) -> int | None:
    return (await executions.describe(given.conn, execution_id)).version


async def test_a_retry_is_claimed_only_by_an_instance_that_has_its_version(conn: Connection, given: Given) -> None:
    claim = await started(given, 1, policy=RETRIES)
    await attempts.fail(conn, claim.fence, "down", class_=FailureClass.TRANSIENT)
    await given.time_passes(seconds=1)
    unregistered, new, both = "x", await serving(conn, "new", 2), await serving(conn, "both", 1, 2)

    assert await claimed_by(given, unregistered, new) == []
    assert await claimed_by(given, both) == [1]


async def test_a_reclaimed_and_a_resumed_execution_are_routed_alike(conn: Connection, given: Given) -> None:
    old, new = await serving(conn, "old", 1), await serving(conn, "new", 2)
    await started(given, 1)
    await given.time_passes(minutes=1)
    await claims.expire_leases(conn)
    await serving(conn, old, 1)
    await serving(conn, new, 2)

    assert await claimed_by(given, new) == []
    [again] = await given.claim(instance=old)
    await attempts.delay(conn, again.fence)
    assert await claimed_by(given, new) == []
    assert await claimed_by(given, old) == [1]


async def test_a_claim_that_has_not_begun_has_no_version(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await attempts.delay(conn, claim.fence)

    assert await claimed_by(given, await serving(conn, "new", 2)) == [None]


async def test_an_execution_keeps_the_version_under_which_it_first_started(conn: Connection, given: Given) -> None:
    claim = await started(given, 1)

    assert await claims.mark_begun_many(conn, [Begin(fence=claim.fence, version=2)]) == [Begun(version=1)]
    assert await version(given, claim.execution_id) == 1
    await attempts.complete(conn, claim.fence, b"1")
    assert await version(given, claim.execution_id) == 1


async def test_the_versions_of_a_batch_are_marked_one_by_one(conn: Connection, given: Given) -> None:
    await given.submitted(task="mail")
    await given.submitted(lane="b", needs=["gpu"])
    claims_ = await given.claim(lanes=["default", "b"], capabilities=["gpu"], take=9)
    lost = await given.claimed()
    await attempts.complete(conn, lost.fence)
    begins = [Begin(fence=claim.fence, version=number + 2) for number, claim in enumerate(claims_)]

    refused, invalid, *marked = await claims.mark_begun_many(
        conn, [Begin(fence=lost.fence, version=1), Begin(fence=claims_[0].fence, version=0), *begins]
    )

    assert (type(refused), type(invalid)) == (ExecutionNotActive, InvalidBody)
    assert marked == [Begun(version=2), Begun(version=3)]
    routes = await given.rows(
        "select lane, needs, task, version from flowfabric.routes where version is not null order by lane"
    )
    assert [list(row.values()) for row in routes] == [
        ["b", ["gpu", "report version 3"], "report", 3],
        ["default", ["mail version 2"], "mail", 2],
    ]


async def waiting(given: Given, version: int = 1, **options: Any) -> ExecutionId:
    """An execution that has started under a version and can be claimed again."""
    claim = await started(given, version, **options)
    await attempts.delay(given.conn, claim.fence)
    return claim.execution_id


async def test_a_version_that_no_worker_has_is_named_by_explain_overview_and_doctor(
    conn: Connection, given: Given
) -> None:
    execution_id = await waiting(given)
    await serving(conn, "new", 2, 3)

    found = await executions.explain(conn, execution_id)
    [stuck] = (await overview(conn)).stuck
    [finding] = [each for each in (await diagnose(conn, Config())).findings if each.check == "tasks"]
    missing = "no running worker of lane default has version 1 of task 'report' (served: version 2, 3)"
    assert found.sentence == (
        f"{missing}, under which it has started; start a worker that has it, or replay the execution from scratch "
        "under another version"
    )
    assert (found.waits_for, found.released_by) == ("worker_with_version", "register_worker")
    assert (stuck.reason, stuck.subject, stuck.sentence) == ("no_version", "report version 1", missing)
    assert missing in finding.problem


async def test_a_version_is_served_only_by_live_workers_of_its_lane_and_namespace(
    conn: Connection, given: Given
) -> None:
    execution_id = await waiting(given)
    mine = [RegisteredTask(name="report")]
    await workers.register_worker(conn, "w", instance="there", lanes=["other"], tasks=mine)
    await workers.register_worker(conn, "w", instance="theirs", lanes=["default"], tasks=mine, namespace="acme")

    assert (await executions.explain(conn, execution_id)).waits_for == "worker_with_version"
    await serving(conn, "here", 1)
    assert (await executions.explain(conn, execution_id)).waits_for == "worker"
    await workers.mark_dead(conn, "here", by="ops")
    assert (await executions.explain(conn, execution_id)).waits_for == "worker_with_version"


async def test_the_capabilities_of_an_execution_that_has_started_are_still_required(
    conn: Connection, given: Given
) -> None:
    claim = await given.submitted(needs=["gpu"])
    [taken] = await given.claim(capabilities=["gpu"])
    await claims.mark_begun_many(conn, [Begin(fence=taken.fence, version=1)])
    await attempts.delay(conn, taken.fence)
    await serving(conn, "old", 1)

    assert await given.claim(instance="old") == []
    found = await executions.explain(conn, claim)
    assert "has {gpu, report version 1}; nearest worker pool lacks {gpu}" in found.sentence
    assert len(await given.claim(instance="old", capabilities=["gpu"])) == 1


async def test_an_execution_whose_version_no_worker_has_is_replayed_from_scratch(
    conn: Connection, given: Given
) -> None:
    execution_id = await waiting(given)
    await serving(conn, "new", 2)
    with pytest.raises(ExecutionNotTerminal, match="version 1"):
        await executions.replay(conn, execution_id, by="ops", from_step="one")

    await executions.replay(conn, execution_id, by="ops", from_scratch=True)

    [again] = await given.claim(instance="new")
    assert (again.version, again.attempt.number) == (None, 1)
    assert await claims.mark_begun_many(conn, [Begin(fence=again.fence, version=2)]) == [Begun(version=2)]


async def test_an_execution_that_a_worker_can_run_is_not_replayed(conn: Connection, given: Given) -> None:
    execution_id = await waiting(given)
    await serving(conn, "old", 1)

    async with given.nothing_changes():
        with pytest.raises(ExecutionNotTerminal):
            await executions.replay(conn, execution_id, by="ops", from_scratch=True)


@pytest.mark.parametrize(("from_scratch", "versions"), [(False, [2]), (True, [None])])
async def test_a_replay_keeps_the_version_unless_it_is_from_scratch(
    conn: Connection, given: Given, from_scratch: bool, versions: list[int | None]
) -> None:
    claim = await started(given, 2)
    await attempts.complete(conn, claim.fence)
    await executions.replay(conn, claim.execution_id, by="ops", from_scratch=from_scratch)

    assert await claimed_by(given, await serving(conn, "new", 2)) == versions
