"""The reference pages of the public API: signatures, docstrings, the meaning of parameters and fields, examples."""

import ast
import enum
import functools
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, is_typeddict

import msgspec

from docs import public
from docs.fields import FIELDS, VALUES
from docs.meanings import ATTRIBUTES, OBVIOUS, PARAMETERS, SHARED
from docs.signatures import Signature, constructor, protocol, signature, signatures
from docs.snippets import snippets
from flowfabric.app.decorators import StepDecorator, TaskDecorator
from flowfabric.errors import FlowFabricError
from flowfabric.ids import EntityId
from flowfabric.model import EventKind

GROUPS = {
    "Applications": ["App", "Task", "Step", "SubmitOptions", "Execution", "ExecutionId", "Worker", "Codec", "AesGcm"],
    "What a handler uses": [
        *(
            "Context",
            "Child",
            "Waiting",
            "Mapped",
            "First",
            "Signal",
            "Suspension",
            "Verdict",
            "Reservation",
            "Usage",
            "OutputStream",
            "metered",
        ),
        *("Connection", "log_execution"),
    ],
    "Flows": ["Flow", "Node", "FlowHandle"],
    "Exceptions": [
        *("FlowFabricError", "PermanentError", "BudgetExhausted", "ChildFailed"),
        *("ExecutionFailed", "ExecutionCancelled", "ExecutionExpired", "ExecutionSkipped"),
    ],
    "Without await": [
        *("SyncApp", "SyncTask", "SyncExecution", "SyncFlow", "SyncFlowHandle"),
        *("SyncContext", "SyncChild", "SyncReservation", "SyncOutputStream", "SyncConnection"),
    ],
    "What an app returns": [*public.RETURNED],
    "Options of an app": [*public.KEYWORDS],
}
CONSTRUCTED = {"App", "Worker", "AesGcm"}
CONSTANTS = {"events.OLDEST": "the cursor before the oldest event that is kept."}

API = """# Python API

Find a name that `flowfabric` exports here, with its signature, its parameters and an example. The other public names
are on [Engine operations](engine.md), [Types](model.md), [Testing](testing.md) and [Errors](errors.md). Everything
else is private and may change in any release. Below each description is a list of the parameters that the description
does not mention.

The examples use this app:

```python
{setup}
```
"""

ENGINE = """# Engine operations

Call an operation of the engine on a connection, for example in your own transaction:

```python
from flowfabric.engine import lanes

async with app.database.connection() as conn:
    await lanes.pause_lane(conn, "reports", by="ops")
```

Each operation is one call of one SQL function with the same name, so it is one round trip. An operation for many
items returns one answer per item: its result, or its error, which is returned and not raised. The types are on
[Types](model.md), the errors on [Errors](errors.md). The modules inside a concept are private: import from the
concept, such as `flowfabric.engine.lanes`.

| Concept | Operations |
|---|---|
{contents}

These parameters mean the same in every operation:

{shared}
"""

MODEL = """# Types

Look up the fields of what you pass to an [operation](engine.md) and what it returns. Import the types from
`flowfabric.model`. All of them are immutable. A field without a default is required.

| Concept | Types |
|---|---|
{contents}
"""

TESTING = """# Testing

Test your tasks with pytest on a real engine; [Test your tasks](../how-to/test-your-tasks.md) shows how.
`flowfabric.testing` has the names below; `Engine` and `StillWaiting` are in `flowfabric.testing.engine`,
`SyncEngine` and `SyncClock` are in `flowfabric.testing.sync`. The examples test this app:

```python
{setup}
```

## Fixtures

The plugin `pytest_flowfabric` is active wherever FlowFabric is installed beside pytest. In an `async def` test you
await the calls; in a `def` test the same calls block.
"""


def pages() -> dict[str, str]:
    """The pages, by their file names."""
    return {"api.md": _api(), "engine.md": _engine(), "model.md": _model(), "testing.md": _testing()}


