"""The project's own source as data: what the tests of the house rules look at."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from flowfabric.schema.migrate import FUNCTION

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "flowfabric"
ENGINE = SRC / "engine"
TESTS = ROOT / "tests"
PROSE = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

WORD = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
LITERAL = re.compile(r"(?:\b[eE])?'(?:[^']|'')*'|\"[^\"]*\"")
CALL = re.compile(r"\bflowfabric\.(\w+)\s*\(")
CLAUSE = re.compile(r"^ {2}(moves|locks|emits|refuses|returns) +(\S.*(?:\n {3,}\S.*)*)", re.MULTILINE)
FAULT = re.compile(r"flowfabric\._(?:fault|refuse)\(\s*'(\w+)'")
WRITE = r"insert into flowfabric\.events \(at, kind[^)]*\)\s*select [\w.]+(?:\(\))?, "
APPEND = re.compile(rf"(?:flowfabric\._append\w*\(\s*(?:kind => )?|{WRITE})'(\w+)'")
LOCK = re.compile(r"\bfor (?:no key )?(?:update|share)\b|\bpg_advisory_xact_lock\b")
COMPUTED = re.compile(rf"flowfabric\._(?:fault|refuse|append\w*)\(\s*(?!kind => )[^'\s]|{WRITE}[^'\s]")


class SqlFunction(NamedTuple):
    """A function as its file has it."""

    file: Path
    name: str
    header: str
    signature: str
    text: str  # from `create` to the last `$$;`

    @property
    def code(self) -> str:
        """The text without its comments."""
        return without_comments(self.text)

    @property
    def computes(self) -> bool:
        """Whether it refuses with a code, or appends a kind, that it does not spell out."""
        return bool(COMPUTED.search(self.code.partition("$$")[2]))

    @property
    def clauses(self) -> Mapping[str, str]:
        """What the header says under `moves`, `locks`, `emits`, `refuses` and `returns`."""
        return dict(CLAUSE.findall(self.header))

    @property
    def parameters(self) -> list[str]:
        """The names a caller passes; what only comes out is left out."""
        names = [parameter.split()[0] for parameter in split_top(self.signature)]
        return [name for name in names if name != "out"]

    @property
    def calls(self) -> set[str]:
        return set(CALL.findall(self.code)) - {self.name}

    def says(self, clause: str) -> set[str]:
        """The codes or event kinds that the header names."""
        return set(WORD.findall(self.clauses.get(clause, "")))


class PythonFunction(NamedTuple):
    """A function or method of a Python file."""

    file: Path
    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def lines(self) -> int:
        return (self.node.end_lineno or 0) - self.node.lineno + 1


def sql_files(folder: Path = ENGINE) -> list[Path]:
    return sorted(folder.rglob("*.sql"))


def python_files(*folders: Path) -> list[Path]:
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def texts() -> Iterator[Path]:
    """Everything people read or write by hand."""
    yield from python_files(SRC, TESTS, ROOT / "docs", ROOT / "examples", ROOT / "benchmarks")
    yield from sql_files(SRC)
    yield from PROSE


def sql_functions(*files: Path) -> list[SqlFunction]:
    """The functions of these files; of the engine where none are given."""
    return [function for file in files or sql_files() for function in _functions_of(file)]


def _functions_of(file: Path) -> Iterator[SqlFunction]:
    text = file.read_text()
    for match in FUNCTION.finditer(text):
        end = text.index("$$;", match.end()) + 3
        above = text[: match.start()].splitlines()
        comment: list[str] = []
        while above and above[-1].startswith("--"):
            comment.insert(0, above.pop()[3:])
        # The first line of a file is about the file.
        header = "\n".join(comment if above else comment[1:])
        yield SqlFunction(file, match["name"], header, _within(match["signature"]), text[match.start() : end])


def python_functions(*files: Path) -> list[PythonFunction]:
    return [
        PythonFunction(file, node.name, node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def called(file: Path) -> Iterator[str]:
    """The SQL functions that a Python file calls: the name behind the connection, as in `db.row(conn, "claim")`."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr=verb), args=[ast.Name("conn"), ast.Constant(str(name)), *_]):
                if verb != "builtin":
                    yield name


def without_comments(sql: str) -> str:
    return re.sub(r"--.*", "", sql)


def split_top(text: str) -> list[str]:
    """Parts between commas, those inside parentheses left alone."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _within(signature: str) -> str:
    """What the first pair of parentheses holds."""
    depth = 0
    for at, character in enumerate(signature):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return signature[1:at]
    raise AssertionError(f"unbalanced: {signature}")


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))
