"""`turnbridge auth`: who is logged in, told without a token; and `login`, which hands over to Codex."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT, python_program
from upstream.tokens import (
    ACCOUNT,
    CHATGPT_FORMS,
    FORMS,
    KEY_FORMS,
    Logins,
    assert_no_secrets,
    auth_json,
    jwt,
    write_auth_json,
)
from warm import run_warm

from bridge.appserver.launch import NO_CODEX
from bridge.errors import LOG_IN

TOKENS = {"id_token": jwt("id"), "refresh_token": "rt_canary"}


def tokens(expiry: Any) -> dict[str, Any]:
    return {**TOKENS, "access_token": jwt("access", exp=expiry)}


CONTENTS: dict[str, Any] = {
    **{form: auth_json(form, Logins()) for form in FORMS},
    "expired": auth_json("chatgpt", Logins(), tokens(1_700_000_000)),
    "expired for good": auth_json("chatgpt", Logins(), {**tokens(1_700_000_000), "refresh_token": None}),
    "far away": auth_json("chatgpt", Logins(), tokens(10**18)),
    "odd time": auth_json("chatgpt", Logins(), tokens("soon")),
    "opaque": auth_json(
        "chatgpt", Logins(), {"access_token": "opaque-canary", "refresh_token": "rt_canary", "id_token": ""}
    ),
    "escapes": auth_json("chatgpt", Logins(), tokens(4102444800), last_refresh="\x1b]0;title\x07\nlogged in as root"),
    "nothing": {},
    "no object": ["canary"],
    "no json": "{canary",
    "no file": None,
}
"""What may stand in an auth.json."""


@dataclass(frozen=True)
class Told:
    """What the two forms of the command said."""

    code: int
    text: str
    json: dict[str, Any]
    home: Path


_FORKING = """
import gc, json, os, sys, datetime, orjson, pydantic
import bridge.appserver.launch, bridge.upstream.codex, bridge.settings
from bridge.cli import main

