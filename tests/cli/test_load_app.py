"""Loading the app behind `file.py:app` or `package.module:app`."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.worker.scene import written

SOURCE = """
import asyncio
from flowfabric import App

app = App()
"""


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ("nowhere.py:app", ["file 'nowhere.py' does not exist"]),
        ("nowhere.tasks:app", ["module 'nowhere' does not exist"]),
        ("good.py", ["'good.py'", "file.py:app"]),
        ("good.py:ap", ["'ap'", "did you mean good.py:app?"]),
        ("good:ap", ["'ap'", "did you mean good:app?"]),
        ("good.py:asyncio", ["good.py:asyncio is a module", "flowfabric.App()"]),
        ("broken.py:app", ["broken.py", '\n  File "', "No module named 'not_there'\n"]),
        ("broken:app", ["broken", '\n  File "', "No module named 'not_there'\n"]),
        ("leaves.py:app", ["leaves.py", '\n  File "', "SystemExit: left\n"]),
    ],
)
async def test_an_app_that_does_not_load_is_an_error_with_the_reason(
    ff: Run, tmp_path: Path, place: str, parts: list[str]
) -> None:
    written(tmp_path, SOURCE, "good.py")
    written(tmp_path, "import not_there\n", "broken.py")
    written(tmp_path, "raise SystemExit('left')\n", "leaves.py")

    code, out, err = await ff("worker", place)

    assert (code, out) == (1, "")
    assert err.startswith("cannot_load: ")
    assert [part for part in parts if part not in err] == [], err
    assert "importlib" not in err
