"""Write the sync classes from the async ones: `make sync`. With `--check`, only report the outdated files.

A sync class has the public methods of its async class, with the same signatures and docstrings. Its methods wait for
the result on the event loop of the async object, and wrap an async object in their result in its sync class.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flowfabric.calls.operations import NAMESPACES
from tools import namespaces
from tools.ruff import formatted

SRC = Path(__file__).parent.parent / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class File(NamedTuple):
    """A generated file: its module, what its docstring says, and the classes by their source module."""

    module: str
    about: str
    classes: dict[str, list[str]]


FILES = [
    File(
        "flowfabric.handler.sync",
        "The sync classes of what a handler holds while it runs",
        {
            "flowfabric.postgres.driver": ["Connection"],
            "flowfabric.handler.budgets": ["Reservation"],
            "flowfabric.handler.children": ["Child"],
            "flowfabric.handler.streams": ["OutputStream"],
            "flowfabric.handler.context": ["Context"],
        },
    ),
    File(
        "flowfabric.app.sync",
        "The sync classes of an app, and of what it returns",
        {
            "flowfabric.app.executions": ["Execution"],
            "flowfabric.app.flows": ["FlowHandle", "Flow"],
            "flowfabric.app.subscriptions": ["Subscription", "EventLog"],
            "flowfabric.app.tasks": ["Task"],
            "flowfabric.app.app": ["App"],
        },
    ),
    File(
        "flowfabric.app.namespaces_sync",
        "The sync classes of the namespaces of an app",
        {"flowfabric.app.namespaces": [each.name for each in NAMESPACES]},
    ),
    File(
        "flowfabric.testing.sync",
        "The engine and the clock for sync tests",
        {"flowfabric.testing.clock": ["Clock"], "flowfabric.testing.engine": ["Engine"]},
    ),
]

MODULE_OF = {name: file.module for file in FILES for names in file.classes.values() for name in names}

# What a sync program does not need, or does with the async class.
EXCLUDED = {
    *("App.asgi", "App.client", "App.config", "App.database", "App.declare_schedules", "App.is_open", "App.loop"),
    *("App.every_task", "App.find_task", "App.notifier", "App.notify", "App.wake_from_anywhere"),
    *("App.schedule", "App.scheduled", "App.step", "App.sync", "App.task", "App.tasks", "App.waiters"),
    *(
        "Clock.pass_until",
        "Context.asked",
        "Context.capturing_logs",
        "Context.close_output",
        "Context.leaving",
        "Context.unasked",
        "Context.unawaited",
        "Reservation.is_begun",
        "Engine.close",
        "Engine.give_back",
        "Execution.of",
    ),
    *("Connection.transaction", "Connection.is_in_transaction", "Connection.is_closed", "Connection.add_listener"),
    *("Connection.add_termination_listener", "Connection.remove_termination_listener", "Context.transaction_step"),
    *("EventLog.call", "EventLog.wait_beyond", "EventLog.waiting_count", "Flow.nodes"),
    *("Task.__call__", "Task.child_call", "Task.submission", "Task.submission_of"),
    *("Flow.submit_in", "Task.submit_in", "Task.submit_many_in"),  # these take sync connections themselves
}

# Classes whose attributes are part of their public face; those of the others are private.
WITH_ATTRIBUTES = {"Child", "Engine", "Execution", "Flow", "FlowHandle", "OutputStream", "Reservation", "Subscription"}

# Plain methods of these classes touch nothing that belongs to the event loop.
ANYWHERE = {"App", "Execution", "Flow", "FlowHandle", "Task"}

OPERATORS = {"__call__", "__getitem__", "__aenter__", "__aexit__", "__anext__"}

BASES = {"App": "Opening"}

UNWAITED = '''
    @property
    def unwaited(self) -> {type}:
        """The same object, whose methods return waits, to wait for several together: `ctx.any_of(ctx.unwaited...)`."""
        unwaited: {type} = self._unwaited()
        return unwaited
'''

STEP = '''
    @overload
    def transaction_step(
        self,
        name: str,
        function: Callable[..., object],
        /,
        *args: object,
        returns: type[T],
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> T: ...
    @overload
    def transaction_step(
        self,
        name: str,
        function: Callable[..., object],
        /,
        *args: object,
        returns: UnionType,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Any: ...
    @overload
    def transaction_step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: object,
        returns: None = None,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> T: ...
    def transaction_step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: object,
        returns: Any = None,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Any:
        """Run a step that writes to your own tables, exactly once: the writes and its result commit together.

        As `Context.transaction_step`, with a `SyncConnection` as the first argument of the function.
        """

        @functools.wraps(function)
        def write(conn: Connection) -> object:
            return function(SyncConnection(conn, self._loop), *args, **kwargs)

        options = {"returns": returns, "retries": retries, "backoff": backoff, "was": was}
        return self._wait(self._thing.transaction_step, name, write, **options)
'''

CALL = '''
    @overload
    def __call__(self, thing: Task[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, thing: Execution[R], /) -> SyncExecution[R]: ...
    @overload
    def __call__(self, thing: Flow, /) -> SyncFlow: ...
    @overload
    def __call__(self, thing: FlowHandle, /) -> SyncFlowHandle: ...
    def __call__(self, thing: Any, /) -> Any:
        """Return the sync version of a task, an execution or a flow: `sync(report).submit("tides").result()`."""
        for kind in type(thing).__mro__:
            if (sync := SYNC.get(kind.__name__)) is not None:
                return sync(thing, self._loop)
        raise TypeError(f"{thing!r} has no sync version; pass a task, an execution or a flow")
'''

EXTRA = {"App": CALL, "Child": UNWAITED.format(type="Child[R]"), "Context": STEP + UNWAITED.format(type="Context")}

AFTER = {
    "flowfabric.app.sync": """
