"""Write the namespaces of an app, such as `app.budgets`, from the operations of the engine; a part of `make sync`.

A method of a namespace is an operation without its connection. It has the operation's name without the noun that the
namespace has already: `budgets.create_budget` is `app.budgets.create`. Ids and durations may be given as text, results
and payloads as values. Operations that need more than that are written by hand, with the app as the first parameter.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.ruff import formatted

SRC = Path(__file__).parent.parent / "src" / "flowfabric"
WRITTEN = SRC / "app" / "namespaces.py"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Namespace(NamedTuple):
    """A class of the file: what its docstring says, the nouns that its methods leave out, and its operations."""

    name: str
    about: str
    nouns: str
    operations: str
    """In order: `concept.function` of the engine, or `app.module.function` for one that is written by hand."""


NAMESPACES = [
    Namespace(
        "Approvals",
        "The decisions that executions wait for",
        "approvals",
        "app.acts.approve app.acts.reject",
    ),
    Namespace(
        "Budgets",
        "Limits on what executions may spend, and what they have spent",
        "budget budgets",
        "budgets.list_budgets budgets.describe_budget budgets.create_budget budgets.change_budget budgets.reset_budget "
        "app.acts.report_usage budgets.release_usage budgets.list_spending "
        "budgets.reserve budgets.settle budgets.release",
    ),
    Namespace(
        "Events",
        "The event log of the database; `app.log` follows it",
        "events",
        "events.read_events events.acknowledge events.get_acknowledged",
    ),
    Namespace(
        "Executions",
        "The executions in the database, whichever app has submitted them",
        "executions",
        "executions.list_executions executions.describe executions.read_tree executions.explain executions.get_result "
        "attempts.list_attempts steps.list_steps "
        "app.acts.cancel app.acts.override executions.replay waits.resume holds.hold holds.unhold "
        "executions.change_priority executions.set_tag executions.get_tag claims.revoke",
    ),
    Namespace(
        "Flows",
        "The flows (DAGs) in the database; `app.flow` builds one",
        "flow flows",
        "flows.list_flows flows.describe_flow flows.cancel_flow flows.set_flow_tag "
        "flows.create_flow flows.add_execution flows.add_edge flows.set_edge_group",
    ),
    Namespace(
        "Lanes",
        "The lanes (queues) that workers claim from",
        "lane lanes",
        "lanes.list_lanes lanes.describe_lane lanes.configure_lane lanes.pause_lane lanes.drain_lane "
        "app.acts.resume_lane",
    ),
    Namespace(
        "Quotas",
        "Limits on how fast and how many executions run",
        "quota quotas",
        "quotas.list_quotas quotas.describe_quota quotas.create_quota quotas.change_quota",
    ),
    Namespace(
        "Schedules",
        "Submissions by cron or interval",
        "schedule schedules",
        "schedules.list_schedules schedules.describe_schedule app.schedules.create_schedule "
        "app.schedules.change_schedule schedules.pause_schedule schedules.resume_schedule schedules.delete_schedule "
        "schedules.fire_schedule",
    ),
    Namespace(
        "SigningKeys",
        "The secrets that sign the tokens of waitpoints",
        "key keys",
        "signing_keys.list_keys signing_keys.seed_key signing_keys.rotate_key",
    ),
    Namespace(
        "Waitpoints",
        "What executions wait for, and the signals that end the waits",
        "waitpoints",
        "waits.list_suspended waits.list_waits waits.list_waitpoints app.acts.signal",
    ),
    Namespace(
        "Workers",
        "The worker processes that are live, and their tasks",
        "workers worker",
        "workers.list_workers workers.describe_worker workers.mark_dead tasks.list_tasks tasks.describe_task",
    ),
]

READS = ("list", "describe", "explain", "get", "read")

# These may not happen twice: if the connection was lost during the call, it is not repeated.
ONCE = {
    *("add_execution", "create_flow", "delete_schedule", "fire_schedule", "mark_dead"),
    *("replay", "reserve", "reset_budget", "resume", "revoke"),
}

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

    path: str
    function: Function
    imports: dict[str, str]

    @property
    def is_by_hand(self) -> bool:
        return self.path.startswith("app.")


def text() -> str:
    """The text of the file."""
    imports, classes = set[str](), []
    for namespace in NAMESPACES:
        classes.append(f'class {namespace.name}(Operations):\n    """{namespace.about}."""\n\n    __slots__ = ()\n')
        for path in namespace.operations.split():
            source = _source(path)
            imports |= {*source.imports.values()}
            classes.append(_method(source, namespace.nouns.split()))
    imports |= {
        "from flowfabric.app import acts, schedules as app_schedules",
        "from flowfabric.app.operations import Operations, encoded, to_execution_id, to_flow_id",
        "from flowfabric.durations import read_duration, read_time",
        *(f"from flowfabric.engine import {path.partition('.')[0]}" for path in _paths() if not path.startswith("app")),
    }
    return formatted("\n".join([HEAD, *sorted(imports), "", *classes]), WRITTEN)


def _paths() -> Iterator[str]:
    for namespace in NAMESPACES:
        yield from namespace.operations.split()


def _source(path: str) -> Source:
    """Find the function of an operation in the files of its concept, or in its module of `app`."""
    *place, name = path.split(".")
    base = SRC / "app" / place[1] if place[0] == "app" else SRC / "engine" / place[0]
    files = [base.with_suffix(".py")] if base.with_suffix(".py").exists() else sorted(base.glob("*.py"))
    for file in files:
        tree = ast.parse(file.read_text())
        for node in tree.body:
            if isinstance(node, ast.AsyncFunctionDef) and node.name == name:
                return Source(path, node, _imports(tree, file))
    raise ValueError(f"{path} does not exist")


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


def _method(source: Source, nouns: list[str]) -> str:
    function = source.function
    name = "_".join(part for part in function.name.split("_") if part not in nouns)
    parameters, passed = _parameters(function)
    kind = _outside(ast.unparse(function.returns) if function.returns else "None")
    said = _said(function)
    if source.is_by_hand:
        _, module, _ = source.path.split(".")
        module = "app_schedules" if module == "schedules" else module
        call = f"await {module}.{function.name}(self._app, {', '.join(passed)})"
    else:
        concept, _ = source.path.split(".")
        how = "_read" if function.name.split("_")[0] in READS else "_change"
        options = ", repeat=False" if function.name in ONCE else ""
        if kind == "Moved":
            options += ", about=to_execution_id(execution_id)"
        call = f"await self.{how}(lambda conn: {concept}.{function.name}({', '.join(passed)}){options})"
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
