"""Write the namespaces of an app, such as `app.budgets`, from the operations of the engine; a part of `make sync`.

The table of operations is `flowfabric.calls.operations`. A method of a namespace is an operation without its
connection. It has the operation's name without the noun that the namespace has already: `budgets.create_budget` is
`app.budgets.create`. Ids and durations may be given as text, results and payloads as values. Operations that need more
than that are written by hand, with the app as the first parameter.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flowfabric.calls.operations import NAMESPACES, Operation
from tools.ruff import formatted

SRC = Path(__file__).parent.parent / "src" / "flowfabric"
WRITTEN = SRC / "app" / "namespaces.py"

Function = ast.FunctionDef | ast.AsyncFunctionDef


# Parameters that a namespace does not have, with what it passes; without a value, the default of the operation.
LEFT_OUT = {
    "conn": "conn",
    "payload_limit": "self._app.config.payload_limit",
    "result_limit": "self._app.config.payload_limit",
    "create_budget.partitions": "self._app.config.budget_partitions",
    "create_quota.partitions": "self._app.config.quota_partitions",
    **dict.fromkeys(["advance", "encoding", "fence", "fire_schedule.execution_id", "step"], None),
}
FENCED = {"`FenceRequired`", "`LeaseLost`", "`ExecutionNotActive`", "`TooManySteps`", "`InvalidName`"}
SAID_OF_LEFT_OUT = ("`advance`", "`step`", "`execution_id`", "lease it ends", "connection is in a transaction")

# How a parameter of a type is given, and what is passed for it.
GIVEN = {
    "ExecutionId": ("str | ExecutionId", "to_execution_id({})"),
    "ExecutionId | None": ("str | ExecutionId | None", "None if {0} is None else to_execution_id({0})"),
    "ExecutionId | Submission": (
        "str | ExecutionId | Submission",
        "{0} if isinstance({0}, Submission) else to_execution_id({0})",
    ),
    "FlowId": ("str | FlowId", "to_flow_id({})"),
    "FlowId | None": ("str | FlowId | None", "None if {0} is None else to_flow_id({0})"),
    "bytes | None": ("object", "encoded({})"),
    "timedelta": ("str | timedelta", "read_duration({})"),
    "timedelta | None": ("str | timedelta | None", "None if {0} is None else read_duration({0})"),
    "timedelta | datetime | None": ("str | timedelta | datetime | None", "read_time({})"),
}

HEAD = '''"""The namespaces of an app: the engine without a connection. Written by `make sync`; do not edit.

