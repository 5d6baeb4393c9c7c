"""`ff worker`, as separate processes."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from flowfabric.engine import executions, workers
from flowfabric.ids import ExecutionId
from tests.cli.conftest import Run
from tests.given import Given
from tests.worker.scene import TIMEOUT, ends, says, until, worker_process, written

SOURCE = """
import asyncio
from pathlib import Path
from flowfabric import App

app = App()

@app.task
async def hello(name: str) -> str:
    return f"hello {name}"

@app.task(lane="slow")
async def wait_for(path: str) -> str:
    Path(path + ".begun").touch()
    while not Path(path).exists():
        await asyncio.sleep(0)
    return "done"
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    return written(tmp_path, SOURCE)


async def test_it_runs_the_tasks_of_an_app(place: str, database_url: str, given: Given) -> None:
    async with worker_process(database_url, place, "--name", "reports"):
        assert await result(given, await hello(given)) == '"hello world"'
        [worker] = (await workers.list_workers(given.conn)).items

    assert (worker.worker, worker.lanes) == ("reports", ["default", "slow"])


async def test_what_a_handler_logs_names_its_execution(tmp_path: Path, database_url: str, given: Given) -> None:
    source = "import logging\n" + SOURCE.replace(
        '    return f"hello', '    logging.getLogger("shop").info("here")\n    return f"hello'
    )
    async with worker_process(database_url, written(tmp_path, source)) as process:
        execution_id = await hello(given)
        assert await result(given, execution_id) == '"hello world"'
        process.terminate()
        _, err = await ends(process)

    assert f" INFO shop: [hello {execution_id} attempt 1] here\n" in err.decode()


