"""A real PostgreSQL server in a directory of its own, for the tests of the store in it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from packages import NotInstalled, install

PATIENCE = 60
USER = "bridge"
PASSWORD = "pass-word-of-the-store"


def find_programs() -> Path:
    """The directory of PostgreSQL's programs; they are installed where that is possible. Raises NotInstalled."""
    for attempt in range(2):
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
        if found:
            return found[-1].parent
        if (program := shutil.which("initdb")) is not None:
            return Path(program).resolve().parent
        if not attempt:
            install("postgresql")
    raise NotInstalled("The package postgresql has no initdb.")


class Postgresql:
    """A server that can be stopped, killed, frozen and started again."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs = programs
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._databases = 0
        self._shared: str | None = None
        directory.mkdir()
        owner = _user()
        if owner is not None:
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        password = directory / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run("initdb", "-D", self._data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={password}", "-N")

    @property
    def _data(self) -> str:
        return str(self._directory / "data")

    def url(self, database: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        arguments = [each for name, value in options.items() for each in ("-c", f"{name}={value}")]
        with (self._directory / "log").open("ab") as log:
            command = [str(self._programs / "postgres"), "-D", self._data, *arguments]
            self._process = subprocess.Popen(
                [*_as_user(), *command], stdout=log, stderr=log, cwd=self._directory, start_new_session=True
            )
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-d", "postgres"]
        for _ in range(PATIENCE * 10):
            if subprocess.run(ready, timeout=PATIENCE).returncode == 0:
                return
            assert self._process.poll() is None, (self._directory / "log").read_text()
            try:
                self._process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("PostgreSQL does not start")

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """SIGINT stops it in order, SIGQUIT at once; SIGKILL kills every process of it."""
        if self._process is None:
            return
        if number is signal.SIGKILL:
            for pid in _family(self._process.pid):
                os.kill(pid, signal.SIGKILL)
        else:
            self._process.send_signal(number)
        self._process.wait(PATIENCE)
        self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All its processes stand still. The kernel continues to accept connections and data for them."""
        assert self._process is not None
        family = _family(self._process.pid)
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in family:
                os.kill(pid, signal.SIGCONT)

    def new_database(self) -> str:
        """The URL of an empty database."""
        self._databases += 1
        name = f"test{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def empty_database(self) -> str:
        """The URL of a database that is always the same, without the rows of the test before."""
        if self._shared is None:
            self._shared = self.new_database()
        tables = ("response", "conversation", "usage", "writer", "client_key")
        with suppress(psycopg.errors.UndefinedTable):
            self.execute("; ".join(f"DELETE FROM turnbridge.{table}" for table in tables), self._shared)
        return self._shared

    def execute(self, statement: str, url: str | None = None) -> list[tuple[object, ...]]:
        """One statement as the superuser, in the database of the URL; its rows."""
        with psycopg.connect(url or self.url("postgres"), autocommit=True, connect_timeout=PATIENCE) as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def cut_connections(self) -> None:
        """End every other connection, in the middle of whatever it does."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'turnbridge'")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*_as_user(), str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=self._directory)
        assert done.returncode == 0, done.stderr


def _family(postmaster: int) -> list[int]:
    """The postmaster and its children, each of which leads a session of its own."""
    found = [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent_of(stat) == postmaster]
    return [postmaster, *found]


def _parent_of(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):  # it has ended
        return None


def _user() -> pwd.struct_passwd | None:
    """Another user than root, as whom PostgreSQL refuses to run; None where the tests do not run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NotInstalled("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`.")


def _as_user() -> list[str]:
    owner = _user()
    if owner is None:
        return []
    return ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]


@contextmanager
def running_postgresql() -> Iterator[Postgresql]:
    """A server that runs. Raises NotInstalled where there is none and none can be installed."""
    programs = find_programs()
    # Not below pytest's directory, which other users cannot enter.
    with tempfile.TemporaryDirectory(prefix="turnbridge-postgresql-") as directory:
        os.chmod(directory, 0o755)
        server = Postgresql(programs, Path(directory) / "server")
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)  # without writing to the disk what is deleted next
