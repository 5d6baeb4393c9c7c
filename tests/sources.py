"""The source of the project as data, for the tests of the house rules."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from flowfabric.schema.functions import FUNCTION, installed

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "flowfabric"
ENGINE = SRC / "engine"
TESTS = ROOT / "tests"
PROSE = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

WORD = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
LITERAL = re.compile(r"(?:\b[eE])?'(?:[^']|'')*'|\"[^\"]*\"")
SETTING = re.compile(r"\bset (\w+ = (?:'[^']*'|\w+))")
CALL = re.compile(r"\bflowfabric\.(\w+)\s*\(")
CLAUSE = re.compile(r"^ {2}(moves|locks|emits|refuses|returns) +(\S.*(?:\n {3,}\S.*)*)", re.MULTILINE)
FAULT = re.compile(r"flowfabric\._(?:fault|refuse|length_fault|label_fault)\(\s*'(\w+)'")
WRITE = r"insert into flowfabric\.events \(at, kind[^)]*\)\s*select [\w.]+(?:\(\))?, "
APPEND = re.compile(rf"(?:flowfabric\._append\w*\(\s*(?:kind => )?|{WRITE})'(\w+)'")
LOCK = re.compile(
    r"\bfor (?:no key )?(?:update|share)\b|\bpg_advisory_xact_lock\b"
    r"|do update set \w+ = \w+\.\w+ where false"  # locks the rows that exist, and changes nothing
)
# Where a bare word names a column or an alias, not a parameter.
NAMING = re.compile(
    r"insert into [\w.]+(?: (?:as )?\w+)? \([^()]*\)|on conflict \([^()]*\)"
    r"|(?:\bas |\) |\binto |\bwith |, |\brecursive )\w+ \([\w\s,]*\)(?!\s*(?:over|filter))"
    r"|\bas \w+|,\s+\w+ =(?!>)|\bset \w+ =|\b(?:order|group|partition) by\b(?: \w+(?=\s*$))?",
    re.IGNORECASE,
)
DECLARED = re.compile(r"^\s+(\w+) (?:constant )?[\w.]+.*;$", re.MULTILINE)
BLANK = re.compile(r"'(?:[^']|'')*'|--[^\n]*")
PATH = re.compile(r"`(?!\./)([\w.-]+/[\w./-]*)`")
COMPUTED = re.compile(rf"flowfabric\._(?:fault|refuse|append\w*)\(\s*(?!kind => )[^'\s]|{WRITE}[^'\s]")


# The only trigger. A change and its event are written by neighbouring statements, never by a trigger.
TRIGGERS = {
    "number_events": "gives events of a caller's transaction their ids as it commits; nothing else can run then"
}


class SqlFunction(NamedTuple):
    """A SQL function, as it is written in its file."""

    file: Path
    name: str
    header: str
    signature: str
    text: str  # from `create` to the last `$$;`

    @property
    def is_internal(self) -> bool:
        return self.name.startswith("_")

    @property
    def code(self) -> str:
        """The text without its comments."""
        return without_comments(self.text)

    @property
    def computes(self) -> bool:
        """Whether it raises a code, or appends an event kind, that is not a literal."""
        return bool(COMPUTED.search(self.code.partition("$$")[2]))

    @property
    def clauses(self) -> Mapping[str, str]:
        """The clauses of the header: `moves`, `locks`, `emits`, `refuses` and `returns`."""
        return dict(CLAUSE.findall(self.header))

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters that a caller passes, without `out` parameters."""
        names = [parameter.split()[0] for parameter in split_top(self.signature)]
        return [name for name in names if name != "out"]

    @property
    def settings(self) -> set[str]:
        """The settings of its calls, such as `enable_seqscan = off`, with those of every operation."""
        return set(SETTING.findall(installed(self.text).partition(" as $$")[0].rpartition("\nlanguage ")[2]))

    @property
    def calls(self) -> set[str]:
        return set(CALL.findall(self.code)) - {self.name}

    def bare_parameters(self) -> Iterator[tuple[int, str]]:
        """Parameters that its body writes without the name of the function, each with the line in the file."""
        if not self.parameters:
            return
        signature, _, body = _blanked(BLANK, self.text).partition("$$")
        declared = set(DECLARED.findall(body.partition("begin")[0])) if "declare" in body else set()
        names = "|".join(sorted(self.parameters, key=len, reverse=True))
        bare = re.compile(rf"(?<![.\w])({names})\b(?!\s*=>)(?!\.\w)(?!\s*\()")
        above = self.file.read_text().partition(self.text)[0] + signature
        for match in bare.finditer(_blanked(NAMING, body)):
            if match[1] not in declared:
                yield above.count("\n") + body.count("\n", 0, match.start()) + 1, match[1]

    def says(self, clause: str) -> set[str]:
        """The codes or event kinds in a clause of the header."""
        return set(WORD.findall(self.clauses.get(clause, "")))


