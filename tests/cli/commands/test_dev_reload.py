"""`ff dev --reload`, as real processes: a changed file starts the worker again, and nothing is lost."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.engine import executions, workers
from flowfabric.ids import ExecutionId
from tests.cli.conftest import Run
from tests.given import Given
from tests.worker.scene import TIMEOUT, ends, until, written

SOURCE = """
import asyncio, threading
from pathlib import Path
from flowfabric import App, Context

app = App()

@app.task
async def hello(name: str) -> str:
    return f"hello {name}"

@app.task
async def wait(ctx: Context, path: str) -> str:
    return await ctx.step("wait", there, path)

async def there(path: str) -> str:
    Path(path + ".begun").touch()
    while not Path(path).exists():
        await asyncio.sleep(0)
    return "done"

@app.task
async def block() -> str:
    Path("blocked").touch()
    threading.Event().wait()
    return "never"
"""


class Dev:
    """A process `ff dev --reload`, and what it has printed to standard error."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self.process = process
        self.file = directory / "hello.py"
        self.said = ""

    async def says(self, text: str) -> None:
        """Wait until it has printed this since the last call."""
        assert self.process.stderr is not None
        async with asyncio.timeout(TIMEOUT):
            while text not in self.said:
                line = await self.process.stderr.readline()
                assert line, self.said
                self.said += line.decode()
        self.said = self.said.partition(text)[2]

    def change(self, source: str) -> None:
        self.file.write_text(source)


@pytest.fixture
async def dev(tmp_path: Path, database_url: str, given: Given) -> AsyncIterator[Dev]:
    written(tmp_path, SOURCE, "hello.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli", "dev", "hello.py:app", "--reload", "--drain", "300ms"),
        cwd=tmp_path,
        env=os.environ | {"FLOWFABRIC_URL": database_url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    await until(lambda: _instances(given))
    yield Dev(process, tmp_path)
    if process.returncode is None:
        process.terminate()
    await process.communicate()


async def test_changed_code_runs_after_the_change_and_what_ran_is_handed_back(
    dev: Dev, given: Given, tmp_path: Path
) -> None:
    assert await _result(given, await _hello(given)) == b'"hello ada"'
    running = await given.submitted(task="wait", payload=f'{{"path": "{tmp_path}/go"}}'.encode())
    await until((tmp_path / "go.begun").exists)
    dev.change(SOURCE.replace("hello {name}", "bye {name}").replace('"done"', '"done again"'))
    await dev.says("changed: hello.py; starting the worker again")
    (tmp_path / "go").touch()

    assert await _result(given, await _hello(given)) == b'"bye ada"'
    assert await _result(given, running) in (b'"done"', b'"done again"')  # it may have ended while it drained
    assert "lease_expired" not in await given.events(running)
    dev.process.terminate()
    assert (await ends(dev.process))[0] == 0
    assert await _instances(given) == []


async def test_code_that_cannot_be_loaded_stops_the_worker_until_the_next_change(dev: Dev, given: Given) -> None:
    dev.change(SOURCE + "def broken(:\n")
    await dev.says("SyntaxError")
    await dev.says("the worker has exited with code 1; it starts again when a Python file changes")
    waiting = await _hello(given)
    assert await _instances(given) == []
    (dev.file.parent / "notes.txt").write_text("this is no Python file")
    dev.change(SOURCE + "raise LookupError('no tide')\n")
    await dev.says("LookupError: no tide")
    await dev.says("it starts again when a Python file changes")
    dev.change(SOURCE)

    assert await _result(given, waiting) == b'"hello ada"'


async def test_a_worker_that_a_handler_blocks_is_killed_and_its_work_is_reclaimed(
    dev: Dev, given: Given, tmp_path: Path
) -> None:
    blocked = await given.submitted(task="block", payload=b"{}")
    await until((tmp_path / "blocked").exists)
    dev.change(SOURCE.replace("threading.Event().wait()", "pass"))
    await dev.says("the worker does not end; killing it")

    assert await _result(given, blocked) == b'"never"'


async def test_a_worker_that_dies_starts_again_with_the_next_change_and_ends_with_its_parent(
    dev: Dev, given: Given
) -> None:
    [first] = await _instances(given)
    os.kill(int(first.split(":")[1]), signal.SIGKILL)
    await dev.says("the worker has exited with code -9")
    dev.change(SOURCE)
    await until(lambda: _instances(given, but=first))
    dev.process.kill()

    await until(lambda: _none(given, but=first))


async def test_a_directory_that_does_not_exist_is_refused(ff: Run, tmp_path: Path) -> None:
    written(tmp_path, SOURCE, "hello.py")

    code, _, err = await ff("dev", "hello.py:app", "--reload-dir", "nowhere")
    assert (code, "Directory 'nowhere' does not exist" in err) == (2, True)


@pytest.mark.parametrize("place", ["nothing.py:app", "hello.py", "hello.py:"])
async def test_an_app_that_is_not_there_ends_it_at_once(ff: Run, tmp_path: Path, place: str) -> None:
    written(tmp_path, SOURCE, "hello.py")

    code, _, err = await ff("dev", place, "--reload")
    assert (code, err.partition(":")[0]) == (1, "cannot_load")


async def test_a_package_is_watched_from_the_working_directory(tmp_path: Path, database_url: str, given: Given) -> None:
    (tmp_path / "shop" / "parts").mkdir(parents=True)
    written(tmp_path / "shop", SOURCE, "tasks.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli", "dev", "shop.tasks:app", "--reload"),
        cwd=tmp_path,
        env=os.environ | {"FLOWFABRIC_URL": database_url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        await until(lambda: _instances(given))
        dev = Dev(process, tmp_path / "shop" / "parts")
        dev.change("size = 3\n")
        await dev.says("changed: shop/parts/hello.py; starting the worker again")
    finally:
        process.send_signal(signal.SIGINT)
        assert (await ends(process))[0] == 0


async def _hello(given: Given) -> ExecutionId:
    return await given.submitted(task="hello", payload=b'{"name": "ada"}')


async def _result(given: Given, execution_id: ExecutionId) -> bytes | None:
    await until(lambda: _ended(given, execution_id))
    return (await executions.get_result(given.conn, execution_id)).result


async def _ended(given: Given, execution_id: ExecutionId) -> bool:
    return (await executions.get_result(given.conn, execution_id)).outcome is not None


async def _instances(given: Given, but: str | None = None) -> list[str]:
    found = await workers.list_workers(given.conn)
    return [each.instance for each in found.items if each.instance != but]


async def _none(given: Given, but: str) -> bool:
    return not await _instances(given, but)
