"""The public names: what a program may import and use. Everything else is private and may change in any release."""

import ast
import functools
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple, is_typeddict

import msgspec

import flowfabric
from flowfabric import engine, errors, model, testing
from flowfabric.app.declarations import BudgetOptions, QuotaOptions
from flowfabric.app.operations import Operations
from flowfabric.app.schedules import TimingOptions
from flowfabric.app.subscriptions import EventLog, Subscription
from flowfabric.blocking import Sync
from flowfabric.errors import FlowFabricError
from flowfabric.ids import EntityId
from flowfabric.postgres.database import Database
from flowfabric.testing.engine import Engine, StillWaiting
from flowfabric.testing.sync import SyncClock, SyncEngine

RETURNED = {"Database": Database, "EventLog": EventLog, "Subscription": Subscription}
"""Classes that are not imported: a program gets their objects from `app.database` and `app.log`."""

KEYWORDS = {"BudgetOptions": BudgetOptions, "QuotaOptions": QuotaOptions, "TimingOptions": TimingOptions}
"""Options that an app takes as a mapping or as keyword arguments; not imported either."""

TESTING = {"Engine": Engine, "StillWaiting": StillWaiting, "SyncClock": SyncClock, "SyncEngine": SyncEngine}
"""What the fixtures return and raise; imported from their modules, because `flowfabric.testing` loads no worker."""

INTERNAL = {
    "App.client",
    "App.declare_schedules",
    "App.every_task",
    "App.find_task",
    "App.loop",
    "App.notifier",
    "App.notify",
    "App.tails",
    "App.wake_from_anywhere",
    "App.waiters",
    "Clock.pass_until",
    "Connection.add_listener",
    "Connection.add_termination_listener",
    "Connection.is_closed",
    "Connection.is_in_transaction",
    "Connection.remove_termination_listener",
    "Connection.transaction",
    "Context.asked",
    "Context.capturing_logs",
    "Context.leaving",
    "Context.close_output",
    "Context.unasked",
    "Context.unawaited",
    "Reservation.is_begun",
    "Mapped.is_begun",
    "Waiting.is_begun",
    "Mapped.take",
    "Mapped.settled",
    "Waiting.take",
    "Database.closing",
    "Database.own_connection",
    "Database.run_transaction",
    "Engine.close",
    "Engine.give_back",
    "EventLog.call",
    "EventLog.wait_beyond",
    "EventLog.waiting_count",
    "Execution.of",
    "Node.wait_for",
    "Task.child_call",
    "Task.submission_of",
    "Mapped.close",
    "Waiting.close",
    "Waiting.over",
    "Mapped.send",
    "Waiting.send",
    "Mapped.throw",
    "Waiting.throw",
    "Worker.busy",
}
"""Members without an underscore that are private: only other modules of FlowFabric use them."""

OF_SYNC = {"SyncApp": ["__call__", "close", "open"], "SyncChild": ["unwaited"], "SyncContext": ["unwaited"]}
"""The members of sync classes that their async classes do not have; the others are generated from those."""

OPERATORS = ("__call__", "__getitem__")


class Fixture(NamedTuple):
    """A fixture of the pytest plugin."""

    name: str
    scope: str
    returns: str
    doc: str