# By name, because the modules of the async classes import this one.
SYNC: dict[str, Callable[..., Any]] = {
    "Task": SyncTask, "Execution": SyncExecution, "Flow": SyncFlow, "FlowHandle": SyncFlowHandle
}
"""
}

HEAD = """\"\"\"{about}. Written by `make sync`; do not edit.

A method does what the method of the async class does, and waits for the result.
\"\"\"
"""

IMPORTS = """
import builtins
import functools
from types import UnionType
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, TYPE_CHECKING, Unpack, overload
from flowfabric.blocking import Sync
"""


IMPORTED = {
    f"from {module} import {name}"
    for module, names in re.findall(r"from (\S+) import (.+)", IMPORTS)
    for name in names.split(", ")
}


class Module(NamedTuple):
    """The parts of a source module that a generated file needs."""

    imports: dict[str, str]  # by name: the import of that name alone
    variables: dict[str, str]  # type variables, by name
    constants: dict[str, ast.expr]
    classes: dict[str, ast.ClassDef]


def written() -> dict[Path, str]:
    """The text of every generated file, by its path. The sync classes are made from the stored namespaces."""
    sync = {_path(file.module): formatted(_text(file), _path(file.module)) for file in FILES}
    return {namespaces.WRITTEN: namespaces.text(), **sync}


def _path(module: str) -> Path:
    return (SRC / Path(*module.split("."))).with_suffix(".py")


def _text(file: File) -> str:
    sources = {name: _read(name) for name in file.classes}
    classes = [
        _class(name, source.classes[name], source)
        for module, source in sources.items()
        for name in file.classes[module]
    ]
    body = "\n\n".join(classes) + AFTER.get(file.module, "")
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    imports, variables = set[str](), set[str]()
    for module, source in sources.items():
        variables |= {line for name, line in source.variables.items() if name in used}
        imports |= {line for name, line in source.imports.items() if name in used and line not in IMPORTED}
        imports |= {f"from {module} import {name}" for name in source.classes if name in used}
        imports = {line for line in imports if not line.startswith(f"from {file.module} ")}
        if "from flowfabric.app.app import App" in imports:
            imports.discard("from flowfabric.app import App")
        imports |= {f"from {module} import {name}" for name in source.constants if name in used}
    imports |= {
        f"from {module} import Sync{name}"
        for name, module in MODULE_OF.items()
        if f"Sync{name}" in used and module != file.module
    }
    at_runtime = {line for line in imports if any(f"import {name}" in line for name in _at_runtime(file, body))}
    return "\n".join(
        [
            HEAD.format(about=file.about),
            "from __future__ import annotations",
            IMPORTS,
            "from flowfabric.app.opening import Opening" if "Opening" in body else "",
            *sorted(at_runtime),
            "if TYPE_CHECKING:",
            *(f"    {line}" for line in sorted(imports - at_runtime)),
            *sorted(variables),
            body,
        ]
    )


def _at_runtime(file: File, body: str) -> Iterator[str]:
    """The names whose values the generated code uses, not only their types."""
    for name, module in MODULE_OF.items():
        if module != file.module and f"Sync{name}(" in body:
            yield f"Sync{name}"
    for node in ast.walk(ast.parse(body)):
        if isinstance(node, ast.arguments):
            for default in (*node.defaults, *node.kw_defaults):
                for part in ast.walk(default) if default is not None else ():
                    if isinstance(part, ast.Name):
                        yield part.id


def _read(module: str) -> Module:
    tree = ast.parse(_path(module).read_text())
    found = Module({}, {}, {}, {})
    for node in [*tree.body, *(each for part in tree.body if isinstance(part, ast.If) for each in part.body)]:
        match node:
            case ast.ImportFrom(module=source, names=names):
                found.imports.update({name.name: f"from {source} import {name.name}" for name in names})
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec"))):
                found.variables[name] = ast.unparse(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.constants[name] = value
            case ast.ClassDef(name=name):
                found.classes[name] = node
    return found


def _class(name: str, node: ast.ClassDef, source: Module) -> str:
    parameters = next((ast.unparse(base)[7:] for base in node.bases if ast.unparse(base).startswith("Generic")), "")
    bases = ", ".join([BASES.get(name, "Sync"), *([f"Generic{parameters}"] if parameters else [])])
    about = (ast.get_docstring(node) or "").splitlines()[0]
    lines = [
        f"class Sync{name}({bases}):",
        f'    """{_sync_words(about)}\n\n    The sync version of `{name}`.\n    """',
        "    __slots__ = ()",
        f"    _thing: {name}{parameters}",
    ]
    if name in WITH_ATTRIBUTES:
        lines += [_property(each, kind, None) for each, kind in _attributes(name, node)]
    for function in node.body:
        if isinstance(function, Function) and _is_public(name, function.name):
            lines.append(_method(name, function))
    return "\n".join(lines) + "\n" + EXTRA.get(name, "")


def _is_public(owner: str, name: str) -> bool:
    return (
        (name in OPERATORS or not name.startswith("_"))
        and f"{owner}.{name}" not in EXCLUDED
        and (
            (owner, name) not in {("App", "__aenter__"), ("App", "__aexit__"), ("Engine", "__aenter__")}
            and (owner, name) not in {("Engine", "__aexit__"), ("EventLog", "__aenter__"), ("EventLog", "__aexit__")}
        )
    )


def _attributes(owner: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The public attributes that the constructor sets, with their types."""
    [init] = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    types = {each.arg: each.annotation for each in (*init.args.args, *init.args.kwonlyargs)}
    for statement in init.body:
        kind: ast.expr | None
        match statement:
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                kind = annotation
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Name(id=given)):
                kind = types[given]
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call(func=ast.Name(id=made))):
                kind = ast.Name(made)
            case ast.Assign(targets=[ast.Attribute(attr=name)]):
                kind = None
            case _:
                continue
        if _is_public(owner, name):
            if kind is None:
                raise ValueError(f"{owner}.{name} has no type that can be read; annotate the attribute")
            yield name, kind