class PythonFunction(NamedTuple):
    """A function or method of a Python file."""

    file: Path
    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def lines(self) -> int:
        return (self.node.end_lineno or 0) - self.node.lineno + 1


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def sql_files(folder: Path = ENGINE) -> list[Path]:
    return sorted(folder.rglob("*.sql"))


def python_files(*folders: Path) -> list[Path]:
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def texts() -> Iterator[Path]:
    """Every file that people read or write by hand."""
    yield from python_files(SRC, TESTS, ROOT / "docs", ROOT / "examples", ROOT / "benchmarks")
    yield from sql_files(SRC)
    yield from PROSE


def sql_functions(*files: Path) -> list[SqlFunction]:
    """The functions of these files, or of the engine."""
    return [function for file in files or sql_files() for function in _functions_of(file)]


def _functions_of(file: Path) -> Iterator[SqlFunction]:
    text = file.read_text()
    for match in FUNCTION.finditer(text):
        end = text.index("$$;", match.end()) + 3
        above = text[: match.start()].splitlines()
        comment: list[str] = []
        while above and above[-1].startswith("--"):
            comment.insert(0, above.pop()[3:])
        # The first line of a file describes the file.
        header = "\n".join(comment if above else comment[1:])
        yield SqlFunction(file, match["name"], header, _within(match["signature"]), text[match.start() : end])


def python_functions(*files: Path) -> list[PythonFunction]:
    return [
        PythonFunction(file, node.name, node)
        for file in files
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def called(file: Path) -> Iterator[str]:
    """The SQL functions that a Python file calls: the name after the connection, as in `db.row(conn, "claim")`."""
    for node in ast.walk(parsed(file)):
        match node:
            case ast.Call(func=ast.Attribute(attr=verb), args=[ast.Name("conn"), ast.Constant(str(name)), *_]):
                if verb != "builtin":
                    yield name


def found(phrases: Mapping[str, str], *, but: Path) -> list[str]:
    """Where the texts have one of these phrases, with what to write instead."""
    instead = list(phrases.values())
    # A space of a phrase may be a line break in a text, and so may begin a comment there.
    alternatives = "|".join(f"({phrase})" for phrase in phrases).replace(" ", r"\s+(?:(?:--|#)\s+)?")
    spelling = re.compile(rf"\b(?:{alternatives})(?!\w)", re.IGNORECASE)
    return [
        f"{shown(file)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r} -> {instead[match.lastindex - 1]}"
        for file in texts()
        if file != but
        for text in [file.read_text()]
        for match in spelling.finditer(text)
        if match.lastindex
    ]


def paths_in(page: Path) -> list[str]:
    """The paths that a page names in backquotes, from the root of the repository or of the package."""
    return PATH.findall(page.read_text())


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """The text with spaces where the pattern matches, so that everything else keeps its place."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def without_comments(sql: str) -> str:
    return re.sub(r"--.*", "", sql)


def split_top(text: str) -> list[str]:
    """The parts between commas that are not inside parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _within(signature: str) -> str:
    """The text inside the first pair of parentheses."""
    depth = 0
    for at, character in enumerate(signature):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return signature[1:at]
    raise AssertionError(f"unbalanced: {signature}")


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))