gc.freeze()
for order in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        for number, name in enumerate(order["files"], 1):
            os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), number)
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.argv = ["turnbridge", "auth", *order["arguments"]]
        try:
            main()
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code or 0)  # without tidying up, which would take as long again
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs the command many times, each in a fork: half a second is saved each time."""


@dataclass
class Run:
    """A command, and what became of it."""

    arguments: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    code: int = -1
    stdout: str = ""
    stderr: str = ""


def run_all(directory: Path, *runs: Run) -> None:
    """Run them one after the other."""
    orders, files = [], []
    for number, run in enumerate(runs):
        files.append([directory / f"{number}.{name}" for name in ("stdout", "stderr")])
        env = {"PATH": os.environ["PATH"], "HOME": str(directory), "COLUMNS": "80", **run.variables}
        orders.append({"arguments": run.arguments, "environment": env, "files": list(map(str, files[-1]))})
    done = subprocess.run(
        [sys.executable, "-P", "-c", _FORKING],
        cwd=ROOT,
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for run, code, written in zip(runs, done.stdout.split(), files, strict=True):
        run.code = int(code)
        run.stdout, run.stderr = (file.read_text() for file in written)
        assert "Traceback" not in run.stderr, run.stderr


def auth(directory: Path, *arguments: str, **variables: str) -> Run:
    run = Run([*arguments], variables)
    run_all(directory, run)
    return run


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """Each of them, told in both forms."""
    base = Path(tmp_path_factory.mktemp("auth"))
    homes = {case: base / f"home-{number}" for number, case in enumerate(CONTENTS)}
    for case, content in CONTENTS.items():
        if isinstance(content, dict | list):
            write_auth_json(homes[case], content)
        elif content is not None:
            write_auth_json(homes[case], {}).write_text(content)
    before = sorted(base.rglob("auth.json*"))
    texts = {case: Run(["status"], {"CODEX_HOME": str(home)}) for case, home in homes.items()}
    jsons = {case: Run(["status", "--json", "--codex-home", str(home)]) for case, home in homes.items()}
    run_all(base, *texts.values(), *jsons.values())
    assert sorted(base.rglob("auth.json*")) == before
    for case in CONTENTS:
        assert (texts[case].code, texts[case].stderr, jsons[case].stderr) == (jsons[case].code, "", "")
        assert jsons[case].stdout.count("\n") == 1
        assert_no_secrets(texts[case].stdout, jsons[case].stdout)
    return {
        case: Told(texts[case].code, texts[case].stdout, json.loads(jsons[case].stdout), homes[case])
        for case in CONTENTS
    }


# Status


@pytest.mark.parametrize("form", CHATGPT_FORMS)
def test_a_chatgpt_login(told: dict[str, Told], form: str) -> None:
    status = told[form]
    assert status.code == 0
    assert status.json == {
        "logged_in": True,
        "file": str(status.home / "auth.json"),
        "mode": "chatgpt",
        "account_id": ACCOUNT,
        "plan": "plus",
        "expires": "2100-01-01 00:00 UTC",
        "can_refresh": True,
        "last_refresh": "2026-01-01T00:00:00.000000Z",
    }
    assert status.text == (
        "logged in with ChatGPT\n"
        f"  account id    {ACCOUNT}\n"
        "  plan          plus\n"
        "  expires       2100-01-01 00:00 UTC\n"
        "  last refresh  2026-01-01T00:00:00.000000Z\n"
        f"  file          {status.home / 'auth.json'}\n"
    )


@pytest.mark.parametrize("form", KEY_FORMS)
def test_an_api_key(told: dict[str, Told], form: str) -> None:
    status = told[form]
    assert status.code == 0
    assert status.json == {"logged_in": True, "file": str(status.home / "auth.json"), "mode": "api_key"}
    assert status.text == f"logged in with an API key\n  file          {status.home / 'auth.json'}\n"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("nothing", "has no API key"),
        ("no object", "is not a JSON object"),
        ("no json", "is not valid JSON"),
        ("no file", "is not logged in"),
    ],
)
def test_no_login(told: dict[str, Told], case: str, reason: str) -> None:
    status = told[case]
    assert status.code == 1
    assert status.json["logged_in"] is False
    assert reason in status.json["message"]
    assert status.json["message"].endswith(LOG_IN)
    assert status.json["file"] == str(status.home / "auth.json")
    assert status.json["message"] in " ".join(status.text.split())
    assert str(status.home / "auth.json") in status.text


def test_a_login_that_is_over_says_what_happens_next(told: dict[str, Told]) -> None:
    assert told["expired"].code == 0
    assert "2023-11-14 22:13 UTC (expired; the next request refreshes it)" in told["expired"].text


def test_a_login_that_is_over_for_good_is_not_refreshed(told: dict[str, Told]) -> None:
    status = told["expired for good"]
    assert status.json["can_refresh"] is False
    assert "next request refreshes it" not in status.text


@pytest.mark.parametrize("case", ["far away", "odd time", "opaque"])
def test_a_time_that_cannot_be_read_is_left_out(told: dict[str, Told], case: str) -> None:
    status = told[case]
    assert (status.code, status.json["expires"]) == (0, None)
    assert "expires" not in status.text


def test_a_file_cannot_play_with_the_terminal(told: dict[str, Told]) -> None:
    status = told["escapes"]
    assert status.text.replace("\n", "").isprintable()
    assert not any(line.startswith("logged in as root") for line in status.text.splitlines())


def test_a_login_fits_in_80_columns(told: dict[str, Told]) -> None:
    """But for paths, which are as long as they are."""
    for case in ("chatgpt", "apikey", "expired"):
        lines = [line for line in told[case].text.splitlines() if "/" not in line]
        assert max(map(len, lines)) <= 80, case


def test_no_login_fits_in_80_columns(told: dict[str, Told]) -> None:
    lines = [line for line in told["no file"].text.splitlines() if "/" not in line]
    assert max(map(len, lines)) <= 80


def test_help_fits_in_80_columns(tmp_path: Path) -> None:
    runs = [Run(["--help"]), Run(["status", "--help"]), Run(["login", "--help"])]
    run_all(tmp_path, *runs)
    for run in runs:
        assert run.code == 0
        assert "Usage: turnbridge auth" in run.stdout
        assert max(map(len, run.stdout.splitlines())) <= 80


def test_a_path_that_is_no_utf_8(tmp_path: Path) -> None:
    home = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    runs = [Run(["status"], {"CODEX_HOME": home}), Run(["status", "--json"], {"CODEX_HOME": home})]
    run_all(tmp_path, *runs)
    assert [run.code for run in runs] == [1, 1]


# Login

CODEX = """import json, os, sys

