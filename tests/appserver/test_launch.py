"""With what the child is started: program, arguments, environment, catalog."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from harness import running_bridge
from server.prompted import MODEL, ask, wait_for

from bridge.appserver.dialect import ChildInfo
from bridge.appserver.launch import CodexLauncher, StandinLauncher, find_codex
from bridge.errors import NotReady

CODEX = ChildInfo("0.163.0", True, "current", frozenset())
OTHER = ChildInfo("1.2.3", False, "current", frozenset())


def program(path: Path, text: str) -> Path:
    """A shell program."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def launcher(directory: Path, binary: Path, **options: Any) -> CodexLauncher:
    """A launcher whose directories are all under one."""
    return CodexLauncher(
        binary=str(binary), home=directory / "home", state=directory / "state", workdir=directory / "work", **options
    )


def overrides(argv: Any) -> dict[str, str]:
    """The `-c` arguments of a command line."""
    words = list(argv)
    pairs = [words[index + 1] for index, word in enumerate(words) if word == "-c"]
    return dict(pair.split("=", 1) for pair in pairs)


# Through the bridge


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a child that the bridge starts finds: its arguments, environment and directory."""
    directory = tmp_path_factory.mktemp("launch")
    home = directory / "home"
    home.mkdir()
    (home / "config.toml").write_text('[model_providers.house]\nenv_key = "HOUSE_KEY"\n')
    found = directory / "found.json"
    dump = (
        "import json, os, sys; "
        f"json.dump([sys.argv[1:], dict(os.environ), os.getcwd()], open('{found}.new', 'w')); "
        f"os.rename('{found}.new', '{found}'); sys.stdin.read()"
    )
    codex = program(directory / "codex", f'exec {quote(sys.executable)} -c "{dump}" "$@"')
    with running_bridge(
        directory,
        CODEX_BIN=str(codex),
        CODEX_HOME=str(home),
        PROXY_API_KEY="the-proxy-key-canary",
        OPENAI_API_KEY="openai-canary",
        SOME_TOKEN="token-canary",
        CODEX_SQLITE_HOME="/databases-canary",
        HOUSE_KEY="house-key-value",
        RUST_LOG="warn",
    ):
        wait_for(found.exists, "the child has written what it found")
    argv, env, cwd = json.loads(found.read_text())
    return {"argv": argv, "env": env, "cwd": cwd, "state": directory / "state", "work": str(directory / "work")}


def test_the_child_sees_no_key_but_its_provider_s(started: dict[str, Any]) -> None:
    """An allow-list of the environment, a CODEX_HOME of its own, and the variable that config.toml names."""
    env = started["env"]
    assert "canary" not in json.dumps(env)
    assert not [name for name in env if name.startswith("PROXY_") or name == "PORT"]
    assert Path(env["CODEX_HOME"]).is_relative_to(started["state"])
    assert env["HOUSE_KEY"] == "house-key-value"
    assert env["RUST_LOG"] == "warn"
    assert "PATH" in env
    assert "canary" not in json.dumps(started["argv"])


def test_the_child_is_codex_app_server_with_overrides(started: dict[str, Any]) -> None:
    """`CODEX_BIN app-server -c …` in a private working directory, with its own tools and calls home off."""
    assert started["argv"][0] == "app-server"
    assert started["cwd"] == started["work"]
    assert stat.S_IMODE(Path(started["work"]).stat().st_mode) == 0o700
    given = overrides(started["argv"])
    assert given["features.shell_tool"] == "false"
    assert given["web_search"] == '"disabled"'
    assert given["analytics.enabled"] == "false"
    assert given["check_for_update_on_startup"] == "false"
    assert given["include_environment_context"] == "false"
    assert "model_catalog_json" not in given


def test_a_state_directory_that_cannot_be_made_does_not_stop_the_bridge(tmp_path: Path) -> None:
    """The listener stays and says that the child is not ready; the mock models work. (A store on disk needs one.)"""
    codex = program(tmp_path / "codex", "exec cat")
    settings = {"XDG_STATE_HOME": "/proc/nowhere", "PROXY_STORE": "memory", "PROXY_MODELS": MODEL}
    with running_bridge(tmp_path, CODEX_BIN=str(codex), **settings) as bridge:
        assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
        refused = bridge.post("/responses", ask({"text": "hi"}))
        assert refused.status_code == 503
        assert bridge.process.poll() is None


# The launcher itself


async def test_native_tools_leave_codex_its_own_tools(tmp_path: Path) -> None:
    """--native-tools keeps only the overrides that stop Codex from calling home."""
    codex = program(tmp_path / "codex", "exit")
    small = overrides((await launcher(tmp_path, codex).command()).argv)
    native = overrides((await launcher(tmp_path, codex, native_tools=True).command()).argv)
    assert set(native) < set(small)
    assert not [key for key in native if key.startswith(("features.", "model_", "include_", "skills.", "tools."))]
    assert "model_instructions_file" in small


async def test_the_stand_in_gets_the_same_small_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock child gets no more of the environment than Codex."""
    monkeypatch.setenv("PROXY_API_KEY", "canary")
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    command = await StandinLauncher().command()
    assert "canary" not in json.dumps(dict(command.env))
    assert list(command.argv)[1:5] == ["-P", "-m", "bridge", "app-server"]