def _api() -> str:
    names = {**public.app_names(), **public.RETURNED, **public.KEYWORDS}
    setup = "\n\n\n".join(snippets("app")[name] for name in ("App", "App.step", "App.task"))
    parts = [API.format(setup=setup)]
    for group, listed in GROUPS.items():
        parts.append(f"## {group}\n")
        for name in listed:
            parts += [f"### {name}\n", *_thing(name, names[name], "app", "####")]
    return "\n".join(parts)


def _engine() -> str:
    contents, parts = [], []
    for concept, module in public.concepts().items():
        operations = public.operations(module)
        linked = [f"[{name}](#{_slug(f'{concept}.{name}')})" for name in operations]
        contents.append(f"| [{concept}](#{concept}) | {', '.join(linked)} |")
        parts.append(f"## {concept}\n\n{_said(module)}\n")
        for name, operation in operations.items():
            parts += [f"### {concept}.{name}\n", *_thing(f"{concept}.{name}", operation, "engine", "####")]
    shared = "\n".join(f"- `{name}`: {meaning}" for name, meaning in SHARED.items())
    return "\n".join([ENGINE.format(contents="\n".join(contents), shared=shared), *parts])


def _model() -> str:
    by_concept: dict[str, list[str]] = defaultdict(list)
    parts = []
    for name, thing in public.model_names().items():
        module = getattr(thing, "__module__", "typing")
        by_concept["children" if module == "typing" else module.rpartition(".")[2]].append(f"[{name}](#{_slug(name)})")
        parts += [f"## {name}\n", *_type(name, thing), *_used_by(name)]
    contents = [f"| {concept} | {', '.join(names)} |" for concept, names in sorted(by_concept.items())]
    return "\n".join([MODEL.format(contents="\n".join(contents)), *parts])


def _testing() -> str:
    source = (Path(__file__).parent / "examples" / "testing.py").read_text()
    setup = source[source.index("app = App()") : source.index("\n\n\n# run_now")]
    parts = [TESTING.format(setup=setup)]
    for name, fixture in public.fixtures().items():
        returns = re.sub(r"^Iterator\[(.*)\]$", r"\1", fixture.returns)
        about = f"`{name}: {returns}`, once per {'test run' if fixture.scope == 'session' else 'test'}."
        parts += [f"### {name} (fixture)\n", f"{_linked(fixture.doc)}\n", f"{about}\n", *_example(name, "testing")]
    parts.append("## Names\n")
    for name, thing in public.testing_names().items():
        parts += [f"### {name}\n", *_thing(name, thing, "testing", "####")]
    return "\n".join(parts)


def _thing(name: str, thing: Any, file: str, heading: str) -> Iterator[str]:
    """A public name: a function, a class with its members, a type or a constant."""
    if inspect.isfunction(thing):
        yield from _function(name, thing, file)
    elif not inspect.isclass(thing):
        yield f"`{thing!r}`: {CONSTANTS[name]}\n"
        yield from _example(name, file)
    elif is_typeddict(thing) or issubclass(thing, msgspec.Struct | enum.Enum | EntityId):
        yield from _type(name, thing)
        yield from _example(name, file)
    else:
        if name in CONSTRUCTED:
            yield _code(constructor(name, thing).text)
        yield f"{_linked(_said(thing))}\n"
        yield from _parameters(name, [constructor(name, thing)] if name in CONSTRUCTED else [], _said(thing))
        yield from _attributes(name)
        members = public.members(name, thing)
        if snippets(file).get(name) not in [snippets(file).get(f"{name}.{member}") for member in members]:
            yield from _example(name, file)
        for member, what in members.items():
            yield f"{heading} {name}.{member}\n"
            yield from _member(f"{name}.{member}", what, file)


DECORATORS = {"App.task": TaskDecorator, "App.step": StepDecorator}


