"""`ff executions explain` names the reason and the remedy, and the remedy works."""

from datetime import timedelta

from flowfabric.engine import attempts, executions, workers
from tests.cli import scene
from tests.cli.conftest import Run
from tests.cli.scene import ASKING, LOST, PAUSED, RETRIED, UNSERVED, WAITING
from tests.given import Given

BLOCKED = {
    PAUSED: ("lane mail is paused since ", "by ada: the printer burns", "ff lanes resume mail"),
    UNSERVED: (
        "no live worker of lane models has {gpu, llm}",
        "nearest worker pool lacks {gpu}",
        "ff worker FILE.py:app --lanes models --capabilities gpu,llm",
    ),
    RETRIED: ("retry 1 of 3 at ", "after: connection refused", "nothing to do: it goes on at "),
    ASKING: ("has 0 of 1 approvals", "on waitpoint publish", f"ff waitpoints approve {ASKING} publish"),
    LOST: ("attempt 1 ran on pool (instance pool-1)", "its lease lapsed at ", "ff sweep --once"),
}


async def test_each_that_is_held_up_is_told_why_and_what_to_do(here: Run, given: Given) -> None:
    await scene.blocked(given)

    for execution_id, parts in BLOCKED.items():
        code, out, err = await here(f"executions explain {execution_id}")
        assert (code, err) == (0, "")
        assert all(part in out for part in parts), out
        assert len(out.splitlines()) == 2


async def test_what_it_says_to_type_releases_them(here: Run, given: Given) -> None:
    await scene.blocked(given)

    for execution_id in (PAUSED, ASKING):
        _, out, _ = await here(f"executions explain {execution_id}")
        remedy = out.splitlines()[1].strip().removeprefix("ff ")
        assert (await here(remedy, *(["--yes"] if "approve" in remedy else []))).code == 0
        assert (await executions.explain(given.conn, execution_id)).waits_for == "worker"


async def test_a_lane_that_nobody_serves_is_named(here: Run, given: Given) -> None:
    await given.submitted(execution_id=WAITING, lane="late mail")

    _, out, _ = await here(f"executions explain {WAITING}")

    assert out.splitlines()[1] == ("  no live worker serves lane late mail: ff worker FILE.py:app --lanes 'late mail'")


async def test_one_that_is_put_off_may_be_of_a_task_that_nobody_has(here: Run, given: Given) -> None:
    claim = await given.claimed(task="gret")
    await attempts.delay(given.conn, claim.fence, timedelta(seconds=5))

    _, out, _ = await here(f"executions explain {claim.execution_id}")

    assert out.startswith("delayed until ")
    assert out.endswith(" UTC; if it is put off again and again, no worker has a task gret: is the name right?\n")


async def test_one_that_runs_says_what_to_do_if_its_process_is_gone(here: Run, given: Given) -> None:
    await workers.register_worker(given.conn, given.worker, instance=given.instance, lanes=["default"])
    claim = await given.claimed()

    _, out, _ = await here(f"executions explain {claim.execution_id}")
    await here("workers mark-dead pool-1")

    assert out.endswith("if that process is gone: ff workers mark-dead pool-1\n")
    assert (await given.events(claim.execution_id))[-1] == "lease_revoked"