CATALOG = {
    "models": [
        {
            "slug": "m",
            "base_instructions": "You are …",
            "tool_mode": "code_mode_only",
            "kept": 1,
            "context_window": 9000,
        },
        {"slug": ["odd"], "context_window": 5},
        {"slug": "unknown", "context_window": None},
    ]
}


async def learns(starting: CodexLauncher, info: ChildInfo = CODEX) -> bool:
    """Whether a child that is started now is to be restarted after its handshake."""
    return await starting.learn(info, await starting.command())


async def test_several_children_all_get_the_catalog(tmp_path: Path) -> None:
    """Those that were started without it are restarted too, whichever of them asked for it."""
    codex = program(tmp_path / "codex", f"echo '{json.dumps(CATALOG)}'")
    shared = launcher(tmp_path, codex)
    commands = [await shared.command() for _ in range(3)]
    assert [await shared.learn(CODEX, command) for command in commands] == [True, True, True]
    assert await learns(shared) is False


async def test_the_catalog_is_requested_once_and_kept_small(tmp_path: Path) -> None:
    """A real Codex is restarted once, with its own catalog without prompts and tools, in a file of ours alone."""
    asked = tmp_path / "asked"
    codex = program(tmp_path / "codex", f"echo \"$@\" >> {asked}\necho '{json.dumps(CATALOG)}'")
    first = launcher(tmp_path, codex)
    assert await learns(first) is True
    assert asked.read_text() == "debug models --bundled\n"
    path = Path(json.loads(overrides((await first.command()).argv)["model_catalog_json"]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entry = json.loads(path.read_text())["models"][0]
    assert (entry["slug"], entry["kept"]) == ("m", 1)
    assert (entry["base_instructions"], entry["tool_mode"]) == ("", "direct")
    assert await learns(first) is False
    assert await learns(launcher(tmp_path, codex)) is False
    assert asked.read_text() == "debug models --bundled\n"
    assert not list((tmp_path / "state").glob("*.new"))


async def test_the_models_windows_are_kept_beside_the_catalog(tmp_path: Path) -> None:
    """As Codex reported them, for the next start too; a catalog without them is requested again."""
    codex = program(tmp_path / "codex", f"echo '{json.dumps(CATALOG)}'")
    for _ in range(2):
        starting = launcher(tmp_path, codex)
        await learns(starting)
        assert starting.context_windows == {"m": 9000}
    (windows,) = (tmp_path / "state").glob("context-windows-*")
    windows.unlink()
    again = launcher(tmp_path, codex)
    assert await learns(again) is False
    assert again.context_windows == {"m": 9000}


async def test_another_binary_has_another_catalog(tmp_path: Path) -> None:
    """An updated Codex is asked again."""
    codex = program(tmp_path / "codex", f"echo '{json.dumps(CATALOG)}'")
    assert await learns(launcher(tmp_path, codex)) is True
    program(codex, f"# newer\necho '{json.dumps(CATALOG)}'")
    assert "model_catalog_json" not in overrides((await launcher(tmp_path, codex).command()).argv)
    assert await learns(launcher(tmp_path, codex)) is True


@pytest.mark.parametrize(
    "said",
    ["", "not json", "[]", "{}", '{"models":5}', '{"models":["m"]}', '{"models":[null]}'],
    ids=["nothing", "text", "array", "empty", "number", "strings", "nulls"],
)
async def test_a_codex_without_a_usable_catalog_is_used_as_it_is(tmp_path: Path, said: str) -> None:
    """Older releases cannot print it; whatever comes instead is no reason to stop."""
    codex = program(tmp_path / "codex", f"echo '{said}'")
    asking = launcher(tmp_path, codex)
    assert await learns(asking) is False
    assert "model_catalog_json" not in overrides((await asking.command()).argv)


async def test_only_a_real_codex_prints_its_catalog(tmp_path: Path) -> None:
    """Another program that speaks the protocol is not run with arguments it does not know."""
    asked = tmp_path / "asked"
    codex = program(tmp_path / "codex", f"touch {asked}")
    assert await learns(launcher(tmp_path, codex), OTHER) is False
    assert await learns(launcher(tmp_path, codex, native_tools=True)) is False
    assert not asked.exists()


async def test_without_codex_the_error_names_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No CODEX_BIN, none on PATH, none installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if find_codex(None) is not None:
        pytest.skip("the `codex` extra is installed")
    with pytest.raises(NotReady, match="install") as refused:
        await CodexLauncher(binary=None, home=tmp_path, state=tmp_path, workdir=tmp_path).command()
    assert refused.value.code == "codex_not_found"


def test_codex_is_looked_for_in_the_setting_and_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is taken as it is, a name is looked up, and without a setting it is `codex`."""
    found = program(tmp_path / "codex", "exit")
    other = program(tmp_path / "my-codex", "exit")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_codex(None) == str(found)
    assert find_codex("my-codex") == str(other)
    assert find_codex(str(other)) == str(other)
    assert find_codex("/nowhere/codex") == "/nowhere/codex"
