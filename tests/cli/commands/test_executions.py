"""`ff executions explain` prints the reason and a remedy, and the remedy works."""

from datetime import timedelta

from flowfabric import testing
from flowfabric.engine import attempts, executions, workers
from tests.cli import scene
from tests.cli.conftest import Run
from tests.cli.scene import ASKING, LOST, PAUSED, RETRIED, UNSERVED, WAITING
from tests.given import Given

# What releases each execution, what the sentence must name, and what the remedy must contain.
BLOCKED = {
    PAUSED: ("resume_lane", ["mail", "ada", "the printer is down"], "ff lanes resume mail"),
    UNSERVED: (
        "register_worker",
        ["models", "gpu", "pool"],
        "ff worker FILE.py:app --lanes models --capabilities gpu,llm",
    ),
    RETRIED: ("time", ["1 of 3", "connection refused"], "nothing to do"),
    ASKING: ("deliver_signal", ["0 of 1", "publish"], f"ff waitpoints approve {ASKING} publish"),
    LOST: ("expire_leases", ["pool", "pool-1"], "ff sweep --once"),
}


async def test_every_blocked_execution_has_a_reason_and_a_remedy(here: Run, given: Given) -> None:
    await scene.blocked(given)

    for execution_id, (released_by, named, remedy) in BLOCKED.items():
        answer = await here(f"executions explain {execution_id} --json")
        assert (answer.code, answer.document["released_by"]) == (0, released_by), answer.out
        assert all(part in answer.document["sentence"] for part in named), answer.out
        assert remedy in answer.document["remedy"], answer.out
        assert len((await here(f"executions explain {execution_id}")).out.splitlines()) == 2


async def test_typing_the_remedy_releases_the_execution(here: Run, given: Given) -> None:
    await scene.blocked(given)

    for execution_id in (PAUSED, ASKING):
        _, out, _ = await here(f"executions explain {execution_id}")
        remedy = out.splitlines()[1].strip().removeprefix("ff ")
        assert (await here(remedy, *(["--yes"] if "approve" in remedy else []))).code == 0
        assert (await executions.explain(given.conn, execution_id)).waits_for == "worker"


async def test_a_lane_without_a_live_worker_is_named(here: Run, given: Given) -> None:
    await given.submitted(execution_id=WAITING, lane="late mail")

    remedy = (await here(f"executions explain {WAITING} --json")).document["remedy"]

    assert "late mail: " in remedy
    assert remedy.endswith("ff worker FILE.py:app --lanes 'late mail'")


async def test_for_a_delayed_execution_the_name_of_its_task_is_questioned(here: Run, given: Given) -> None:
    claim = await given.claimed(task="gret")
    await attempts.delay(given.conn, claim.fence, timedelta(seconds=5))

    explained = (await here(f"executions explain {claim.execution_id} --json")).document

    assert (explained["state"], explained["released_by"]) == ("delayed", "time")
    assert "gret" in explained["remedy"]


async def test_for_a_running_execution_the_remedy_covers_a_dead_worker(here: Run, given: Given) -> None:
    await workers.register_worker(given.conn, given.worker, instance=given.instance, lanes=["default"])
    claim = await given.claimed()

    remedy = (await here(f"executions explain {claim.execution_id} --json")).document["remedy"]
    await here("workers mark-dead pool-1")

    assert remedy.endswith(": ff workers mark-dead pool-1")
    assert (await given.events(claim.execution_id))[-1] == "lease_revoked"


async def test_a_list_is_narrowed_by_time_key_and_parent(here: Run, given: Given) -> None:
    await given.submitted(execution_id=WAITING, key="order 17")
    began = await testing.now(given.conn)
    await given.time_passes(hours=3)
    await given.submitted(execution_id=PAUSED)
    later = (await testing.now(given.conn)).replace(tzinfo=None)

    for chosen, found in {
        "--since 1h": [PAUSED],
        "--until 1h": [WAITING],
        "--since 4h --until 2h": [WAITING],
        "--since 1000000w": [PAUSED, WAITING],
        f"--since {began.date() - timedelta(days=1)}": [PAUSED, WAITING],
        f"--since {began.date() + timedelta(days=2)}": [],
        f"--until {later - timedelta(hours=1):%Y-%m-%dT%H:%M}": [WAITING],
        f"--since {later - timedelta(hours=1):%Y-%m-%dT%H:%M:%S}+01:00": [PAUSED],
        "--key 'order 17'": [WAITING],
        "--key 'order 17' --namespace acme": [],
        f"--parent {WAITING}": [],
    }.items():
        answer = await here(f"executions list --ids --json {chosen}")
        assert answer.document["items"] == [str(each) for each in found], chosen