def concepts() -> dict[str, ModuleType]:
    """The modules of `flowfabric.engine`, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(engine.__path__))
    return {name: importlib.import_module(f"flowfabric.engine.{name}") for name in names}


def namespaces() -> dict[str, type]:
    """The namespaces of an app: `app.budgets` and the others."""
    own = vars(flowfabric.App).items()
    getters = {name: member.fget for name, member in own if isinstance(member, property) and member.fget}
    kinds = {name: typing.get_type_hints(getter)["return"] for name, getter in getters.items()}
    found = {name: kind for name, kind in kinds.items() if inspect.isclass(kind) and issubclass(kind, Operations)}
    return dict(sorted(found.items()))


def operations(concept: ModuleType) -> dict[str, Any]:
    """What a concept exposes: the names in its `__all__`, or the functions that its single module defines."""
    listed = getattr(concept, "__all__", None)
    if listed is None:
        own = inspect.getmembers(concept, lambda thing: getattr(thing, "__module__", "") == concept.__name__)
        listed = [name for name, thing in own if inspect.isfunction(thing) and not name.startswith("_")]
    return {name: getattr(concept, name) for name in sorted(listed)}


def app_names() -> dict[str, Any]:
    """What `flowfabric` exports."""
    return {name: getattr(flowfabric, name) for name in sorted(flowfabric.__all__)}


def model_names() -> dict[str, Any]:
    """The types of `flowfabric.model`."""
    return {name: getattr(model, name) for name in sorted(model.__all__)}


def error_names() -> dict[str, type[FlowFabricError]]:
    """The classes of `flowfabric.errors`."""
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: thing for name, thing in found if issubclass(thing, FlowFabricError)}


def testing_names() -> dict[str, Any]:
    """What `flowfabric.testing` exports, and what its fixtures return and raise."""
    return dict(sorted({**{name: getattr(testing, name) for name in testing.__all__}, **TESTING}.items()))


@functools.cache
def fixtures() -> Mapping[str, Fixture]:
    """The fixtures of the pytest plugin, by name."""
    source = inspect.getsource(importlib.import_module("pytest_flowfabric"))
    found = {}
    for node in ast.parse(source).body:
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else []:
            written = ast.unparse(decorator)
            if isinstance(node, ast.FunctionDef) and written.startswith("pytest.fixture"):
                scope = "session" if "session" in written else "function"
                returns = ast.unparse(node.returns).strip("'") if node.returns else "None"
                found[node.name] = Fixture(node.name, scope, returns, ast.get_docstring(node) or "")
    return dict(sorted(found.items()))


def members(owner: str, thing: Any) -> dict[str, Any]:
    """The public methods and properties of a class, in the order of its source; the keys of a mapping."""
    if is_typeddict(thing):
        return dict(sorted(thing.__annotations__.items()))
    if not inspect.isclass(thing) or issubclass(thing, msgspec.Struct | Exception | EntityId):
        return {}
    if issubclass(thing, Sync):
        return {name: inspect.getattr_static(thing, name) for name in OF_SYNC.get(owner, [])}
    return {
        name: member.__func__ if isinstance(member, classmethod | staticmethod) else member
        for name, member in vars(thing).items()
        if _is_public(owner, name) and (callable(member) or isinstance(member, property | classmethod | staticmethod))
    }


def _is_public(owner: str, name: str) -> bool:
    return (name in OPERATORS or not name.startswith("_")) and f"{owner}.{name}" not in INTERNAL


def sections() -> Iterator[tuple[str, list[str]]]:
    """Every public name by its module, for the list that a test compares."""
    yield "flowfabric", _with_members(app_names())
    yield "returned by an app", _with_members(RETURNED)
    yield "options of an app", _with_members(KEYWORDS)
    found = namespaces().items()
    yield "operations of an app", [f"{name}.{each}" for name, kind in found for each in members("", kind)]
    for name, concept in concepts().items():
        yield f"flowfabric.engine.{name}", [*operations(concept)]
    yield "flowfabric.errors", [*error_names()]
    yield "flowfabric.model", [*model_names()]
    yield "flowfabric.testing", _with_members(testing_names())
    yield "pytest fixtures", [*fixtures()]


def _with_members(names: Mapping[str, Any]) -> list[str]:
    return [
        each
        for name, thing in names.items()
        for each in (name, *sorted(f"{name}.{member}" for member in members(name, thing)))
    ]


def text() -> str:
    """The list as a file."""
    return "\n".join(f"{module}\n" + "".join(f"    {name}\n" for name in names) for module, names in sections())
