"""`ff executions describe --tree`: an execution with its children."""

import re

from tests.cli import scene
from tests.cli.conftest import Run
from tests.cli.scene import CHILDREN, PARENT
from tests.given import Given


async def test_a_tree_has_a_line_for_each_child_and_counts_those_that_do_not_fit(here: Run, given: Given) -> None:
    await scene.family(given)

    code, out, _ = await here(f"executions describe {PARENT} --tree")
    top, *lines, rest = out.splitlines()
    assert code == 0
    assert re.fullmatch(rf"{PARENT} report completed in \S+", top)
    assert len(lines) == 20
    assert re.fullmatch(rf"├── {CHILDREN[1]} page\\x1b\[31m failed in \S+: no \\x1b\[31mtide", lines[0])
    assert lines[1].startswith(rf"├── {CHILDREN[3]} page\x1b[31m active: attempt 1 runs on pool (instance ")
    assert [line.split()[3] for line in lines[2:]] == ["waiting:"] * 18
    counts = "1 active, 2 completed, 1 failed, 21 waiting"
    assert rest == f"└── 5 more; of 25: {counts}; ff executions list --parent {PARENT}"


async def test_an_execution_without_children_is_a_tree_of_one_line(here: Run, given: Given) -> None:
    execution_id = await given.submitted()

    _, out, _ = await here(f"executions describe {execution_id} --tree")
    assert out.startswith(f"{execution_id} report waiting: ")
    assert len(out.splitlines()) == 1


async def test_a_tree_in_json_is_nested(here: Run, given: Given) -> None:
    await scene.family(given)

    tree = (await here(f"executions describe {PARENT} --tree --json")).document
    assert tree["child_states"] == {"active": 1, "completed": 2, "failed": 1, "waiting": 21}
    assert (tree["child_count"], len(tree["children"])) == (25, 20)
    assert tree["children"][0]["execution"]["parent_id"] == str(PARENT)