A method does what the operation does, on a connection of the app, and sends the notifications that it returns.
"""

from __future__ import annotations

import builtins
'''


class Source(NamedTuple):
    """An operation: its function, and the imports of its module by name."""

    operation: Operation
    function: Function
    imports: dict[str, str]


def text() -> str:
    """The text of the file."""
    imports, classes = set[str](), []
    for namespace in NAMESPACES:
        classes.append(f'class {namespace.name}(Operations):\n    """{namespace.about}."""\n\n    __slots__ = ()\n')
        for operation in namespace.operations:
            source = _source(operation)
            imports |= {*source.imports.values()}
            classes.append(_method(source, namespace.method(operation)))
    imports |= {
        "from flowfabric.app import acts, schedules as app_schedules",
        "from flowfabric.app.operations import Operations, encoded, to_execution_id, to_flow_id",
        "from flowfabric.durations import read_duration, read_time",
        *(f"from flowfabric.engine import {each.concept}" for each in _operations() if not each.is_by_hand),
    }
    return formatted("\n".join([HEAD, *sorted(imports), "", *classes]), WRITTEN)


def _operations() -> Iterator[Operation]:
    for namespace in NAMESPACES:
        yield from namespace.operations


def _source(operation: Operation) -> Source:
    """Find the function of an operation in the files of its concept, or in its module of `app`."""
    base = SRC / ("app" if operation.is_by_hand else "engine") / operation.concept
    files = [base.with_suffix(".py")] if base.with_suffix(".py").exists() else sorted(base.glob("*.py"))
    for file in files:
        tree = ast.parse(file.read_text())
        for node in tree.body:
            if isinstance(node, ast.AsyncFunctionDef) and node.name == operation.name:
                return Source(operation, node, _imports(tree, file))
    raise ValueError(f"{operation.function} does not exist")


def _imports(tree: ast.Module, file: Path) -> dict[str, str]:
    """The imports of a module, by name, and those of its own constants."""
    found: dict[str, str] = {}
    module = ".".join(file.relative_to(SRC.parent).with_suffix("").parts)
    for node in tree.body:
        match node:
            case ast.ImportFrom(module=source, names=names):
                found |= {name.name: f"from {source} import {name.name}" for name in names}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.ClassDef(name=name):
                found[name] = f"from {module} import {name}"
    return found


def _method(source: Source, name: str) -> str:
    operation, function, _ = source
    parameters, passed = _parameters(function)
    kind = _outside(ast.unparse(function.returns) if function.returns else "None")
    said = _said(function)
    if operation.is_by_hand:
        module = "app_schedules" if operation.concept == "schedules" else operation.concept
        call = f"await {module}.{function.name}(self._app, {', '.join(passed)})"
    else:
        how = "_read" if operation.method == "GET" else "_change"
        options = "" if operation.is_repeatable else ", repeat=False"
        if kind == "Moved":
            options += ", about=to_execution_id(execution_id)"
        call = f"await self.{how}(lambda conn: {operation.concept}.{function.name}({', '.join(passed)}){options})"
    body = call if kind == "None" else f"return {call}"
    return f'    async def {name}({parameters}) -> {kind}:\n        """{said}"""\n        {body}\n'


def _parameters(function: Function) -> tuple[str, list[str]]:
    """The parameters of the method, and the arguments with which it calls the operation."""
    arguments, passed = function.args, []
    defaults = dict(zip([each.arg for each in arguments.args][::-1], arguments.defaults[::-1], strict=False))
    positional, named = ["self"], list[str]()
    for each in (*arguments.args, *arguments.kwonlyargs):
        is_named = each in arguments.kwonlyargs
        default = arguments.kw_defaults[arguments.kwonlyargs.index(each)] if is_named else defaults.get(each.arg)
        key = next((key for key in (f"{function.name}.{each.arg}", each.arg) if key in LEFT_OUT), None)
        value = each.arg
        if each.arg == "app":
            continue
        if key is not None:
            if (filled := LEFT_OUT[key]) is None:
                continue
            value = filled
        else:
            written = ast.unparse(each.annotation) if each.annotation else ""
            kind, conversion = GIVEN.get(written, (written, "{}"))
            value = conversion.format(each.arg)
            shown = f"{each.arg}: {_outside(kind)}" + (f" = {ast.unparse(default)}" if default is not None else "")
            (named if is_named else positional).append(shown)
        passed.append(f"{each.arg}={value}" if is_named else value)
    if arguments.kwarg is not None:
        assert arguments.kwarg.annotation is not None
        named.append(f"**{arguments.kwarg.arg}: {ast.unparse(arguments.kwarg.annotation)}")
        passed.append(f"**{arguments.kwarg.arg}")
    return ", ".join([*positional, *(["*"] if named and named[0][:2] != "**" else []), *named]), passed


def _outside(kind: str) -> str:
    """A type as it is written in a class that may have a method `list`."""
    return re.sub(r"\blist\[", "builtins.list[", kind)


def _said(function: Function) -> str:
    """The docstring, without what it says of parameters that the method does not have."""
    raw = ast.get_docstring(function) or ""
    parts = []
    for paragraph in raw.split("\n\n"):
        sentences = re.split(r"(?<=\.)\s+(?=[A-Z`])", paragraph.replace("\n", " "))
        kept = [each for each in sentences if not any(words in each for words in SAID_OF_LEFT_OUT)]
        if any(each.arg == "fence" for each in function.args.kwonlyargs):
            kept = [_without_fence(each) for each in kept]
        parts.append(" ".join(kept))
    return _wrapped([part for part in parts if part])


def _without_fence(sentence: str) -> str:
    if not sentence.startswith("Raises "):
        return sentence
    names = [name for name in re.findall(r"`\w+`", sentence) if name not in FENCED and name != "`ExecutionNotFound`"]
    return f"Raises {', '.join(names)}."


def _wrapped(parts: list[str]) -> str:
    lines = []
    for number, part in enumerate(parts):
        line = ""
        for word in part.split(" "):
            if len(line) + len(word) > (108 if number == 0 else 111) and line:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        lines += [line, ""]
    lines = lines[:-1]
    joined = "\n".join(f"        {line}".rstrip() if number else line for number, line in enumerate(lines))
    return f"{joined}\n        " if len(lines) > 1 else joined
