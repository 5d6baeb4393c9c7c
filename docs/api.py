"""The reference of the Python API: every public name with its signature and what its docstring says."""

import inspect
from collections.abc import Iterator
from typing import Any

import msgspec

import flowfabric

BEGINNING = """# Python API

Everything that `flowfabric` exports. What is not here is not public and may change in any release. The refusals are
listed in [errors](errors.md); `flowfabric.testing` is explained in [testing your tasks](../how-to/test-your-tasks.md).
"""

BETWEEN_MODULES = {
    "App.declare_schedules",
    "App.send",
    "App.send_many",
    "App.tell_ended",
    "Context.asked",
    "Context.unasked",
    "Node.wait_for",
    "Task.asking",
    "Task.child_call",
}
"""What has a public name only because another module of ours calls it."""


def page() -> str:
    """The whole page."""
    return "\n".join([BEGINNING, *(line for name in flowfabric.__all__ for line in _thing(name))])


def _thing(name: str) -> Iterator[str]:
    thing = getattr(flowfabric, name)
    yield f"## {name}\n"
    yield f"{_said(thing)}\n"
    if not inspect.isclass(thing) or issubclass(thing, Exception):
        return
    if issubclass(thing, msgspec.Struct):
        yield "".join(f"- `{field.name}: {_type(field.type)}`\n" for field in msgspec.structs.fields(thing))
        return
    for member, what in vars(thing).items():
        if not member.startswith("_") and f"{name}.{member}" not in BETWEEN_MODULES:
            yield from _member(name, member, what)


def _member(owner: str, name: str, what: Any) -> Iterator[str]:
    if isinstance(what, property):
        yield f"### {owner}.{name}\n"
        yield f"{_said(what)}\n"
    elif inspect.isfunction(what):
        yield f"### {owner}.{name}{_signature(what)}\n"
        yield f"{_said(what)}\n"


def _signature(function: Any) -> str:
    """The names of the parameters and their defaults: what to write, which is what a heading has room for."""
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self"
    ]
    try:
        return str(inspect.Signature(shown))
    except ValueError:  # without `self` nothing is left of a rule about the order
        return "(" + ", ".join(map(str, shown)) + ")"


def _type(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation).replace("typing.", "")


def _said(thing: Any) -> str:
    return inspect.getdoc(thing) or ""