async def test_its_options_reach_the_worker(place: str, database_url: str, given: Given) -> None:
    options = ["--lanes", "default,mail", "--capabilities", "gpu,llm", "--namespace", "acme", "--lease", "5s"]
    async with worker_process(database_url, place, *options, "--concurrency", "1", "--drain", "1s", "--no-sweeps"):
        [worker] = (await workers.list_workers(given.conn)).items

    assert (worker.lanes, worker.capabilities) == (["default", "mail"], ["gpu", "llm"])
    assert (worker.namespace, (worker.expires_at - worker.beat_at).total_seconds()) == ("acme", 5.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_executions_finish(
    place: str, database_url: str, given: Given, tmp_path: Path, number: signal.Signals
) -> None:
    async with worker_process(database_url, place) as process:
        execution_id = await wait_for(given, tmp_path / "go")
        await until((tmp_path / "go.begun").exists)
        process.send_signal(number)
        await until(lambda: _is_stopping(process))
        later = await hello(given)
        (tmp_path / "go").touch()
        code, err = await ends(process)

    assert code == 0, err
    assert await result(given, execution_id) == '"done"'
    assert (await given.events(later)) == ["execution_submitted"]
    assert await given.count("workers") == 0


async def test_executions_that_do_not_finish_in_time_are_released_and_claimable_at_once(
    place: str, database_url: str, given: Given, tmp_path: Path
) -> None:
    async with worker_process(database_url, place, "--drain", "100ms") as process:
        execution_id = await wait_for(given, tmp_path / "go")
        await until((tmp_path / "go.begun").exists)
        process.terminate()
        assert (await ends(process))[0] == 0

    assert (await given.events(execution_id))[-1] == "execution_delayed"
    [claim] = await given.claim(lanes=["slow"])
    assert (claim.attempt.number, claim.attempt.type, claim.resumed) == (1, "initial", True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_immediately(
    place: str, database_url: str, given: Given, tmp_path: Path, number: signal.Signals
) -> None:
    async with worker_process(database_url, place, "--drain", "1h") as process:
        await wait_for(given, tmp_path / "go")
        await until((tmp_path / "go.begun").exists)
        process.send_signal(number)
        await until(lambda: _is_stopping(process))
        process.send_signal(number)
        code, _ = await ends(process)

    assert code == -number


async def test_several_processes_are_restarted_and_stopped_together(
    place: str, database_url: str, given: Given
) -> None:
    async with worker_process(database_url, place, "--processes", "2") as process:
        await says(process, b"working as ")
        first, second = (await workers.list_workers(given.conn)).items
        os.kill(pid_of(first.instance), signal.SIGKILL)
        await says(process, b"working as ")
        left = {each.instance for each in (await workers.list_workers(given.conn)).items} - {first.instance}
        process.terminate()
        code, err = await ends(process)

    assert second.instance in left
    assert len(left) == 2
    assert code == 0
    assert b"a worker process exited with code -9; starting a new one in 0.5 s" in err
    assert not any(_lives(pid_of(instance)) for instance in left)


async def test_children_end_with_a_parent_that_is_killed(place: str, database_url: str, given: Given) -> None:
    async with worker_process(database_url, place, "--processes", "2") as process:
        await says(process, b"working as ")
        children = [pid_of(each.instance) for each in (await workers.list_workers(given.conn)).items]
        process.kill()
        await until(lambda: not any(map(_lives, children)))

    assert len(children) == 2
    assert await given.count("workers") == 0


async def test_it_describes_itself_in_json(place: str, database_url: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric.cli", "worker", place, "--json"),
            env=os.environ | {"FLOWFABRIC_URL": database_url},
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        document = msgspec.json.decode(await process.stdout.readline())
        process.terminate()
        await process.wait()

    assert document.keys() == {"instance", "lanes", "tasks"}
    assert (document["lanes"], document["tasks"]) == (["default", "slow"], ["hello", "wait_for"])


async def test_a_database_that_is_not_migrated_is_an_error(place: str, empty_url: str, ff: Run) -> None:
    code, out, err = await ff("worker", place, FLOWFABRIC_URL=empty_url)

    assert (code, out) == (1, "")
    assert err.startswith("schema_behind: ")
    assert err.count("\n") == 1


async def test_an_app_can_import_its_neighbours(tmp_path: Path, database_url: str, given: Given) -> None:
    written(tmp_path, "GREETING = 'good morning'\n", "words.py")
    source = SOURCE.replace("import asyncio", "import asyncio\nimport words").replace(
        "hello {name}", "{words.GREETING}"
    )

    async with worker_process(database_url, written(tmp_path, source)):
        assert await result(given, await hello(given)) == '"good morning"'


@pytest.mark.parametrize("option", [["--lease", "soon"], ["--concurrency", "0"], ["--processes", "no"]])
async def test_an_invalid_option_is_wrong_usage(ff: Run, place: str, option: list[str]) -> None:
    code, out, err = await ff("worker", place, *option)

    assert (code, out) == (2, "")
    assert f"Invalid value for '{option[0]}'" in err


async def test_a_lease_that_is_too_long_is_an_error(ff: Run, place: str, database_url: str) -> None:
    code, _, err = await ff("worker", place, "--lease", "2h", "--json", FLOWFABRIC_URL=database_url)

    error = msgspec.json.decode(err.splitlines()[-1])
    assert (code, error["error"]) == (1, "invalid_lease")
    assert "7200000" in error["message"]


async def hello(given: Given) -> ExecutionId:
    return await given.submitted(task="hello", payload=b'{"name": "world"}')


async def wait_for(given: Given, path: Path) -> ExecutionId:
    return await given.submitted(task="wait_for", lane="slow", payload=msgspec.json.encode({"path": str(path)}))


async def result(given: Given, execution_id: ExecutionId) -> str:
    async def ended() -> bool:
        return (await executions.get_result(given.conn, execution_id)).outcome is not None

    await until(ended)
    return ((await executions.get_result(given.conn, execution_id)).result or b"").decode()


async def _is_stopping(process: asyncio.subprocess.Process) -> bool:
    """Whether it has received the first signal: it then logs how many executions it lets finish."""
    assert process.stderr is not None
    line = await process.stderr.readline()
    return b"is stopping" in line


def pid_of(instance: str) -> int:
    return int(instance.split(":")[1])


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
