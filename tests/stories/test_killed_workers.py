"""Worker processes that are killed at random moments: everything completes, and no saved step is called again."""

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from flowfabric.engine import attempts, executions
from flowfabric.ids import ExecutionId
from tests.conftest import SOAK
from tests.given import Given
from tests.sources import ROOT
from tests.stories.workload import TABLES
from tests.worker.scene import until, worker_process

APP = f"{ROOT / 'tests' / 'stories' / 'workload.py'}:app"
KILLS = 200 if SOAK else 5
PATIENT = {"max_reclaim_count": 1_000}


@pytest.fixture
async def url(database_url: str, given: Given) -> str:
    """A database with the tables of the workload."""
    await given.conn.execute(TABLES)
    return database_url


async def test_whenever_a_worker_is_killed_its_work_goes_on_elsewhere_from_the_last_saved_step(
    url: str, given: Given
) -> None:
    dice = random.Random(7)
    async with worker_process(url, APP, "--name", "survivor", "--concurrency", "5"):
        for _ in range(KILLS):
            async with worker_process(url, APP, "--name", "victim", "--concurrency", "50") as victim:
                taken = [await submitted(given, number) for number in range(40)]
                moment = dice.randint(0, 300)
                await until(lambda at_least=moment: _calls(given, at_least))
                victim.kill()
                await victim.wait()
            async with asyncio.timeout(25):  # leases last 30 s, so it is the lost lock that shows the death
                await until(lambda: _over(given))
            await right(given, taken)
            await given.conn.execute("delete from calls where not was_saved")

    assert await given.rows("select from calls") == []
    assert "lease_expired" in await given.events()


async def test_a_map_whose_workers_are_killed_has_every_result_once_and_never_more_turns_than_it_may(
    url: str, given: Given
) -> None:
    execution_id = await given.submitted(task="squares", payload=msgspec.json.encode({"many": 40}))
    for so_many in (0, 5, 15, 30):  # at the latest when that many children have been called
        async with worker_process(url, APP, "--concurrency", "20") as victim:
            await until(lambda at_least=so_many: _calls(given, at_least))
            victim.kill()
            await victim.wait()
        turns = await given.rows("select count(*) as amount from flowfabric.map_children where has_turn")
        assert turns[0]["amount"] <= 4
    async with worker_process(url, APP):
        await until(lambda: _ended(given, execution_id))

    result = await executions.get_result(given.conn, execution_id)
    assert msgspec.json.decode(result.result or b"") == [number * number for number in range(40)]
    assert await given.count("executions") == 41
    assert await given.count("maps") == await given.count("map_children") == 0


async def test_a_lone_worker_that_is_killed_and_started_again_resumes_without_waiting_for_its_lease(
    url: str, given: Given
) -> None:
    async with worker_process(url, APP, "--lease", "1h") as victim:
        execution_id = await given.submitted(task="stuck_once")
        await until(lambda: _calls(given, 1))
        victim.kill()
        await victim.wait()
    async with worker_process(url, APP):
        await until(lambda: _ended(given, execution_id))

    [waited] = await given.rows("""
        select max(at) filter (where kind = 'lease_acquired')
               - max(at) filter (where kind = 'worker_registered') < interval '10 s' as is_short
        from flowfabric.events""")
    assert waited["is_short"]  # about a second; fifteen if the server might have been away


async def test_a_transaction_step_whose_worker_is_killed_before_the_commit_takes_effect_once(
    url: str, given: Given, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    async with worker_process(url, APP) as victim:
        execution_id = await given.submitted(task="charge_once", payload=msgspec.json.encode({"path": str(killed)}))
        assert await victim.wait() == 9
    async with worker_process(url, APP):
        await until(lambda: _ended(given, execution_id))

    assert len(await given.rows("select from calls")) == 1
    assert killed.exists()


async def test_a_payload_that_kills_its_worker_ends_at_its_cap(url: str, given: Given, tmp_path: Path) -> None:
    victims = tmp_path / "victims"
    payload = msgspec.json.encode({"path": str(victims)})
    poison = await given.submitted(task="poison", policy={"max_reclaim_count": 2}, payload=payload)

    async with worker_process(url, APP, "--processes", "2"):
        harmless = await given.submitted(task="harmless", payload=b'{"number": 1}')
        await until(lambda: _ended(given, poison))
        await until(lambda: _ended(given, harmless))

    result = await executions.get_result(given.conn, poison)
    assert result.failure is not None
    assert (result.outcome, result.failure.reason) == ("failed", "max_reclaims_exceeded")
    assert len(victims.read_text().splitlines()) == 4  # the first is not counted: it may not have begun
    assert [each.type for each in (await attempts.list_attempts(given.conn, poison)).items] == [
        "initial", "reclaim", "reclaim", "reclaim",
    ]  # fmt: skip


async def test_two_payloads_that_kill_their_worker_end_at_their_cap_and_nothing_else_fails(
    url: str, given: Given
) -> None:
    cap = 10 if SOAK else 1
    policy = {"max_reclaim_count": cap}
    tasks = ["killer" if number in (5, 20) else "innocent" for number in range(42)]
    taken = [
        await given.submitted(
            task=task, payload=b"{}" if task == "killer" else b'{"number": %d}' % number, policy=policy
        )
        for number, task in enumerate(tasks)
    ]

    deaths = 0
    while not await _over(given):
        async with worker_process(url, APP, "--concurrency", "10") as worker:
            ending = asyncio.create_task(worker.wait())
            await until(lambda ending=ending: _over_or(given, ending), seconds=120)
            deaths += ending.done()
            ending.cancel()

    results = [await executions.get_result(given.conn, execution_id) for execution_id in taken]
    assert [result.outcome for result in results] == ["failed" if task == "killer" else "success" for task in tasks]
    assert {result.failure.reason for result in results if result.failure} == {"max_reclaims_exceeded"}
    assert deaths <= 2 * (cap + 2)


async def submitted(given: Given, number: int) -> ExecutionId:
    return await given.submitted(task="ten_steps", payload=b'{"number": %d}' % number, policy=PATIENT)


async def right(given: Given, taken: list[ExecutionId]) -> None:
    """Check that every execution has the results of its ten steps, whichever worker ran them."""
    for number, execution_id in enumerate(taken):
        expected = str([number * 100 + index for index in range(10)]).replace(" ", "")
        assert (await executions.get_result(given.conn, execution_id)).result == expected.encode()


async def _calls(given: Given, at_least: int) -> bool:
    [row] = await given.rows("select count(*) from calls")
    return bool(row["count"] >= at_least)


async def _over(given: Given) -> bool:
    return await given.count("tickets") == 0


async def _over_or(given: Given, ending: asyncio.Task[int]) -> bool:
    return ending.done() or await _over(given)


async def _ended(given: Given, execution_id: ExecutionId) -> bool:
    return (await executions.get_result(given.conn, execution_id)).outcome is not None
