"""What the child inherits: an allow-list of variables, three pipes, a private umask; whatever the bridge has open."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import KEY, RunningBridge, python_program, running_bridge
from server.prompted import MODEL, ask, children_of, prompted_codex, send_request, wait_for

_DUMP = """import json, os, sys
# The listing's own is closed by the time that its name is looked up.
fds = {{fd: os.readlink(path) for fd in os.listdir("/proc/self/fd") if os.path.lexists(path := "/proc/self/fd/" + fd)}}
fds = {{fd: target for fd, target in fds.items() if int(fd) > 2}}
umask = os.umask(0)
os.umask(umask)
seen = {{"env": dict(os.environ), "fds": fds, "umask": umask, "argv": sys.argv, "groups": os.getpgid(0) == os.getpid()}}
with open({found!r} + "." + str(os.getpid()), "w") as file:
    json.dump(seen, file)
os.rename(file.name, file.name + ".json")
os.execv({child!r}, [{child!r}, *sys.argv[1:]])
"""

CANARIES = {
    name: f"canary-{name.lower()}"
    for name in (
        *("PROXY_API_KEYS_OLD", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
        *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "NPM_TOKEN", "SSH_AUTH_SOCK"),
        *("DATABASE_URL", "REDIS_URL", "KUBECONFIG", "GOOGLE_APPLICATION_CREDENTIALS", "CLAUDE_CODE_OAUTH_TOKEN"),
        *("LD_LIBRARY_PATH", "BASH_ENV", "ENV", "NODE_OPTIONS", "PERL5LIB", "PROMPT_COMMAND", "GIT_SSH_COMMAND"),
        *("SUDO_COMMAND", "HISTFILE", "DBUS_SESSION_BUS_ADDRESS", "CODEX_API_KEY_OF_ANOTHER"),
    )
}


class Dumps:
    """What each child found, in the order in which they were started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        def found() -> list[Path]:
            paths = sorted(self._directory.glob("found.*.json"), key=lambda path: path.stat().st_mtime_ns)
            return paths if len(paths) >= count else []

        return [json.loads(path.read_text()) for path in wait_for(found, f"{count} children")]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBridge, Dumps, Path]]:
    directory = tmp_path_factory.mktemp("inherited")
    child = prompted_codex(directory)
    dump = _DUMP.format(found=str(directory / "found"), child=str(child))
    program = python_program(directory / "dumping-codex", dump)
    config = directory / "config.toml"
    config.write_text(
        '[backends.other]\ntype = "openai"\nbase_url = "http://127.0.0.1:9/v1"\nkey = "canary-in-config"\n'
    )
    config.chmod(0o600)
    arguments = [f"--config={config}", f"--log-events={directory / 'events.ndjson'}"]
    with running_bridge(directory, *arguments, CODEX_BIN=str(program), PROXY_MODELS=MODEL, **CANARIES) as bridge:
        yield bridge, Dumps(directory), directory


def test_no_secret_of_ours_is_in_its_environment(started: tuple[RunningBridge, Dumps, Path]) -> None:
    """Nor in its arguments; nothing but what is on the list comes through."""
    bridge, dumps, _ = started
    assert bridge.post("/responses", ask({"text": "hi"})).status_code == 200
    (found,) = dumps.wait_for(1)
    assert "canary" not in json.dumps(found)
    assert KEY not in json.dumps(found)
    assert not [name for name in found["env"] if name.startswith("PROXY_")]
    listed = {"PATH", "HOME", "CODEX_HOME", "CODEX_SQLITE_HOME", "SSL_CERT_FILE", "LC_CTYPE"}
    listed.add("PWD")  # which the program's shell sets
    assert set(found["env"]) <= listed, sorted(set(found["env"]) - listed)


def test_it_has_none_of_our_files(started: tuple[RunningBridge, Dumps, Path]) -> None:
    """Not even when it is started again, with clients, the log, the store and the listener open."""
    bridge, dumps, _ = started
    (child,) = [pid for pid in children_of(bridge.process.pid) if "standin" not in command_of(pid)]
    with (
        socket.create_connection(("127.0.0.1", bridge.port)),
        send_request(bridge, "/v1/responses", ask({"hang": "while it dies"}, stream=True)),
    ):
        os.kill(child, signal.SIGKILL)
        for found in dumps.wait_for(2):
            assert found["fds"] == {}
            assert found["umask"] == 0o077
            assert found["groups"]


def test_what_is_written_for_it_is_private(started: tuple[RunningBridge, Dumps, Path]) -> None:
    """The working directory, the state directory and everything in them, and the event log."""
    bridge, _, directory = started
    paths = [directory / "work", directory / "events.ndjson", *(bridge.state / "turnbridge").rglob("*")]
    assert len(paths) > 3
    for path in [*paths, bridge.state / "turnbridge"]:
        assert path.is_symlink() or stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
