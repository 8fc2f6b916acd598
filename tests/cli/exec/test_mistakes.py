"""A command line that cannot be meant: one line that says why, exit code 2, and with --json an `error` line too."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from cli.exec.command import Command, Word, words

HI = ("--mock", "--prompt", "hi")
OBJECT = 'f:inline={"type":"object"}'

MISTAKES: dict[str, tuple[str | tuple[Word, ...], tuple[str, ...]]] = {
    # What to ask
    "no_prompt": ("--mock", ("--prompt", "--input-json")),
    "empty_prompt": (("--mock", "--prompt", ""), ("prompt is empty",)),
    "blank_prompt": (("--mock", "--prompt", " \n\t"), ("prompt is empty",)),
    "empty_argument": (("--mock", ""), ("prompt is empty",)),
    "empty_stdin": ("--mock --prompt -", ("prompt on stdin is empty",)),
    "empty_stdin_of_an_argument": ("--mock -", ("prompt on stdin is empty",)),
    "stdin_twice": ("--mock --prompt - --input-json -", ("--prompt", "--input-json", "stdin")),
    "prompt_without_value": ("--mock --prompt", ("--prompt", "argument")),
    "argument_and_stdin_twice": ("--mock - --input-json -", ("--input-json", "stdin")),
    "two_arguments": ("--mock hello world", ("PROMPT", "2", "quotes")),
    "argument_and_flag": ("--mock hello --prompt world", ("PROMPT", "--prompt")),
    "argument_like_a_flag": ("--mock hello -x", ("-x", "--help")),
    "argument_no_utf8": (("--mock", b"hi \xff"), ("PROMPT", "UTF-8")),
    "unknown_flag": ("--promt hi", ("--promt", "--help")),
    "flag_with_a_value": ("--mock=yes --prompt hi", ("--mock",)),
    # --input-json
    "input_missing": ("--mock --input-json {dir}/none", ("--input-json {dir}/none", "No such file")),
    "input_directory": ("--mock --input-json {dir}", ("--input-json {dir}", "directory")),
    "input_empty_file": ("--mock --input-json {dir}/empty", ("{dir}/empty", "empty")),
    "input_broken": ("--mock --input-json {dir}/broken.json", ("{dir}/broken.json", "not valid JSON")),
    "input_no_utf8": ("--mock --input-json {dir}/latin1.json", ("{dir}/latin1.json", "not valid JSON")),
    "input_lone_surrogate": ("--mock --input-json {dir}/surrogate.json", ("surrogate.json", "not valid JSON")),
    "input_object": ("--mock --input-json {dir}/object.json", ("{dir}/object.json", "array")),
    "input_no_items": ("--mock --input-json {dir}/list.json", ("{dir}/list.json", "array")),
    "input_texts": ("--mock --input-json {dir}/texts.json", ("{dir}/texts.json", "object")),
    "input_deep": ("--mock --input-json {dir}/deep.json", ("{dir}/deep.json",)),
    "input_stdin_empty": ("--mock --input-json -", ("stdin", "empty")),
    "input_endless": ("--mock --input-json /dev/zero", ("/dev/zero", "larger")),
    # --tool
    "tool_alone": ((*HI, "--tool", "f"), ("--tool f", "NAME:json=PATH")),
    "tool_empty": ((*HI, "--tool", ""), ("--tool", "NAME:json=PATH")),
    "tool_other_form": ((*HI, "--tool", "f:yaml=x"), ("--tool f:yaml=x", "NAME:json=PATH")),
    "tool_no_name": ((*HI, "--tool", ":json=x"), ("--tool :json=x", "NAME:json=PATH")),
    "tool_no_value": ((*HI, "--tool", "f:json="), ("--tool f:json=", "NAME:json=PATH")),
    "tool_bad_name": ((*HI, "--tool", "f g:inline={}"), ("--tool f g", "name")),
    "tool_long_name": ((*HI, "--tool", "f" * 129 + ":inline={}"), ("--tool", "128")),
    "tool_missing": ((*HI, "--tool", "f:json={dir}/none"), ("--tool f", "{dir}/none", "No such file")),
    "tool_directory": ((*HI, "--tool", "f:json={dir}"), ("--tool f", "{dir}", "directory")),
    "tool_empty_file": ((*HI, "--tool", "f:json={dir}/empty"), ("--tool f", "{dir}/empty", "empty")),
    "tool_broken": ((*HI, "--tool", "f:json={dir}/broken.json"), ("--tool f", "{dir}/broken.json", "not valid JSON")),
    "tool_list": ((*HI, "--tool", "f:json={dir}/list.json"), ("--tool f", "{dir}/list.json", "object")),
    "tool_true": ((*HI, "--tool", "f:inline=true"), ("--tool f", "object")),
    "tool_inline_broken": ((*HI, "--tool", "f:inline={"), ("--tool f", "not valid JSON")),
    "tool_twice": ((*HI, "--tool", OBJECT, "--tool", "f:json={dir}/object.json"), ("--tool f", "two")),
    "tool_no_utf8": ((*HI, "--tool", b"f\xff:inline={}"), ("--tool", "UTF-8")),
    # --tool-choice
    "choice_word": ((*HI, "--tool", OBJECT, "--tool-choice", "maybe"), ("--tool-choice maybe", "auto", "required")),
    "choice_empty": ((*HI, "--tool-choice", ""), ("--tool-choice", "auto")),
    "choice_case": ((*HI, "--tool-choice", "Auto"), ("--tool-choice Auto",)),
    "choice_no_name": ((*HI, "--tool", OBJECT, "--tool-choice", "function:"), ("--tool-choice function:",)),
    "choice_undeclared": ((*HI, "--tool", OBJECT, "--tool-choice", "function:g"), ("function:g", "declares f")),
    "choice_of_nothing": ((*HI, "--tool-choice", "function:f"), ("function:f", "no --tool")),
    "choice_required_of_nothing": ((*HI, "--tool-choice", "required"), ("--tool-choice required", "--tool")),
    "choice_of_web_search": ((*HI, "--web-search", "--tool-choice", "function:web_search"), ("function:web_search",)),
    # --auto-tools
    "output_without_loop": ((*HI, "--tool-output", "f=1"), ("--tool-output", "--auto-tools")),
    "output_no_value": ((*HI, "--auto-tools", "--tool-output", "f"), ("--tool-output f", "NAME=VALUE")),
    "output_no_name": ((*HI, "--auto-tools", "--tool-output", "=1"), ("--tool-output =1", "NAME=VALUE")),
    "output_twice": ((*HI, "--auto-tools", "--tool-output", "f=1", "--tool-output", "f=2"), ("f", "twice")),
    "output_no_utf8": ((*HI, "--auto-tools", "--tool-output", b"f=\xff"), ("--tool-output", "UTF-8")),
    "no_steps": ((*HI, "--max-steps", "0"), ("--max-steps",)),
    "half_a_step": ((*HI, "--max-steps", "1.5"), ("--max-steps",)),
    "endless_steps": ((*HI, "--max-steps", "9" * 5000), ("--max-steps",)),
    # Other settings of a request
    "two_systems": ((*HI, "--system", "a", "--instructions", "b"), ("--system", "--instructions")),
    "system_and_nothing": ((*HI, "--system", "a", "--instructions", ""), ("--system", "--instructions")),
    "session_blank": ((*HI, "--session-id", "a b"), ("--session-id",)),
    "session_empty": ((*HI, "--session-id", ""), ("--session-id",)),
    "session_line": ((*HI, "--session-id", "a\nb"), ("--session-id",)),
    "session_letters": ((*HI, "--session-id", "sé"), ("--session-id",)),
    "session_long": ((*HI, "--session-id", "s" * 257), ("--session-id", "256")),
    "effort": ((*HI, "--effort", "hard"), ("--effort hard", "medium")),
    "schema_missing": ((*HI, "--output-schema", "{dir}/none"), ("--output-schema {dir}/none", "No such file")),
    "schema_broken": ((*HI, "--output-schema", "{dir}/broken.json"), ("--output-schema", "not valid JSON")),
    "schema_list": ((*HI, "--output-schema", "{dir}/list.json"), ("--output-schema", "object")),
    "prompt_no_utf8": (("--mock", "--prompt", b"hi \xff"), ("--prompt", "UTF-8")),
    "model_no_utf8": ((*HI, "--model", b"m\xff"), ("--model", "UTF-8")),
    "system_no_utf8": ((*HI, "--system", b"\xff"), ("--system", "UTF-8")),
    # Who answers
    "mode": ((*HI, "--mock-mode", "parrot"), ("--mock-mode 'parrot'", "tool-loop")),
    "mode_without_mock": ("--prompt hi --mock-mode text", ("--mock-mode", "--mock")),
    "mode_of_codex": ("--prompt hi --backend codex --mock-mode text", ("--mock-mode", "--mock")),
    "backend": ("--prompt hi --backend parrot", ("--backend 'parrot'", "app-server")),
    "mock_and_backend": ((*HI, "--backend", "codex"), ("--mock", "--backend codex")),
    "mock_and_url": ((*HI, "--url", "http://127.0.0.1:1"), ("--url", "--mock")),
    "backend_and_url": ("--prompt hi --backend app-server --url http://127.0.0.1:1", ("--url", "--backend")),
    "url_none": (("--prompt", "hi", "--url", ""), ("--url", "https://")),
    "url_in_the_clear": ("--prompt hi --url http://bridge.example:11435", ("--url", "https")),
    "url_looks_local": ("--prompt hi --url http://localhost.example", ("--url", "https")),
    "url_with_a_key": ("--prompt hi --url http://me:key@127.0.0.1:1", ("--url", "user name")),
    "url_of_a_file": ("--prompt hi --url file:///etc/passwd", ("--url", "https://")),
    "url_without_key": ("--prompt hi --url https://bridge.example", ("--url", "--provider-key")),
    "key_for_codex_itself": ("--prompt hi --provider-key k", ("--provider-key", "--url")),
    "key_with_a_line": (("--prompt", "hi", "--backend", "codex", "--provider-key", "k\nx"), ("--provider-key",)),
    "key_empty": (("--prompt", "hi", "--backend", "codex", "--provider-key", ""), ("--provider-key",)),
    "no_time": ((*HI, "--timeout", "0"), ("--timeout",)),
    "time_back": ((*HI, "--timeout", "-1"), ("--timeout",)),
    "timeout_word": ((*HI, "--timeout", "soon"), ("--timeout",)),
    "timeout_nan": ((*HI, "--timeout", "nan"), ("--timeout",)),
    # Logs
    "requests_nowhere": ((*HI, "--log-requests", "{dir}/none/log"), ("--log-requests {dir}/none/log", "No such file")),
    "requests_directory": ((*HI, "--log-requests", "{dir}"), ("--log-requests {dir}", "directory")),
    "responses_nowhere": ((*HI, "--log-responses", "{dir}/none/log"), ("--log-responses {dir}/none/log",)),
    "responses_no_name": ((*HI, "--log-responses", ""), ("--log-responses",)),
}
"""What is typed, and what the message names. `{dir}` is a directory with some files in it."""


@pytest.fixture(scope="module")
def files(warm: Command) -> Path:
    """Files that are not what they should be."""
    directory = warm.directory / "files"
    directory.mkdir()
    (directory / "empty").write_text(" \n")
    (directory / "broken.json").write_text('{"type": "obj')
    (directory / "latin1.json").write_bytes(b'[{"role": "user", "content": "\xe9"}]')
    (directory / "surrogate.json").write_text(r'[{"role": "user", "content": "\ud800"}]')
    (directory / "object.json").write_text('{"type": "object"}')
    (directory / "list.json").write_text("[]")
    (directory / "texts.json").write_text('["hi"]')
    (directory / "deep.json").write_text("[" * 900 + "]" * 900)
    return directory


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_in_one_line(warm: Command, files: Path, name: str) -> None:
    """On stderr alone; with --json the same message is the one line of stdout. Nothing was sent, nothing is written."""
    typed, names = MISTAKES[name]
    arguments = [_fill(word, files) for word in words(typed)]
    plain, json = warm.run(*arguments), warm.run("--json", *arguments)
    assert (plain.code, plain.stdout) == (2, b"")
    message = json.failed("usage_error", exit_code=2)
    assert json.stderr == plain.stderr
    assert len(plain.stderr.splitlines()) == 1
    assert message not in (None, "")
    for word in names:
        assert word.replace("{dir}", str(files)) in plain.stderr


def _fill(word: Word, directory: Path) -> Word:
    return word.replace("{dir}", str(directory)) if isinstance(word, str) else word


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"PROXY_SANDBOX_MODE": "bogus"}, ("PROXY_SANDBOX_MODE", "read-only")),
        ({"CODEX_BIN": "/no/such/codex"}, ("CODEX_BIN", "/no/such/codex")),
        ({"PROXY_CODEX_WORKDIR": "/dev/null", "CODEX_BIN": "/bin/true"}, ("PROXY_CODEX_WORKDIR",)),
        ({"PORT": "x", "PROXY_MAX_TURNS": "0"}, ("PORT", "PROXY_MAX_TURNS")),
    ],
    ids=lambda value: "-".join(value),
)
def test_a_wrong_setting_is_reported_in_one_line(
    warm: Command, variables: dict[str, Any], names: tuple[str, ...]
) -> None:
    """Also when there are several; exit code 2, before anything is started."""
    ran = warm.run("--json", "--prompt", "hi", **variables)
    message = ran.failed("invalid_configuration", exit_code=2)
    assert len(ran.stderr.splitlines()) == 1
    for word in names:
        assert word in message


def test_a_wrong_setting_does_not_concern_the_mock(warm: Command) -> None:
    """It needs no Codex, so it looks at none of its settings."""
    warm.run("--json", *HI, CODEX_BIN="/no/such/codex", PROXY_SANDBOX_MODE="bogus").succeeded()


def test_a_flag_that_is_not_utf8(warm: Command) -> None:
    """Its bytes cannot be repeated in JSON."""
    ran = warm.run("--json", b"--\xff")
    assert (ran.code, ran.events[-1]["code"]) == (2, "usage_error")
    assert ran.stderr.startswith("error: No such option")


def test_a_mistake_writes_no_log(warm: Command) -> None:
    """What was logged before is still there."""
    log = warm.directory / "kept"
    log.write_text("kept")
    assert warm.run(*HI, "--log-requests", log, "--log-responses", log, "--tool", "f").code == 2
    assert log.read_text() == "kept"


def test_a_mistake_of_the_real_command(command: Command) -> None:
    """The tables above fork an interpreter that runs already; this one is started."""
    ran = command.run("--json", "--mock", "--promt", "hi")
    assert "--promt" in ran.failed("usage_error", exit_code=2)
    assert os.listdir(command.directory) == []


def test_help_names_every_flag(command: Command) -> None:
    """--help goes to stdout and exits 0."""
    ran = command.run("--help", COLUMNS="200")
    assert (ran.code, ran.stderr) == (0, "")
    assert "PROMPT" in ran.stdout.decode()
    for short in ("-p, --prompt TEXT", "-m, --model NAME"):
        assert short in ran.stdout.decode()
    assert re.findall(r"--[a-z-]+ <", ran.stdout.decode()) == []  # types of Python
    flags = (
        "prompt model instructions system append-system-prompt tool web-search tool-choice input-json json trace"
        " log-requests log-responses session-id effort output-schema auto-tools tool-output max-steps mock mock-mode"
        " backend url provider-key native-tools timeout codex-bin codex-home"
    )
    for flag in flags.split():
        assert f"--{flag} " in ran.stdout.decode()