def _member(name: str, what: Any, file: str) -> Iterator[str]:
    if name in DECORATORS:
        made = name.removeprefix("App.")
        options = protocol(made, DECORATORS[name])
        yield _code(options._replace(returns=f"Callable[[Callable[P, R]], {made.title()}[P, R]]").text)
        yield f"{_linked(_said(what))}\n"
        yield from _parameters(name, [options], _said(what))
        yield from _example(name, file)
    elif isinstance(what, property):
        [found] = signatures(name, what.fget) if what.fget else []
        yield f"`{found.name}: {found.returns}`. {_linked(_said(what))}\n"
        yield from _example(name, file)
    else:
        yield from _function(name, what, file)


def _function(name: str, function: Any, file: str) -> Iterator[str]:
    shown, said = signatures(name, function), _said(function)
    yield _code("\n".join(each.text for each in shown))
    yield f"{_linked(said)}\n"
    yield from _parameters(name, shown, said, file)
    yield from _returns(shown)
    if file == "engine" and "Swept" in shown[0].returns:
        yield "A [sweep](../concepts/sweeps.md): workers call it in the background.\n"
    yield from _example(name, file)


def _returns(shown: list[Signature]) -> Iterator[str]:
    """What a function returns, with links to the types."""
    returns = " or ".join(dict.fromkeys(each.returns for each in shown))
    linked = sorted(_types(returns))
    if linked:
        is_plain = returns in public.model_names()
        yield f"Returns {linked[0]}.\n" if is_plain else f"Returns `{returns}`: {', '.join(linked)}.\n"


def _parameters(name: str, shown: list[Signature], said: str, file: str = "") -> Iterator[str]:
    """The parameters that neither the docstring nor the top of the page explains."""
    lines = {}
    for parameter in (parameter for each in shown for parameter in each.named):
        is_shared = parameter.name in OBVIOUS or (file == "engine" and parameter.name in SHARED)
        is_special = f"{name}.{parameter.name}" in PARAMETERS
        if (is_special or not is_shared) and f"`{parameter.name}`" not in said:
            types = sorted(_types(" ".join(parameter.types)))
            linked = f" ({', '.join(types)})" if types else ""
            lines[parameter.name] = f"- `{parameter.name}`{linked}: {meaning(name, parameter.name)}"
    if lines:
        yield "\n".join(lines.values()) + "\n"


def meaning(operation: str, parameter: str) -> str | None:
    """The meaning of a parameter of an operation."""
    return PARAMETERS.get(f"{operation}.{parameter}", PARAMETERS.get(parameter, SHARED.get(parameter)))


def _attributes(name: str) -> Iterator[str]:
    if name in ATTRIBUTES:
        lines = [f"- `{attribute}`: {said}" for attribute, said in ATTRIBUTES[name].items()]
        yield "\n".join(["Attributes:", "", *lines, ""])


def _example(name: str, file: str) -> Iterator[str]:
    if example := snippets(file).get(name):
        yield _code(example)


def _type(name: str, thing: Any) -> Iterator[str]:
    """A type with its fields or values."""
    if not inspect.isclass(thing):
        yield f"`{str(thing).replace('typing.', '').replace(chr(39), chr(34))}`{_colon(VALUES.get(name, ''))}\n"
        return
    yield f"{_linked(_said(thing))}\n"
    if thing is EventKind:
        yield "The values are listed in [Kinds of events](events.md).\n"
    elif issubclass(thing, enum.Enum):
        yield "\n".join(f'- `{each.name}` = `"{each.value}"`{_colon(_value(each))}' for each in thing) + "\n"
    else:
        lines = [f"- `{field}: {written}`{_colon(said)}" for field, written, said in fields(thing)]
        lines += [f"- `{each}: {_returned(what)}`{_colon(_said(what))}" for each, what in _properties(thing)]
        if lines:
            yield "\n".join(lines) + "\n"


def _value(value: enum.Enum) -> str:
    """The meaning of a value: the docstring below it, or the one in `docs/fields.py`."""
    _, said = source_fields(type(value))[value.name]
    return said or VALUES.get(f"{type(value).__name__}.{value.name}", "")


