"""Tasks that no live worker has registered: the reason is named at once, with the most similar name."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from flowfabric.config import Config
from flowfabric.doctor import diagnose
from flowfabric.engine import attempts, executions, tasks, workers
from flowfabric.engine.overview import overview
from flowfabric.model import Delay, FoundTask, RegisteredTask, Stuck
from flowfabric.postgres.driver import Connection
from tests.given import Given


async def register(
    conn: Connection, names: Sequence[str] | None, *, instance: str = "w-1", lane: str = "default",
    namespace: str | None = None, capabilities: Sequence[str] = (), holds_lock: bool = False,
) -> None:  # fmt: skip
    listed = None if names is None else [RegisteredTask(name=name, lane=lane) for name in names]
    await workers.register_worker(
        conn, "w", instance=instance, lanes=[lane], tasks=listed, namespace=namespace, capabilities=capabilities,
        holds_lock=holds_lock,
    )  # fmt: skip


async def missing(conn: Connection) -> list[Stuck]:
    return [each for each in (await overview(conn)).stuck if each.reason == "no_task"]


async def test_a_task_that_no_worker_has_is_named_by_explain_overview_and_doctor(
    conn: Connection, given: Given
) -> None:
    await register(conn, ["report", "mail"])
    execution_id = await given.submitted(task="reprot")
    await given.submitted(task="report")

    sentence = "no running worker of lane default has task 'reprot'; did you mean 'report'?"
    found = await executions.explain(conn, execution_id)
    [stuck] = await missing(conn)
    [finding] = [each for each in (await diagnose(conn, Config())).findings if each.check == "tasks"]
    assert (found.sentence, found.waits_for, found.released_by) == (sentence, "worker_with_task", "register_worker")
    assert (stuck.sentence, stuck.subject, stuck.lane, stuck.amount) == (sentence, "reprot", "default", 1)
    assert sentence in finding.problem


async def test_an_execution_that_a_worker_has_delayed_is_explained_in_the_same_way(
    conn: Connection, given: Given
) -> None:
    await register(conn, ["report"])
    claim = await given.claimed(task="reprot")
    delay = Delay(fence=claim.fence, until=timedelta(seconds=5), reason="worker w has no task reprot")
    await attempts.delay_many(conn, [delay])

    found = await executions.explain(conn, claim.execution_id)
    assert found.sentence.endswith("UTC: no running worker of lane default has task 'reprot'; did you mean 'report'?")
    assert [each.subject for each in await missing(conn)] == ["reprot"]


async def test_a_handler_that_sleeps_is_not_reported(conn: Connection, given: Given) -> None:
    await register(conn, ["report"])
    claim = await given.claimed(task="other")
    await attempts.delay(conn, claim.fence, timedelta(hours=5))

    assert (await executions.explain(conn, claim.execution_id)).waits_for == "time"
    assert await missing(conn) == []


@pytest.mark.parametrize("names", [None, ["one"]])
async def test_a_task_that_a_worker_has_or_may_have_is_not_missing(
    conn: Connection, given: Given, names: list[str] | None
) -> None:
    await register(conn, names)
    await register(conn, ["two"], instance="w-2")
    execution_id = await given.submitted(task="one")

    assert (await executions.explain(conn, execution_id)).waits_for == "worker"
    assert await missing(conn) == []


async def test_without_a_worker_for_it_the_reason_is_the_worker_and_not_the_task(
    conn: Connection, given: Given
) -> None:
    """The lane, the namespace and the capabilities decide first."""
    await register(conn, ["one"], namespace="acme")
    unserved = await given.submitted(task="two")
    needing = await given.submitted(task="two", namespace="acme", needs=["gpu"])
    lonely = await given.submitted(task="two", lane="lonely")

    for execution_id in (unserved, needing, lonely):
        assert (await executions.explain(conn, execution_id)).waits_for != "worker_with_task"
    assert await missing(conn) == []


async def test_the_tasks_of_a_dead_worker_do_not_count(conn: Connection, given: Given) -> None:
    await register(conn, ["one"], instance="w-1")
    await register(conn, ["two"], instance="w-2")
    execution_id = await given.submitted(task="one")
    assert (await executions.explain(conn, execution_id)).waits_for == "worker"

    await workers.mark_dead(conn, "w-1", by="ops")
    assert (await executions.explain(conn, execution_id)).waits_for == "worker_with_task"


async def test_an_expired_registration_does_not_count(conn: Connection, given: Given) -> None:
    await register(conn, ["one"], instance="w-1")
    await given.time_passes(seconds=31)
    await register(conn, ["two"], instance="w-2")

    assert (await tasks.find_task(conn, "one")).outcome == "missing"
    await given.time_passes(seconds=31)
    assert (await tasks.find_task(conn, "one")).outcome == "no_worker"


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("send_reprot", ["send_report"]),
        ("Send_Report", ["send_report"]),
        ("send_reports", ["send_report"]),
        ("x", []),
        ("a'b\x1b[31m", []),
        ("é" * 120, []),
    ],
)
async def test_similar_names_are_found(conn: Connection, name: str, similar: list[str]) -> None:
    await register(conn, ["send_report", "charge"])

    assert await tasks.find_task(conn, name) == FoundTask(outcome="missing", nearest=similar)


async def test_a_worker_without_registered_tasks_may_have_any(conn: Connection) -> None:
    await register(conn, None)
    assert await tasks.find_task(conn, "one") == FoundTask(outcome="possible", nearest=[])
    await register(conn, ["one"], instance="w-2", namespace="acme")
    assert (await tasks.find_task(conn, "one", namespace="acme")).outcome == "registered"
    assert (await tasks.find_task(conn, "one")).outcome == "possible"


async def test_the_most_similar_of_a_thousand_tasks_is_named_for_ten_missing_ones(
    conn: Connection, given: Given
) -> None:
    for number in range(10):
        await register(conn, [f"task-{each}" for each in range(1_000)], instance=f"w-{number}")
    for number in range(30):
        await given.submitted(task=f"tosk-{number}")

    found = await missing(conn)
    assert len(found) == 10
    assert all("did you mean 'task-" in each.sentence for each in found)
