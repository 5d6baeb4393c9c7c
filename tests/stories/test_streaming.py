"""The example of streaming: a reader sees the right text although the worker was killed while it was written."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from tests.stories.test_examples import ENVIRONMENT, EXAMPLES, run

PLAN = "1. the moon, 2. the sun, 3. the coast\n"
FIRST = "Tides are moved by the moon, as sailors have always said,\nand you can watch it twice a day"
SECOND = "The moon pulls the sea towards it, and the sun helps a little.\nThe coast decides how high the water rises.\n"
RIGHT = "read as it was returned: True\n"


def test_what_a_killed_worker_has_written_after_the_last_saved_step_is_replaced(tmp_path: Path) -> None:
    said = run(tmp_path, "streaming.py")

    before, void, after = re.split(r"\n-- attempt 2 replaces attempt 1; void: (.*) --\n", said)
    assert before.startswith(PLAN + FIRST)
    assert PLAN + eval(void) == before
    assert after == SECOND + RIGHT


def test_on_a_terminal_the_replaced_text_is_erased(tmp_path: Path) -> None:
    outside, inside = pty.openpty()
    command = [sys.executable, str(EXAMPLES / "streaming.py")]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=inside, stderr=inside) as process:
        os.close(inside)
        said = read(outside)
    assert process.returncode == 0, said

    first, second = said.split("\x1b[1F\x1b[J")  # up one line, and erase from there to the end
    assert first.startswith(PLAN + FIRST)
    assert first.count("\n") == 2
    assert second == SECOND + RIGHT


def read(terminal: int) -> str:
    """Everything that is written to a terminal until its last program ends."""
    said = b""
    while True:
        try:
            said += os.read(terminal, 65_536)
        except OSError:
            os.close(terminal)
            return said.decode().replace("\r\n", "\n")
