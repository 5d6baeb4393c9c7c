"""The house rules that a test can check. Exceptions are listed here, by name and with a reason."""

import ast
import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from flowfabric import errors
from flowfabric.app.executions import FAILURES
from flowfabric.engine import lanes
from flowfabric.postgres.driver import Connection, OwnConnection
from tests import sources
from tests.provoked import NOT_PROVOKED, Provoked, judge
from tests.sources import ENGINE, ROOT, SRC, TESTS, shown

PYTHON_FILE, SQL_FILE = 500, 600
PYTHON_FUNCTION, SQL_FUNCTION, TEST_FUNCTION = 60, 90, 40

HOUSE_WORDS = {"since", "until", "page", "sort"}

# Operations whose names differ in Python and in SQL, with the reason.
RENAMED = {
    "hold_lock": ("worker_lock", "SQL returns the number of the lock; Postgres itself takes the lock"),
    "append_frame": ("append_frames", "one; in SQL one function takes one or many"),
    "deliver_signals": ("deliver_signal", "the plural; in SQL one function takes one or many"),
}
SQL_ONLY = {"submit_one": "for programs in other languages; Python has `submit`"}

# Tables without data of executions: few rows, or, like the log, ordered by one number.
REFERENCE_TABLES = {
    *("consumers", "deployment", "events", "horizon", "keys", "lanes", "routes", "schedules", "turns", "workers"),
    "removals",  # an entry is about executions of many partitions
}

SQL_IN_PYTHON = {
    "call.py": "builds the call of a function",
    "driver.py": "prepares a session for our calls",
    "servers.py": "creates and drops the databases of tests, which have no functions yet",
    "embedded.py": "sets the password of a new cluster in single-user mode, before the server runs",
}

OPENS_A_TRANSACTION = {
    "src/flowfabric/engine/flows/build.py": "`add_execution` submits a new member, then adds it; no worker calls it",
}

MAY_SLEEP = {
    "tests/stories/workload.py": "an innocent run must still be running when its neighbour kills the process",
    "tests/given.py": "polls for what other sessions, threads and processes do, which takes real time",
    "tests/postgres/test_embedded.py": "polls for the processes and files of a server, which take real time",
    "tests/worker/test_outages.py": "handlers that take a while, so that an outage interrupts some of them",
    "tests/stories/test_cut_connections.py": "cuts the connections of real processes at an interval",
    "tests/stories/test_log.py": "keeps transactions open for random times, which is the case under test",
}
MAY_REPLACE = {
    "tests/test_ids.py": "stops the system clock to check the parts of a UUID, and sets the cell",
    "tests/test_cursors.py": "sets the cell",
    "tests/stories/test_cells.py": "sets the cell, which is no setting yet",
    "tests/schema/test_waiting.py": "adds a migration of a later release",
}

FUNCTIONS = sources.sql_functions()
BY_NAME = {function.name: function for function in FUNCTIONS}


def test_files_stay_small() -> None:
    python = sources.python_files(SRC, TESTS, ROOT / "examples", ROOT / "benchmarks")
    functions = [file for file in sources.sql_files(SRC) if file.parent.name != "migrations"]
    limits = [(file, PYTHON_FILE) for file in python] + [(file, SQL_FILE) for file in functions]

    long = [shown(file) for file, limit in limits if len(file.read_text().splitlines()) > limit]
    assert long == [
        "src/flowfabric/app/namespaces.py",  # written by `make sync`, as the next one
        "src/flowfabric/app/namespaces_sync.py",
        "src/flowfabric/app/sync.py",
        "src/flowfabric/errors.py",  # a list of all errors, with a sentence for each
        "src/flowfabric/handler/context.py",  # a third of it is overloads for type checkers
        "src/flowfabric/handler/sync.py",  # written by `make sync`
    ]


def test_functions_stay_small() -> None:
    python = sources.python_files(SRC, TESTS, ROOT / "examples", ROOT / "benchmarks")

    assert [
        f"{shown(function.file)}: {function.name} has {function.lines} lines"
        for function in sources.python_functions(*python)
        if function.lines > (TEST_FUNCTION if function.name.startswith("test_") else PYTHON_FUNCTION)
    ] == []
    assert [f.name for f in FUNCTIONS if len(f.text.splitlines()) > SQL_FUNCTION] == []


