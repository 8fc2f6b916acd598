"""`turnbridge doctor`: each line is ok, or says what to do."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT, python_program, running_bridge, scripted_codex, turns
from warm import run_warm

NO_LOGIN = """import sys

sys.path.insert(0, {root!r})
import trio
from bridge.appserver.standin import server
from jsonrpcserver import Success


class LoggedOut(server.Standin):
    def _call(self, method, /, **params):
        if method == "account/read":
            return Success({{"account": None, "requiresOpenaiAuth": True}})
        return super()._call(method, **params)


trio.run(LoggedOut().run)
"""


def doctor(directory: Path, *arguments: str, cwd: Path = ROOT, **environment: str) -> tuple[int, dict[str, str], str]:
    """(exit code, the lines by what they are about, all that was printed)."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "XDG_STATE_HOME": str(directory / "state"),
        "PROXY_CODEX_WORKDIR": str(directory / "work"),
        "PORT": "0",
        **environment,
    }
    done = run_warm("doctor", *arguments, env=env, cwd=cwd, text=True, timeout=30)
    assert "Traceback" not in done.stderr
    lines = {}
    for line in done.stdout.splitlines():
        if line.startswith(("ok ", "!! ")):
            lines[line.split()[1]] = line
    return done.returncode, lines, done.stdout


def test_when_all_is_well_every_line_is_ok(tmp_path: Path) -> None:
    """Binary, version, dialect, login, CODEX_HOME, port, workdir, models; exit code 0."""
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text('model = "house-model"\n')
    codex = scripted_codex(tmp_path, turns([{"text": "hi"}], user_agent="somebody/9.8.7"))
    code, lines, printed = doctor(tmp_path, f"--codex-bin={codex}")
    assert code == 0, printed
    assert set(lines) == {"CODEX_HOME", "port", "workdir", "binary", "version", "dialect", "tools", "login", "models"}
    assert all(line.startswith("ok ") for line in lines.values())
    assert "house-model" in lines["CODEX_HOME"]
    assert str(codex) in lines["binary"]
    assert "9.8.7" in lines["version"]
    assert "current" in lines["dialect"]
    assert "read-only" in lines["workdir"]


def test_relative_paths_are_relative_to_where_the_command_runs(tmp_path: Path) -> None:
    """Codex itself runs in another directory, and finds its home and its program all the same."""
    (tmp_path / "home").mkdir()
    codex = scripted_codex(tmp_path, turns([{"text": "hi"}]))
    codex.rename(tmp_path / "home" / "codex")
    code, lines, printed = doctor(tmp_path, "--codex-bin=home/codex", "--codex-home=home", cwd=tmp_path)
    assert code == 0, printed
    assert str(tmp_path / "home") in lines["CODEX_HOME"]
    assert str(tmp_path / "home" / "codex") in lines["binary"]


def test_what_is_wrong_is_said_with_what_to_do(tmp_path: Path) -> None:
    """A missing CODEX_BIN, a broken config.toml, a taken port and an open workdir, all at once; exit code 1."""
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text("model = ")
    (tmp_path / "work").mkdir()
    (tmp_path / "work").chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines, printed = doctor(tmp_path, f"--port={port}", CODEX_BIN=str(tmp_path / "none"))
    assert code == 1
    for name, advice in {
        "CODEX_HOME": "config.toml",
        "port": "--port",
        "workdir": "chmod 700",
        "binary": "CODEX_BIN",
    }.items():
        assert lines[name].startswith("!! "), printed
        assert advice in lines[name]
    assert "to fix" in printed


def test_a_bridge_of_ones_own_that_runs_is_no_fault(tmp_path: Path) -> None:
    """It is asked what it is; any other program on the port is something to do."""
    (tmp_path / ".codex").mkdir()
    codex = scripted_codex(tmp_path, turns([{"text": "hi"}]))
    with running_bridge(tmp_path, CODEX_BIN=str(codex)) as bridge:
        code, lines, printed = doctor(tmp_path, f"--port={bridge.port}", CODEX_BIN=str(codex))
    assert code == 0, printed
    assert lines["port"].startswith("ok ")
    assert "in use by a running turnbridge" in lines["port"]


def test_a_codex_without_a_login_is_told_how_to_get_one(tmp_path: Path) -> None:
    """The line names the command."""
    (tmp_path / ".codex").mkdir()
    codex = python_program(tmp_path / "codex", NO_LOGIN.format(root=str(ROOT)))
    code, lines, _ = doctor(tmp_path, CODEX_BIN=str(codex))
    assert code == 1
    assert lines["login"].startswith("!! ")
    assert "turnbridge auth login" in lines["login"]


def test_what_codex_says_of_its_configuration_is_shown(tmp_path: Path) -> None:
    """A config.toml that Codex ignores is something to do; other warnings are shown, and bubblewrap's is not."""
    (tmp_path / ".codex").mkdir()
    said = [
        {"summary": "Codex could not find bubblewrap on PATH. Install it."},
        {"summary": "Codex is ignoring 1 unrecognized configuration setting.\n  `nonsense` is ignored."},
        {"summary": "Invalid configuration; using defaults.", "details": "Model provider `nope` not found"},
    ]
    for count, expected in ((2, 0), (3, 1)):
        lines = [json.dumps({"method": "configWarning", "params": each}) for each in said[:count]]
        codex = scripted_codex(tmp_path, turns([{"text": "hi"}], startup=[{"garbage": line} for line in lines]))
        code, _, printed = doctor(tmp_path, CODEX_BIN=str(codex))
        assert code == expected, printed
        assert "ok  config     Codex warns: Codex is ignoring 1 unrecognized" in printed
        assert ("!!  config     Codex ignores config.toml" in printed) is bool(expected)
        assert ("Model provider `nope` not found" in printed) is bool(expected)
        assert "bubblewrap" not in printed


@pytest.mark.parametrize("value", [None, "", "secret"])
def test_the_key_of_the_provider_is_looked_for(tmp_path: Path, value: str | None) -> None:
    """The variable and the provider are named; its value is not shown."""
    (tmp_path / ".codex").mkdir()
    config = 'model_provider = "house"\n[model_providers.house]\nenv_key = "HOUSE_KEY"\n'
    (tmp_path / ".codex" / "config.toml").write_text(config)
    environment: dict[str, Any] = {} if value is None else {"HOUSE_KEY": value}
    _, lines, printed = doctor(tmp_path, CODEX_BIN=str(tmp_path / "none"), **environment)
    assert lines["env_key"].startswith("ok " if value else "!! "), printed
    assert "HOUSE_KEY" in lines["env_key"]
    assert "house" in lines["env_key"]
    assert "secret" not in printed


def test_a_codex_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    """What it said before it ended is the best advice there is."""
    (tmp_path / ".codex").mkdir()
    codex = tmp_path / "codex"
    codex.write_text("#!/bin/sh\necho 'error: unexpected argument app-server' >&2\nexit 2\n")
    codex.chmod(0o755)
    code, lines, _ = doctor(tmp_path, CODEX_BIN=str(codex))
    assert code == 1
    assert lines["binary"].startswith("ok ")
    assert lines["start"].startswith("!! ")
    assert "unexpected argument app-server" in lines["start"]


def test_an_ipv6_address_is_an_address(tmp_path: Path) -> None:
    """A port is probed the way `serve` would open it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    _, lines, printed = doctor(tmp_path, CODEX_BIN=str(tmp_path / "none"), PROXY_HOST="::1")
    assert lines["port"].startswith("ok "), printed