def fields(thing: type) -> Iterator[tuple[str, str, str]]:
    """The fields of a type: name, type with default, meaning."""
    for owner in reversed(thing.__mro__):
        for name, (written, said) in source_fields(owner).items():
            named = (FIELDS[f"{each.__name__}.{name}"] for each in thing.__mro__ if f"{each.__name__}.{name}" in FIELDS)
            yield name, written, said or next(named, FIELDS.get(name, ""))


@functools.cache
def source_fields(owner: type) -> Mapping[str, tuple[str, str]]:
    """The fields or values that a class itself defines: as they are written, and the docstring below."""
    if not owner.__module__.startswith("flowfabric"):
        return {}
    [node] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, tuple[str, str]] = {}
    for each, below in zip(node.body, [*node.body[1:], None], strict=True):
        said = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            said = inspect.cleandoc(str(below.value.value))
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value):
                default = "" if value is None else f" = {ast.unparse(value)}"
                found[name] = (f"{ast.unparse(kind)}{default}".replace("'", '"'), said)
            case ast.Assign(targets=[ast.Name(id=name)]) if not name.startswith("__"):
                found[name] = ("", said)
    return found


def _properties(thing: type) -> Iterator[tuple[str, property]]:
    for name, what in vars(thing).items():
        if isinstance(what, property) and not name.startswith("_"):
            yield name, what


def _returned(what: property) -> str:
    return signature("property", what.fget).returns if what.fget else ""


@functools.cache
def _users() -> Mapping[str, list[str]]:
    """The operations and types that have a type in their signature or fields."""
    users: dict[str, list[str]] = defaultdict(list)
    for concept, module in public.concepts().items():
        for name, operation in public.operations(module).items():
            if inspect.isfunction(operation):
                text = " ".join(f"{each.text} {each.returns}" for each in signatures(name, operation))
                for used in set(re.findall(r"\b[A-Z]\w+", text)):
                    users[used].append(f"[{concept}.{name}](engine.md#{_slug(f'{concept}.{name}')})")
    for name, thing in public.model_names().items():
        if inspect.isclass(thing) and issubclass(thing, msgspec.Struct):
            for used in set(re.findall(r"\b[A-Z]\w+", " ".join(written for _, written, _ in fields(thing)))):
                users[used].append(f"[{name}](#{_slug(name)})")
    return users


def _used_by(name: str) -> Iterator[str]:
    if users := _users().get(name):
        yield f"Used by {', '.join(users)}.\n"


def _types(text: str) -> set[str]:
    """Links to the types of the model that a signature names."""
    named = set(re.findall(r"\b[A-Z]\w+", text)) & public.model_names().keys() - public.app_names().keys()
    return {f"[{name}](model.md#{_slug(name)})" for name in named}


def _linked(said: str) -> str:
    """A docstring whose errors are links, and whose lines of code are a code block."""
    said = re.sub(r"`([A-Z]\w+)`", lambda found: _error(found[1]), said)
    parts = said.split("\n\n")
    return "\n\n".join(_code(re.sub(" +# ", "  # ", each)).rstrip() if _is_code(each) else each for each in parts)


def _error(name: str) -> str:
    kind = public.error_names().get(name)
    families = [] if kind is None else [each for each in FlowFabricError.__subclasses__() if issubclass(kind, each)]
    return (
        f"[`{name}`](errors.md#{_slug(f'{families[0].__name__}, {families[0].status}')})" if families else f"`{name}`"
    )


def _is_code(part: str) -> bool:
    try:
        ast.parse("async def part():\n" + textwrap.indent(part, "    "))
    except SyntaxError:
        return False
    return "\n" in part


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _colon(said: str) -> str:
    one_line = " ".join(said.split())
    return f": {_linked(one_line)}" if said else ""


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _said(thing: Any) -> str:
    return inspect.getdoc(thing) or ""