def test_a_function_has_a_header_that_says_what_it_does_and_an_operation_what_it_returns() -> None:
    """An internal function says what it returns if that is more than its first sentence and its type say."""
    assert [f.name for f in FUNCTIONS if not re.match(r"[A-Z].*[.:;,\w]", f.header)] == []
    operations = [f for f in FUNCTIONS if not f.is_internal and "\nreturns void\n" not in f.text]
    assert [f.name for f in operations if "returns" not in f.clauses] == []


def test_the_log_is_locked_before_an_event_is_written() -> None:
    for function in FUNCTIONS:
        held, written, _ = function.code.partition("insert into flowfabric.events (")
        by_caller = "The caller has locked the log." in function.header
        assert not written or by_caller or "perform flowfabric._lock_log();" in held, function.name


async def test_functions_are_installed_with_what_no_file_repeats(conn: Connection) -> None:
    """Operations use indexes, those that change something keep their plans, and a bare name is a column."""
    lacking = await conn.fetch("""select proname from pg_proc p join pg_language l on l.oid = p.prolang
        where pronamespace = 'flowfabric'::regnamespace
          and (lanname = 'plpgsql' and not starts_with(prosrc, '#variable_conflict use_column')
               or proname not like '\\_%' and provolatile <> 'i' and not coalesce(
                   'enable_seqscan=off' = any (proconfig)
                   and ('plan_cache_mode=force_generic_plan' = any (proconfig) or provolatile = 's'), false))""")

    assert {row["proname"] for row in lacking} & BY_NAME.keys() == {"clock"}  # which tests can move


def test_one_name_is_one_function() -> None:
    assert [name for name, count in Counter(f.name for f in FUNCTIONS).items() if count > 1] == []


def test_functions_have_one_style() -> None:
    bare = {f.name: sources.LITERAL.sub("", f.code) for f in FUNCTIONS}

    assert {name: re.findall(r"\b[A-Z]\w*", text) for name, text in bare.items() if re.search(r"\b[A-Z]", text)} == {}
    assert [name for name, text in bare.items() if "security definer" in text] == []
    assert [name for name, text in bare.items() if re.search(r"\braise exception\b", text)] == ["_raise"]


def test_no_operation_has_a_parameter_whose_name_is_reserved_for_lists() -> None:
    operations = {f.name: set(f.parameters) & HOUSE_WORDS for f in FUNCTIONS if not f.is_internal}

    assert {name: words for name, words in operations.items() if words} == {}


def test_there_are_no_foreign_keys_and_one_file_has_a_trigger() -> None:
    statements = {shown(file): sources.without_comments(file.read_text()) for file in sources.sql_files(SRC)}

    assert [file for file, text in statements.items() if re.search(r"\b(?:references|foreign key)\b", text)] == []
    assert [file for file, text in statements.items() if re.search(r"\bcreate (?:\w+ )*trigger\b", text)] == [
        "src/flowfabric/engine/events/append.sql"
    ]


async def test_the_only_triggers_are_those_listed_here(conn: Connection) -> None:
    found = await conn.fetch("""select tgname, tgenabled, tgdeferrable, tginitdeferred from pg_trigger
        where tgrelid in (select oid from pg_class where relnamespace = 'flowfabric'::regnamespace)""")

    assert [tuple(row.values()) for row in found] == [(name, b"A", True, True) for name in sources.TRIGGERS]


async def test_every_table_can_be_published(conn: Connection) -> None:
    """Logical replication refuses to update and delete rows that it cannot identify on the other side."""
    found = await conn.fetch("""select relname from pg_class c
        where relnamespace = 'flowfabric'::regnamespace and relkind in ('r', 'p') and relpersistence = 'p'
          and relreplident <> 'f' and not exists (select from pg_index where indrelid = c.oid and indisprimary)""")

    assert [row["relname"] for row in found] == []


def test_python_calls_only_functions_that_exist_and_all_the_public_ones() -> None:
    anywhere = [*sources.sql_files(ENGINE), SRC / "schema" / "registry.sql", SRC / "testing" / "clock.sql"]
    exist = {function.name for function in sources.sql_functions(*anywhere)}
    called = {name for file in sources.python_files(SRC) for name in sources.called(file)}

    assert called - exist == set()
    assert {f.name for f in FUNCTIONS if not f.is_internal} - called == SQL_ONLY.keys()


def test_an_operation_has_the_same_name_in_sql_and_in_python() -> None:
    operations = {function.name.removesuffix("_many") for file in _concepts() for function in _operations(file)}
    operations = {RENAMED.get(name, (name, ""))[0] for name in operations}
    functions = {f.name for f in FUNCTIONS if not f.is_internal} - SQL_ONLY.keys()

    assert _difference(operations, functions) == ""


