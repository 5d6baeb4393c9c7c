"""The public names: they change only on purpose, and everything else says that it is private."""

import ast
import inspect
import os
from pathlib import Path

import pytest

from docs import public
from tests.sources import SRC

NAMES = Path(__file__).parent / "public_names.txt"
WRITING = os.environ.get("SNAPSHOTS") == "write"

PUBLIC = {"__init__", "engine", "errors", "model", "testing"}
PACKAGES = sorted(folder.name for folder in SRC.iterdir() if (folder / "__init__.py").exists())
MODULES = sorted(file.stem for file in SRC.glob("*.py"))

# Functions of the engine that need no database.
WITHOUT_CONNECTION = {
    "budgets.exhausted",
    "events.completions",
    "events.lease_history",
    "events.operator_acts",
    "events.signal_deliveries",
    "events.timeline",
    "schedules.check_timing",
    "schedules.submission_of",
}
# Optional parameters before the star: the subject of the call, which reads better without its name.
POSITIONAL_OPTIONS = {
    "attempts.complete.result",
    "attempts.delay.until",
    "events.read_events.cursor",
    "events.read_events.filter",
    "flows.set_flow_tag.value",
    "flows.submit_flow.edges",
    "flows.submit_flow.groups",
}


def test_the_public_names_are_these() -> None:
    if WRITING:
        NAMES.write_text(public.text())
    # If the change is intended: SNAPSHOTS=write make test ARGS=tests/test_public_api.py
    assert public.text().splitlines() == NAMES.read_text().splitlines()


def test_every_internal_member_exists() -> None:
    classes = {**public.app_names(), **public.RETURNED, **public.testing_names()}

    assert [path for path in public.INTERNAL if not hasattr(classes[path.split(".")[0]], path.split(".")[1])] == []


@pytest.mark.parametrize("package", sorted({*PACKAGES} - PUBLIC))
def test_a_private_package_says_so(package: str) -> None:
    first, *_ = _docstring(SRC / package / "__init__.py").splitlines()

    assert first[:7] == "Private"


@pytest.mark.parametrize("module", sorted({*MODULES} - PUBLIC))
def test_a_private_module_says_so(module: str) -> None:
    first, *_ = _docstring(SRC / f"{module}.py").splitlines()

    assert "Private" in first


def test_the_package_names_what_is_public() -> None:
    said = _docstring(SRC / "__init__.py")

    assert [name for name in PUBLIC - {"__init__"} if f"`flowfabric.{name}`" not in said] == []


def test_operations_take_the_connection_first_and_options_by_name() -> None:
    without, positional = set(), set()
    for concept, module in public.concepts().items():
        for name, operation in public.operations(module).items():
            if inspect.isfunction(operation):
                parameters = inspect.signature(operation).parameters
                if next(iter(parameters), "") != "conn":
                    without.add(f"{concept}.{name}")
                for each in parameters.values():
                    if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is not each.empty:
                        positional.add(f"{concept}.{name}.{each.name}")

    assert without == WITHOUT_CONNECTION
    assert positional == POSITIONAL_OPTIONS


def test_a_concept_exports_every_operation_of_its_modules() -> None:
    for concept, module in public.concepts().items():
        for file in (SRC / "engine" / concept).glob("*.py"):
            functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.AsyncFunctionDef)]
            taking = {node.name for node in functions if node.args.args and node.args.args[0].arg == "conn"}
            public_ones = {name for name in taking if not name.startswith("_")}
            assert public_ones - public.operations(module).keys() == set(), file.name


def test_the_engine_lists_its_concepts() -> None:
    said = _docstring(SRC / "engine" / "__init__.py")

    assert [concept for concept in public.concepts() if f"\n    {concept} " not in said] == []


def _docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text()), clean=False) or ""