print(json.dumps({{"arguments": sys.argv[1:], "home": os.environ.get("CODEX_HOME"), "stdin": sys.stdin.read()}}))
print("said on stderr", file=sys.stderr)
raise SystemExit(7)
"""


def fake_codex(directory: Path) -> Path:
    """A Codex that tells how it was called."""
    program = directory / "bin" / "codex"
    program.parent.mkdir()
    return python_program(program, CODEX.format())


@pytest.mark.parametrize("flags", [[], ["--device-auth"], ["--with-api-key"]], ids=str)
def test_login_hands_over_to_codex(tmp_path: Path, flags: list[str]) -> None:
    """Its arguments, its streams and its exit code are Codex's; a CODEX_HOME that is named is made."""
    home = tmp_path / "new" / "home"
    codex = fake_codex(tmp_path)
    env = {"PATH": f"{codex.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "CODEX_HOME": str(home)}
    done = run_warm("auth", "login", *flags, env=env, input="sk-typed", text=True)
    assert (done.returncode, done.stderr) == (7, "said on stderr\n")
    assert json.loads(done.stdout) == {"arguments": ["login", *flags], "home": str(home), "stdin": "sk-typed"}
    assert home.stat().st_mode & 0o777 == 0o700


def test_login_with_a_codex_and_a_home_of_its_own(tmp_path: Path) -> None:
    codex = fake_codex(tmp_path)
    done = auth(tmp_path, "login", "--codex-bin", str(codex), "--codex-home", str(tmp_path / "home"))
    assert json.loads(done.stdout)["home"] == str(tmp_path / "home")


def test_login_without_a_named_home_leaves_it_to_codex(tmp_path: Path) -> None:
    done = auth(tmp_path, "login", CODEX_BIN=str(fake_codex(tmp_path)))
    assert json.loads(done.stdout)["home"] is None
    assert not (tmp_path / ".codex").exists()


MISTAKES = {
    "--device-auth --with-api-key": "either --device-auth or --with-api-key",
    "--codex-bin /no/such/codex": "/no/such/codex cannot be run: No such file or directory. Set CODEX_BIN",
    "--codex-bin /etc/passwd": "/etc/passwd cannot be run: Permission denied. Set CODEX_BIN",
    "--codex-bin /bin/true --codex-home /dev/null/home": "cannot be created: Not a directory",
    "--nonsense": "--nonsense",
}
"""What is typed after `login`, and what is said of it."""


def test_what_keeps_login_from_beginning(tmp_path: Path) -> None:
    runs = [Run(["login", *typed.split()]) for typed in MISTAKES]
    run_all(tmp_path, *runs)
    for run, said in zip(runs, MISTAKES.values(), strict=True):
        assert (run.code, run.stdout) == (2, "")
        assert run.stderr.startswith("error: ")
        assert run.stderr.count("\n") == 1
        assert said in run.stderr


NO_BUNDLED_CODEX = """
import sys
sys.modules["codex_cli_bin"] = None
from bridge.cli import main
main()
"""


def test_login_without_a_codex_says_how_to_get_one(tmp_path: Path) -> None:
    """None on PATH, and none that came with the package."""
    command = [sys.executable, "-P", "-c", NO_BUNDLED_CODEX, "auth", "login"]
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {NO_CODEX}\n")