def test_a_concept_is_a_pair_of_files_with_the_same_first_line() -> None:
    for file in filter(_operations, _concepts()):
        first, *_ = (ast.get_docstring(sources.parsed(file)) or "").splitlines()
        comment, *_ = file.with_suffix(".sql").read_text().splitlines()
        assert comment.removeprefix("-- ").startswith(first), shown(file)


def test_every_operation_has_a_one_line_summary() -> None:
    for file in _concepts():
        for function in _public_functions(file):
            first, *rest = (ast.get_docstring(function) or "").splitlines()
            assert re.fullmatch(r"[A-Z].*\.", first), f"{shown(file)}: {function.name}"
            assert not rest or rest[0] == "", f"{shown(file)}: {function.name}: the summary is one line"


def test_errors_named_in_docstrings_exist() -> None:
    names = {refusal.__name__ for refusal in _refusals()} | {kind.__name__ for kind in FAILURES.values()}
    names |= {"ValueError", "TypeError", "KeyError", "RuntimeError", "TimeoutError", "ChildFailed"}
    for file in sources.python_files(SRC):
        for said in re.findall(r"Raises ([^.]*)\.", file.read_text()):
            assert set(re.findall(r"`([A-Z]\w+)`", said)) - names == set(), f"{shown(file)}: {said}"


def test_every_code_raised_in_sql_has_a_class() -> None:
    raised = {code for function in FUNCTIONS for code in sources.FAULT.findall(function.code)}

    assert raised - errors.by_code().keys() == set()


async def test_sql_and_python_agree_on_the_family_of_every_error(conn: Connection) -> None:
    raised = {code for function in FUNCTIONS for code in sources.FAULT.findall(function.code)}
    families = await conn.fetch(
        "select code, flowfabric._family(code) as family from unnest($1::text[]) code", [*raised]
    )

    assert {f["code"]: f["family"] for f in families} == {code: str(errors.by_code()[code].status) for code in raised}


def test_a_run_in_which_an_error_code_was_never_provoked_fails() -> None:
    codes = errors.by_code().keys() - NOT_PROVOKED.keys()

    assert judge({*codes}) == ""
    assert "no test provokes: lane_not_found, lease_lost; " in judge(codes - {"lease_lost", "lane_not_found"})


async def test_an_error_counts_as_provoked_only_if_the_source_made_it(
    conn: Connection, request: pytest.FixtureRequest
) -> None:
    provoked = Provoked(request.config)
    request.addfinalizer(provoked.start())
    errors.LeaseLost("made here")
    errors.from_code("lease_lost", "made here too", {})
    assert provoked.codes == set()

    with pytest.raises(errors.LaneNotFound):
        await lanes.pause_lane(conn, "nowhere", by="ops")
    assert provoked.codes == {"lane_not_found"}


def test_python_holds_no_sql() -> None:
    statement = re.compile(r"\s*(?:select|insert into|update|delete from|with|alter|create|drop)\s+\S", re.IGNORECASE)
    found = {file.name for file in sources.python_files(SRC) if any(map(statement.match, _strings(file)))}

    assert _difference(found, set(SQL_IN_PYTHON)) == ""


def test_an_operation_opens_no_transaction_in_python() -> None:
    """It is one call of one SQL function: one round trip, which a worker can also make over HTTP."""
    files = sources.python_files(SRC / "worker", SRC / "handler", ENGINE)
    opening = {shown(file) for file in files if re.search(r"\btransaction\(", file.read_text())}

    assert _difference(opening, set(OPENS_A_TRANSACTION)) == ""


def test_every_call_to_postgres_has_a_time_limit() -> None:
    """Connections are opened in one place, as a class whose calls are limited; no other call of theirs is awaited."""
    opens = re.compile(r"\basyncpg\.connect\(|\bcreate_pool\(|\bopen_(?:unix_)?connection\(|\.sock_\w+\(")
    opening = {shown(file): opens.findall(file.read_text()) for file in sources.python_files(SRC)}
    assert {file: found for file, found in opening.items() if found} == {
        "src/flowfabric/postgres/driver.py": ["asyncpg.connect("]
    }
    assert "connection_class=OwnConnection" in (SRC / "postgres" / "driver.py").read_text()

    limited = {name for name, method in vars(OwnConnection).items() if asyncio.iscoroutinefunction(method)}
    talking = {name for name, method in vars(asyncpg.Connection).items() if asyncio.iscoroutinefunction(method)}
    awaited = {name for file in sources.python_files(SRC) for name in _awaited(file) if not name.startswith("_")}
    awaited &= talking - {"close", "reset"}
    assert awaited - limited == {"add_listener"}, (
        "which uses `fetch`; only a pool awaits `close`, with its own limit, and `reset` is that of budgets"
    )
    assert {"fetch", "execute"} <= limited


