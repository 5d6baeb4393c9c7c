"""The reference page of the SQL functions, from their headers."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flowfabric import config
from flowfabric.schema.functions import FUNCTION

ENGINE = Path(config.__file__).parent / "engine"
CLAUSE = re.compile(r"^ {2}(moves|locks|emits|refuses|returns) +(\S.*(?:\n {3,}\S.*)*)", re.MULTILINE)
CODE = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")

SQL = """# SQL functions

Call an operation from SQL: from `psql`, from your own functions, or from a language other than Python.

```sql
select flowfabric.pause_lane(name => 'reports', by => 'ada');
```

These are the functions that [Engine operations](engine.md) call, one each, with the same names. Pass arguments by name:
the order may change. A function with `partitions` and other arrays takes many items, one per position, and returns one
row per item: `outcome`, or `refusal` (the code of the error) with `detail`. A refusal of the whole call is raised, with
the code as its message; [Errors](errors.md) lists the codes, and [Kinds of events](events.md) the events. Below each
function is what it

- **moves**: the change of state,
- **locks**: the rows that it locks, in this order,
- **emits**: the events that it can append, also those of other executions that end or resume because of the call,
- **refuses**: the codes with which it can refuse the call or an item,
- **returns**: its answer.

No function sends a notification. After your commit, `await app.wake("reports")` wakes idle workers, or their next poll
finds the work.
"""


class Operation(NamedTuple):
    """A public SQL function, as its header describes it."""

    name: str
    concept: str
    signature: str
    summary: str
    clauses: dict[str, str]

    @property
    def emits(self) -> list[str]:
        return CODE.findall(self.clauses.get("emits", ""))


def operations() -> Iterator[Operation]:
    """The public functions of the engine, by concept and name."""
    for concept, file in sorted((file.relative_to(ENGINE).parts[0], file) for file in ENGINE.rglob("*.sql")):
        text = file.read_text()
        for match in FUNCTION.finditer(text):
            if not match["name"].startswith("_"):
                header = re.findall(r"(?:^--.*\n)+\Z", text[: match.start()], re.MULTILINE)[0]
                yield _operation(concept.removesuffix(".sql"), match, re.sub(r"^-- ?", "", header, flags=re.MULTILINE))


def _operation(concept: str, match: re.Match[str], header: str) -> Operation:
    summary, *_ = CLAUSE.split(header, maxsplit=1)
    clauses = {name: _line(said) for name, said in CLAUSE.findall(header)}
    return Operation(match["name"], concept, _line(match["signature"]), _line(summary), clauses)


def _line(text: str) -> str:
    return " ".join(text.split())


def page() -> str:
    """The page `sql.md`."""
    return "\n".join([SQL, *_sections()])


def _sections() -> Iterator[str]:
    concept = ""
    for operation in sorted(operations(), key=lambda operation: (operation.concept, operation.name)):
        if operation.concept != concept:
            concept = operation.concept
            yield f"## {concept}\n"
        yield f"### {operation.name}\n\n```sql\n{_signature(operation)}\n```\n\n{operation.summary}\n"
        yield "".join(f"- **{name}** {_marked(name, said)}\n" for name, said in operation.clauses.items())


def _signature(operation: Operation) -> str:
    """The function with its parameters and what it returns, in lines of 100 columns."""
    call = f"flowfabric.{operation.name}{operation.signature}".replace("( ", "(")
    # Lines break between parameters only.
    lines = re.sub(r"(?<!,) ", "\u00a0", call.replace(") returns ", ")\nreturns ")).splitlines()
    return "\n".join(textwrap.fill(line, 100, subsequent_indent="    ") for line in lines).replace("\u00a0", " ")


def _marked(clause: str, said: str) -> str:
    """Codes and kinds of events as code."""
    return CODE.sub(r"`\g<0>`", said) if clause in ("emits", "refuses") else said
