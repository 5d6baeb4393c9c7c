"""The reference pages explain every public name, and their examples work."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Any

import asyncpg
import msgspec
import pytest

from docs import api, public
from docs.examples import engine as engine_examples
from docs.fields import FIELDS
from docs.meanings import ATTRIBUTES, OBVIOUS, PARAMETERS, SHARED
from docs.signatures import constructor, protocol, signatures
from docs.snippets import snippets
from flowfabric.engine import budgets, flows, quotas, schedules, waits
from flowfabric.ids import EntityId, mint_execution_id
from flowfabric.model import EventKind, Options, Submission, Suspension, Timing
from tests.given import Given

PAGES = api.pages()
OPERATIONS = {
    f"{concept}.{name}": operation
    for concept, module in public.concepts().items()
    for name, operation in public.operations(module).items()
}
APP = {**public.app_names(), **public.RETURNED, **public.KEYWORDS}
TESTING = public.testing_names()


def described() -> Iterator[tuple[str, str, str, Any]]:
    """Everything with a heading of its own: its page, the file of its example, its name and the thing itself."""
    yield from (("engine.md", "engine", name, thing) for name, thing in OPERATIONS.items())
    for page, file, names in (("api.md", "app", APP), ("testing.md", "testing", TESTING)):
        for name, thing in names.items():
            yield page, file, name, thing
            if not inspect.isclass(thing) or not msgspec.inspect.is_struct_type(thing):
                members = {} if name in public.KEYWORDS or name == "SubmitOptions" else public.members(name, thing)
                yield from ((page, file, f"{name}.{member}", what) for member, what in members.items())


def functions() -> Iterator[tuple[str, Any]]:
    """Every public function and method, and what is called like one."""
    for _, _, name, thing in described():
        if inspect.isfunction(thing):
            yield name, signatures(name, thing)
    for name in api.CONSTRUCTED:
        yield name, [constructor(name, APP[name])]
    for name, decorator in api.DECORATORS.items():
        yield name, [protocol(name, decorator)]


def test_every_name_has_a_heading_a_docstring_and_an_example() -> None:
    for page, file, name, thing in described():
        assert re.search(rf"^#+ {re.escape(name)}$", PAGES[page], re.MULTILINE), name
        assert not callable(thing) or inspect.getdoc(thing), name
        assert name in snippets(file), f"{name} needs an example in docs/examples/{file}.py"


def test_every_fixture_has_a_heading_a_docstring_and_an_example() -> None:
    for name, fixture in public.fixtures().items():
        assert f"### {name} (fixture)\n\n" in PAGES["testing.md"]
        assert fixture.doc
        assert name in snippets("testing")


def test_every_group_of_the_page_is_complete() -> None:
    assert sorted(name for group in api.GROUPS.values() for name in group) == sorted(APP)


@pytest.mark.parametrize("file", ["app", "engine", "testing"])
def test_every_example_is_python_of_something_public(file: str) -> None:
    names = {name for _, where, name, _ in described() if where == file}
    names |= {*public.fixtures()} if file == "testing" else set()

    assert snippets(file).keys() - names == set()
    for name, snippet in snippets(file).items():
        ast.parse("async def example():\n" + textwrap.indent(snippet, "    "))
        assert snippet, name


def test_every_parameter_is_explained() -> None:
    used = set[str]()
    for name, shown in functions():
        for parameter in {parameter.name for each in shown for parameter in each.named}:
            assert parameter in OBVIOUS or api.meaning(name, parameter), (
                f"{name}: say in docs/meanings.py what {parameter} means"
            )
            used |= {parameter, f"{name}.{parameter}"}

    assert (PARAMETERS.keys() | SHARED.keys() | OBVIOUS) - used == set(), "no parameter has these names"


def test_every_field_is_explained() -> None:
    used = set[str]()
    for name, thing in (*public.model_names().items(), *APP.items()):
        if inspect.isclass(thing) and (
            msgspec.inspect.is_struct_type(thing)
            or issubclass(thing, EntityId)
            or name in (*public.KEYWORDS, "SubmitOptions")
        ):
            for field, _, said in api.fields(thing):
                assert said, f"{name}: say in docs/fields.py what {field} means"
                used |= {field, *(f"{owner.__name__}.{field}" for owner in thing.__mro__)}

    assert FIELDS.keys() - used == set(), "no field has these names"


def test_every_attribute_exists() -> None:
    for owner, attributes in ATTRIBUTES.items():
        source = inspect.getsource({**APP, **TESTING}[owner])
        for attribute in attributes:
            assert re.search(rf"\b{attribute.partition(':')[0]}\b", source), f"{owner}.{attribute}"


def test_every_value_of_an_enum_is_listed() -> None:
    for name, thing in public.model_names().items():
        if inspect.isclass(thing) and issubclass(thing, StrEnum) and thing is not EventKind:
            section = PAGES["model.md"].partition(f"\n## {name}\n")[2].partition("\n## ")[0]
            assert [value for value in thing if f'= `"{value}"`' not in section] == [], name


async def test_every_example_of_the_engine_runs(conn: asyncpg.Connection, given: Given) -> None:
    scene = await _scene(conn, given)
    failed = {}
    for name, snippet in snippets("engine").items():
        transaction = conn.transaction()
        await transaction.start()
        try:
            await _run(snippet, scene)
        except Exception as error:
            failed[name] = error
        finally:
            await transaction.rollback()

    assert failed == {}


async def _run(snippet: str, scene: dict[str, Any]) -> None:
    body = textwrap.indent(snippet, "    ").replace("print(", "str(")
    names = {**vars(engine_examples), "str": lambda *shown: None}
    exec(f"async def example({', '.join(scene)}):\n{body}\n", names)  # the page shows these lines
    await names["example"](**scene)


async def _scene(conn: asyncpg.Connection, given: Given) -> dict[str, Any]:
    """The objects that the examples are about."""
    await budgets.create_budget(conn, "team-a", hard_limits={"tokens": 1_000_000})
    await quotas.create_quota(conn, "model", max_concurrent=20)
    hourly = Timing(every=timedelta(hours=1))
    await schedules.create_schedule(conn, "hourly", Submission(options=Options(task="report")), hourly)
    suspended = await given.claimed(lane="approvals")
    publish = {"kind": "single", "waitpoint": "publish", "name": "approve"}
    wish = Suspension(
        condition=publish, waitpoints=["publish"], reason_code="waiting_for_approval", about=b'{"amount":30}', bind=True
    )
    await waits.suspend(conn, suspended.fence, wish)
    flow = await flows.create_flow(conn, "report")
    first, second = [
        (await flows.add_execution(conn, flow.flow_id, Submission(options=Options(task=task, lane="flows"))))
        for task in ("search", "write")
    ]
    return {
        "conn": conn,
        "claim": await given.claimed(lane="running"),
        "running_id": (await given.claimed(lane="revoked")).execution_id,
        "ended_id": await given.completed(b"12", lane="ended"),
        "suspended_id": suspended.execution_id,
        "child_id": mint_execution_id(),
        "flow_id": flow.flow_id,
        "first_id": first.execution_id,
        "second_id": second.execution_id,
        "execution_id": await given.submitted(lane="reports"),
    }