def test_migrations_are_numbered_without_a_gap() -> None:
    names = sorted(file.name for file in (SRC / "schema" / "migrations").glob("*.sql"))

    assert [name for name in names if not re.fullmatch(r"\d{4}_[a-z]+(?:_[a-z]+)*\.sql", name)] == []
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_every_table_begins_with_its_partition_and_so_does_its_key() -> None:
    migrations = "\n".join(file.read_text() for file in sorted((SRC / "schema" / "migrations").glob("0*.sql")))
    tables = dict(re.findall(r"^create table flowfabric\.(\w+) \(\n(.*?)\n\)", migrations, re.DOTALL | re.MULTILINE))

    assert tables.keys() > REFERENCE_TABLES
    for name in tables.keys() - REFERENCE_TABLES:
        first, *_ = tables[name].splitlines()
        assert re.match(r"\s+partition +smallint not null,", first), name
        assert re.findall(r"primary key(?! \(partition\b)", tables[name]) == [], name


def test_no_line_of_sql_is_over_120_columns() -> None:
    long = [
        f"{shown(file)}:{number}: {len(line)} columns"
        for file in sources.sql_files(SRC)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > 120
    ]

    assert not long, "\n".join(long)


def test_parameters_are_written_with_the_name_of_their_function() -> None:
    bare = [
        f"{shown(function.file)}:{line}: write {function.name}.{parameter}"
        for function in FUNCTIONS
        for line, parameter in function.bare_parameters()
    ]

    assert not bare, "\n".join(bare)


def test_tests_neither_sleep_nor_mock() -> None:
    sleeps = re.compile(r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))|\bpg_sleep\(")
    replaces = re.compile("unittest.mo" + r"ck|\bMagicMo" + r"ck\b|\bmonkeypatch\.(?:set|del)attr\(")
    tests = {shown(file): file.read_text() for file in sources.python_files(TESTS) if file != Path(__file__)}

    assert _difference({name for name in tests if sleeps.search(tests[name])}, set(MAY_SLEEP)) == ""
    assert _difference({name for name in tests if replaces.search(tests[name])}, set(MAY_REPLACE)) == ""


def test_the_tour_names_functions_in_the_right_files() -> None:
    tour = (ROOT / "docs" / "lifecycle.md").read_text()
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|[^|]*\| `engine/(\S+)` \|$", tour, re.MULTILINE)
    named = {name: ENGINE / file for names, file in rows for name in re.findall(r"`(\w+)`", names)}

    assert named.keys() >= {"submit", "claim", "cancel"}
    assert {
        name: shown(file) for name, file in named.items() if name not in BY_NAME or BY_NAME[name].file != file
    } == {}


def _difference(there: set[str], said: set[str]) -> str:
    """The names found but not listed, and the reverse; empty if both agree."""
    missing, extra = sorted(there - said), sorted(said - there)
    return " ".join([f"missing {missing}"] * bool(missing) + [f"extra {extra}"] * bool(extra))


def _concepts() -> list[Path]:
    return [file for file in sources.python_files(ENGINE) if file.name != "__init__.py"]


def _operations(file: Path) -> list[ast.AsyncFunctionDef]:
    """The functions that call Postgres; a plain function only prepares arguments."""
    return [function for function in _public_functions(file) if isinstance(function, ast.AsyncFunctionDef)]


def _public_functions(file: Path) -> Iterator[ast.AsyncFunctionDef | ast.FunctionDef]:
    for node in sources.parsed(file).body:
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def _refusals() -> Iterator[type[errors.FlowFabricError]]:
    yield from errors.FlowFabricError.__subclasses__()
    yield from errors.by_code().values()


def _awaited(file: Path) -> Iterator[str]:
    """The names of the methods whose calls are awaited in a file."""
    for node in ast.walk(sources.parsed(file)):
        called = node.value.func if isinstance(node, ast.Await) and isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute):
            yield called.attr


def _strings(file: Path) -> Iterator[str]:
    """Every string in the code of a file, without the docstrings."""
    tree = sources.parsed(file)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
