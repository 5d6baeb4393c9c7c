"""Signatures for people: the annotations as they are written, without what only a type checker needs."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, get_overloads

import msgspec

WIDTH = 100
Node = ast.FunctionDef | ast.AsyncFunctionDef

# Overloads that say the same to people: only these are shown.
SHOWN = {"Context.step": [-1], "Context.any_of": [-1], "metered": [0, 2]}


class Parameter(NamedTuple):
    """One parameter of a signature."""

    name: str
    text: str  # as in a signature, with its stars
    types: frozenset[str]


class Signature(NamedTuple):
    """A function as a caller sees it; a class that is called has no `returns`."""

    name: str
    parameters: list[Parameter]
    returns: str
    is_async: bool

    @property
    def text(self) -> str:
        """The signature on one line, or with a line per parameter if it is too long."""
        begin = f"{'async ' if self.is_async else ''}{'def ' if self.returns else ''}{self.name}("
        end = f") -> {self.returns}" if self.returns else ")"
        shown = [parameter.text for parameter in self.parameters]
        line = begin + ", ".join(shown) + end
        return line if len(line) <= WIDTH else "\n".join([begin, *(f"    {each}," for each in shown), end])

    @property
    def named(self) -> list[Parameter]:
        """The parameters without the separators."""
        return [parameter for parameter in self.parameters if parameter.name]


def signatures(name: str, function: Callable[..., Any]) -> list[Signature]:
    """The signatures of a function, or of its overloads."""
    overloads = get_overloads(function)
    if name in SHOWN:
        overloads = [overloads[number] for number in SHOWN[name]]
    return [signature(name.rpartition(".")[2], each) for each in overloads or [function]]


def signature(name: str, function: Callable[..., Any]) -> Signature:
    """The signature of one function."""
    defaults = inspect.signature(inspect.unwrap(function)).parameters
    return _signature(name, _definition(function), {each: given.default for each, given in defaults.items()})


def protocol(name: str, cls: type) -> Signature:
    """The signature of the last overload of a protocol with `__call__`."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    last = node.body[-1]
    assert isinstance(last, Node)
    return _signature(name, last, {})


def _signature(name: str, node: Node, defaults: Mapping[str, object]) -> Signature:
    returns = _annotation(node.returns)
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    is_async = isinstance(node, ast.AsyncFunctionDef) and not returns.startswith("AsyncIterator")
    if "asynccontextmanager" in decorators or "contextmanager" in decorators:
        returns = re.sub(r"^(Async)?Iterator", r"\1ContextManager", returns)
    elif match := re.fullmatch(r"(?:Coroutine\[Any, Any, |Awaitable\[)(.*)\]", returns):
        is_async, returns = True, match[1]
    return Signature(name, _parameters(node, defaults), returns, is_async)


def constructor(name: str, cls: type) -> Signature:
    """The signature of a class that is created by calling it."""
    return signature(name, vars(cls)["__init__"])._replace(returns="")


def _definition(function: Callable[..., Any]) -> Node:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    [node] = ast.parse(source).body
    assert isinstance(node, Node)
    return node


def _parameters(node: Node, defaults: Mapping[str, object]) -> list[Parameter]:
    written = node.args
    plain = [each for each in (*written.posonlyargs, *written.args) if each.arg not in ("self", "cls")]
    given = {each.arg: default for each, default in zip(reversed(plain), reversed(written.defaults), strict=False)}
    given |= {
        each.arg: default for each, default in zip(written.kwonlyargs, written.kw_defaults, strict=True) if default
    }
    shown = [_parameter(each, given, defaults) for each in plain]
    if any(each.arg != "self" for each in written.posonlyargs):
        shown.insert(sum(each.arg != "self" for each in written.posonlyargs), _separator("/"))
    if written.vararg:
        shown.append(_parameter(written.vararg, given, defaults, "*"))
    elif written.kwonlyargs:
        shown.append(_separator("*"))
    shown += [_parameter(each, given, defaults) for each in written.kwonlyargs]
    if written.kwarg:
        shown.append(_parameter(written.kwarg, given, defaults, "**"))
    return shown


def _separator(text: str) -> Parameter:
    return Parameter("", text, frozenset())


def _parameter(each: ast.arg, given: dict[str, ast.expr], defaults: Mapping[str, object], stars: str = "") -> Parameter:
    kind = _annotation(each.annotation)
    types = frozenset(re.findall(r"\b[A-Z]\w+", kind))
    text = stars + each.arg + (f": {kind}" if kind and kind not in ("P.args", "P.kwargs", "Any") else "")
    if each.arg in given:
        text += f" = {_default(given[each.arg], defaults.get(each.arg))}"
    return Parameter(each.arg, text, types)


def _annotation(node: ast.expr | None) -> str:
    """An annotation as it is written; quotes around it, and `Unpack`, are for the type checker only."""
    if node is None:
        return ""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    text = re.sub(r"(?<!\[)'([A-Z][\w\[\], |.]*)'", r"\1", text)  # a name in quotes, not a value of a Literal
    text = re.sub(r"^Unpack\[(.*)\]$", r"\1", text)
    return text.replace("'", '"')


def _default(node: ast.expr, value: object) -> str:
    """A default as it is written; a constant by its value."""
    if isinstance(node, ast.Constant):
        value = node.value
    if isinstance(node, ast.Name | ast.Constant):
        if isinstance(value, msgspec.Struct):
            return f"{type(value).__name__}()"
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value:_}"
        if isinstance(value, str):
            return f'"{value}"'
        if value is None or isinstance(value, bool | float):
            return repr(value)
        if isinstance(value, timedelta):
            whole = value.days if value == timedelta(days=value.days) else 0
            return f"timedelta(days={whole})" if whole else f"timedelta(seconds={value.total_seconds():g})"
        return "..."
    return ast.unparse(node).replace("'", '"')