def _property(name: str, kind: ast.expr, said: str | None) -> str:
    return _definition("@property\n    ", name, "self", kind, said, _answer(kind, f"self._thing.{name}"))


def _definition(before: str, name: str, parameters: str, kind: ast.expr, said: str | None, body: str) -> str:
    lines = [*([f'"""{said}"""'] if said else []), *body.splitlines()]
    head = f"    {before}def {name}({parameters}) -> {_returned(kind)}:"
    return "\n".join([head, *(f"        {line}" for line in lines), ""])


def _method(owner: str, function: Function) -> str:
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    kind, said = _unquoted(function.returns), _docstring(function)
    if "property" in decorators:
        return _property(function.name, kind, said)
    name = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__anext__": "__next__"}.get(
        function.name, function.name
    )
    parameters = _parameters(function)
    if "overload" in decorators:
        return f"    @overload\n    def {name}({parameters}) -> {_returned(kind)}: ..."
    is_waiting = isinstance(function, ast.AsyncFunctionDef) or owner not in ANYWHERE or _awaited(kind) is not kind
    how = "_iterate" if _name(kind) == "AsyncIterator" else "_wait" if is_waiting else ""
    passed = ", ".join(_passed(function))
    if how:
        called = f"self.{how}(self._thing.{function.name}{', ' if passed else ''}{passed})"
    else:
        called = f"self._thing[{passed}]" if name == "__getitem__" else f"self._thing.{function.name}({passed})"
    statement = f"{called}\nreturn self" if name == "__enter__" else _answer(kind, called)
    return _definition(ITERATES if name == "__next__" else "", name, parameters, kind, said, statement)


SYNC_WORDS = {
    "async with": "with",
    "When awaited, raises": "Raises",
    "await ": "",
    "\\": "\\\\",
    "On your own connection, it joins the transaction that is open there. ": "",
}
ITERATES = "def __iter__(self) -> Self:\n        return self\n\n    "


def _docstring(function: Function) -> str | None:
    raw = ast.get_docstring(function, clean=False)
    return None if raw is None else _sync_words(raw)


def _sync_words(said: str) -> str:
    for words, others in SYNC_WORDS.items():
        said = said.replace(words, others)
    return said


def _parameters(function: Function) -> str:
    arguments = function.args
    arguments.args = [each for each in arguments.args if each.arg != "conn"]
    if any(each.arg == "conn" for each in function.args.posonlyargs):
        raise ValueError(f"{function.name} takes a connection; exclude it")
    given = len(arguments.args) + len(arguments.posonlyargs)
    arguments.defaults = arguments.defaults[-given:] if given > 1 else []
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None and each.annotation is not None:
            each.annotation = _accepted(_unquoted(each.annotation))
    return ast.unparse(arguments)


def _passed(function: Function) -> list[str]:
    arguments = function.args
    return [
        *(each.arg for each in (*arguments.posonlyargs, *arguments.args) if each.arg != "self"),
        *([f"*{arguments.vararg.arg}"] if arguments.vararg else []),
        *(f"{each.arg}={each.arg}" for each in arguments.kwonlyargs),
        *([f"**{arguments.kwarg.arg}"] if arguments.kwarg else []),
    ]


def _accepted(kind: ast.expr) -> ast.expr:
    """The type of a parameter: where the async class takes an execution, a sync one will do too."""
    if _name(kind) != "Execution":
        return kind
    return ast.parse(f"{ast.unparse(kind)} | Sync{ast.unparse(kind)}", mode="eval").body


def _answer(kind: ast.expr, expression: str) -> str:
    """The statement that returns the value of an expression, wrapped if its type has a sync class."""
    returned = _returned(kind)
    inner = _awaited(kind)
    if returned == "None":
        return expression
    if returned == "Self":
        return f"return type(self)({expression}, self._loop)"
    if (name := _name(inner)) in MODULE_OF:
        return f"return {_wrapped(name, expression)}"
    if _name(inner) == "list" and isinstance(inner, ast.Subscript) and (each := _name(inner.slice)) in MODULE_OF:
        return f"return [{_wrapped(each, 'each')} for each in {expression}]"
    if _name(kind) == "AsyncIterator":
        return f"return {expression}"
    return f"answer: {returned} = {expression}\nreturn answer"


def _wrapped(name: str, expression: str) -> str:
    return f"SyncApp({expression})" if name == "App" else f"Sync{name}({expression}, self._loop)"


def _returned(kind: ast.expr) -> str:
    """The type that the sync method returns."""
    return ast.unparse(_Sync().visit(ast.parse(ast.unparse(_awaited(kind)), mode="eval").body))


class _Sync(ast.NodeTransformer):
    """Replaces async types by sync ones."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id in MODULE_OF:
            return ast.Name(f"Sync{node.id}")
        return ast.Name("Iterator") if node.id == "AsyncIterator" else node


def _awaited(kind: ast.expr) -> ast.expr:
    """The type of what a call returns once it was awaited."""
    if isinstance(kind, ast.Subscript):
        if _name(kind) == "Coroutine" and isinstance(kind.slice, ast.Tuple):
            return kind.slice.elts[-1]
        if _name(kind) in ("Awaitable", "Waiting"):
            return kind.slice
        if _name(kind) == "Mapped":
            return ast.Subscript(ast.Name("list"), kind.slice)
    return kind


def _name(kind: ast.expr) -> str:
    base = kind.value if isinstance(kind, ast.Subscript) else kind
    return base.id if isinstance(base, ast.Name) else ""


def _unquoted(kind: ast.expr | None) -> ast.expr:
    """An annotation without the quotes around it or around its parts; the values of a literal keep theirs."""
    match kind:
        case None:
            raise ValueError("a method has no annotation")
        case ast.Constant(value=str(text)):
            return _unquoted(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=ast.Name(id="Literal")):
            return kind
        case ast.Subscript(value=value, slice=ast.Tuple(elts=parts)):
            return ast.Subscript(value, ast.Tuple([_unquoted(part) for part in parts]))
        case ast.Subscript(value=value, slice=part):
            return ast.Subscript(value, _unquoted(part))
        case ast.BinOp(left=left, op=op, right=right):
            return ast.BinOp(_unquoted(left), op, _unquoted(right))
    return kind


def main(arguments: Sequence[str]) -> int:
    """Write the files, or only report the outdated ones."""
    is_writing = "--check" not in arguments
    if is_writing:
        namespaces.WRITTEN.write_text(namespaces.text())
    outdated = {path: text for path, text in written().items() if not path.exists() or path.read_text() != text}
    for path, text in outdated.items():
        print(path)  # noqa: T201
        if is_writing:
            path.write_text(text)
    return int(bool(outdated) and not is_writing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
