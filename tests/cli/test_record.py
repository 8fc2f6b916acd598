"""`turnbridge record -- COMMAND`: the command notices nothing, and everything is in its log when it has ended."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import join, quote
from typing import Any

import pytest
from cli.exec.command import environment
from cli.terminal import terminal
from harness import ROOT
from log.logs import Json, records_of, turns_in, whole_log
from server.prompted import children_of, is_alive, prompted_codex, wait_for

RECORD = (sys.executable, "-P", "-m", "bridge", "record")
MOCK = (*RECORD, "--mock-only")
SECONDS = 60
PYTHON = (sys.executable, "-c")
WAITING = "import signal, sys; print('ready', flush=True); signal.pause()"

_CLIENT = """
import sys, openai

client = openai.OpenAI()
said = client.responses.create(model="mock-echo", input=sys.stdin.read()).output_text
chat = client.chat.completions.create(model="mock-text", messages=[{"role": "user", "content": "x"}])
streamed = "".join(
    event.delta
    for event in client.responses.create(model="mock-echo", input="piece by piece", stream=True)
    if event.type == "response.output_text.delta"
)
try:
    client.responses.create(model="no-such-model", input="x")
except openai.BadRequestError as error:
    print(error.code, file=sys.stderr)
print(said, chat.choices[0].message.content, streamed, sep="|")
sys.exit(3)
"""


_ASK = """
import json, os, urllib.request

headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
body = json.dumps({"model": "mock-echo", "input": "word " * 100}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/responses", body, headers)).read()
"""
"""The same without a library: quicker."""


_DELETE = """
import glob, os, shutil, time

# The log is written beside the answers: what was asked before stands in the file that is deleted.
while not any("turn_end" in open(file).read() for file in glob.glob("log*.ndjson") + glob.glob("logs/*.ndjson")):
    time.sleep(0.01)
shutil.rmtree("logs") if os.path.isdir("logs") else os.remove("log.ndjson")
"""


def variables(directory: Path, **more: str) -> dict[str, str]:
    return environment(directory, PYTHONPATH=str(ROOT), PROXY_STORE="memory", **more)


def run(directory: Path, *arguments: str | Path, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end, in this directory."""
    return subprocess.run(
        list(map(str, arguments)),
        input=stdin,
        capture_output=True,
        text=True,
        env=variables(directory, **more),
        cwd=directory,
        timeout=SECONDS,
    )


@contextmanager
def started(directory: Path, *arguments: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run it beside the test; its first line of output has come."""
    with subprocess.Popen(
        list(map(str, arguments)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables(directory),
        cwd=directory,
        **options,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def only_log(directory: Path) -> Path:
    (path,) = directory.glob("*.ndjson")
    return path


def outcomes(records: list[Json]) -> list[str]:
    return [record["payload"]["outcome"] for record in records if record["kind"] == "turn_end"]


# What the command sees


def test_a_client_runs_unchanged_and_everything_is_recorded(tmp_path: Path) -> None:
    """stdin, stdout, stderr and the exit code are the command's; the last line of stderr tells of the log."""
    ran = run(tmp_path, *MOCK, "--", *PYTHON, _CLIENT, stdin="said by the user")
    assert ran.returncode == 3, ran
    assert ran.stdout == "said by the user|mock response text|piece by piece\n"
    log = only_log(tmp_path)
    assert re.fullmatch(r"turnbridge-\d{8}T\d{6}Z\.ndjson", log.name)
    assert ran.stderr.splitlines() == [
        "model_not_found",
        f"turnbridge: 4 turns recorded, 1 failed; the log is {log.name}",
    ]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    records = whole_log([log])
    assert outcomes(records) == ["completed", "completed", "completed", "failed"]
    requests = [record["payload"] for record in records if record["kind"] == "client_request"]
    assert [request["body"].get("model") for request in requests] == [
        "mock-echo",
        "mock-text",
        "mock-echo",
        "no-such-model",
    ]
    for kinds in list(turns_in(records).values())[:3]:
        assert kinds[0] == "client_request"
        assert {"client_start", "turn_end"} < set(kinds)
    assert records[-1]["kind"] == "backend_exit"


def test_only_two_environment_variables_change(tmp_path: Path) -> None:
    """The address is this machine's, the key is made for the run and opens it; nothing else opens it."""
    program = """
import json, os, urllib.request, urllib.error
def status(key):
    url = os.environ["OPENAI_BASE_URL"] + "/models"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers={"authorization": "Bearer " + key})).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([dict(os.environ), status(os.environ["OPENAI_API_KEY"]), status("of-the-operator-1")]))
"""
    given = {
        "PROXY_API_KEY": "of-the-operator-1",
        "OPENAI_API_KEY": "sk-before",
        "PROXY_HOST": "0.0.0.0",
        "MINE": "é\n",
    }
    ran = run(tmp_path, *MOCK, "--", *PYTHON, program, **given)
    seen, own, foreign = json.loads(ran.stdout)
    assert (own, foreign) == (200, 401)
    key, url = seen.pop("OPENAI_API_KEY"), seen.pop("OPENAI_BASE_URL")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url)
    assert key.startswith("cb-")
    assert key not in only_log(tmp_path).read_text() + ran.stderr
    expected = variables(tmp_path, **given)
    del expected["OPENAI_API_KEY"]
    assert {name: seen[name] for name in expected} == expected
    assert set(seen) - set(expected) <= {"LC_CTYPE", "_", "PWD", "SHLVL"}


def test_the_bridge_answers_when_the_command_begins(tmp_path: Path) -> None:
    """Not a moment later: a command that asks at once, without a second try, is answered."""
    program = "import openai; print(openai.OpenAI(max_retries=0).models.list().data[0].id)"
    ran = run(tmp_path, *MOCK, "--", *PYTHON, program)
    assert (ran.returncode, ran.stdout.startswith("mock-")) == (0, True), ran


def test_it_serves_a_codex_too(tmp_path: Path) -> None:
    """With --codex-bin, as serve does; its frames are in the log, and nothing of it is left."""
    program = """
import json, openai
steps = json.dumps([{"text": "from the child"}])
print(openai.OpenAI().responses.create(model="prompted", input=steps).output_text)
"""
    codex = prompted_codex(tmp_path)
    ran = run(tmp_path, *RECORD, f"--codex-bin={codex}", "--", *PYTHON, program, PROXY_MODELS="prompted")
    assert (ran.returncode, ran.stdout) == (0, "from the child\n"), ran
    records = whole_log([only_log(tmp_path)])
    assert "turn/start" in {record.get("method") for record in records}
    (started_child,) = [record["payload"]["pid"] for record in records if record["kind"] == "backend_start"]
    assert not is_alive(started_child)


# Where the log goes


@pytest.mark.deep
def test_a_file_is_appended_to_and_a_directory_gets_a_new_one(tmp_path: Path) -> None:
    """Each run is one file, or one part of one; PROXY_LOG_EVENTS and the limits of serve are not for it."""
    for target in ("run.ndjson", "logs/"):
        for _ in range(2):
            ran = run(
                tmp_path,
                *MOCK,
                f"--log-events={target}",
                "--",
                *PYTHON,
                _ASK,
                PROXY_LOG_EVENTS=str(tmp_path / "of-serve.ndjson"),
                PROXY_LOG_MAX_BYTES="100",
                PROXY_LOG_KEEP="1",
            )
            assert ran.returncode == 0, ran
    assert not (tmp_path / "of-serve.ndjson").exists()
    runs = {record["run"] for record in records_of(tmp_path / "run.ndjson")}
    assert len(runs) == 2
    assert len(outcomes(records_of(tmp_path / "run.ndjson"))) == 2
    files = sorted((tmp_path / "logs").iterdir())
    assert [len(outcomes(whole_log([path]))) for path in files] == [1, 1]
    assert ran.stderr.splitlines()[-1].endswith(f"the log is logs/{files[-1].name}")
    assert not (tmp_path / "logs").stat().st_mode & 0o077


def test_runs_at_the_same_time_have_logs_of_their_own(tmp_path: Path) -> None:
    """Although their names are made of the second in which they begin."""
    arguments = [*MOCK, "--", *PYTHON, WAITING]
    with started(tmp_path, *arguments) as one, started(tmp_path, *arguments) as other:
        assert len(list(tmp_path.glob("*.ndjson"))) == 2
        for process in (one, other):
            process.terminate()
            assert process.wait(SECONDS) == 128 + signal.SIGTERM
    for path in tmp_path.glob("*.ndjson"):
        whole_log([path])


# How it ends


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 42"), 42),
        (("sh", "-c", "kill -KILL $$"), 128 + signal.SIGKILL),
        (("sh", "-c", "kill -INT $$"), 128 + signal.SIGINT),
    ],
    ids=lambda value: str(value),
)
def test_the_exit_code_is_the_command_s(tmp_path: Path, command: tuple[str, ...], code: int) -> None:
    """As a shell tells it. Arguments of the command are not ours, with or without the two dashes."""
    ran = run(tmp_path, *MOCK, *command)
    assert (ran.returncode, ran.stdout) == (code, ""), ran
    assert ran.stderr == f"turnbridge: 0 turns recorded, 0 failed; the log is {only_log(tmp_path).name}\n"


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("no-such-command", 127, "there is no such program"),
        ("./none", 127, "there is no such program"),
        ("./plain", 126, "it is not executable"),
        ("./", 126, "it is not executable"),
    ],
)
def test_a_command_that_cannot_be_run(tmp_path: Path, command: str, code: int, says: str) -> None:
    """One line, the code that a shell would give, and no log of nothing."""
    (tmp_path / "plain").write_text("")
    ran = run(tmp_path, *MOCK, "--", command)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert ran.stderr == f"error: {command} cannot be run: {says}.\n"
    assert list(tmp_path.glob("*.ndjson")) == []


def test_a_bridge_that_cannot_be_started(tmp_path: Path) -> None:
    """The command does not begin, and no empty log is left."""
    ran = run(tmp_path, *RECORD, "--codex-bin=/no/such/codex", "--", "touch", "begun")
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: CODEX_BIN: /no/such/codex does not exist")
    assert not (tmp_path / "begun").exists()
    assert list(tmp_path.glob("*.ndjson")) == []


def test_a_program_that_the_system_refuses(tmp_path: Path) -> None:
    """It looked like one. The bridge that was ready for it ends, too."""
    (tmp_path / "odd").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "odd").chmod(0o755)
    ran = run(tmp_path, *MOCK, "./odd")
    assert ran.returncode == 126
    assert ran.stderr.splitlines()[0].startswith("error: ./odd cannot be run: ")


@pytest.mark.parametrize("words", [("record",), ("record", "--mock-only"), ("record", "--no-such-flag", "true")])
def test_invalid_options_are_reported(tmp_path: Path, words: tuple[str, ...]) -> None:
    ran = run(tmp_path, *RECORD[:-1], *words)
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("error: ")
    assert list(tmp_path.glob("*.ndjson")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_the_command_s(tmp_path: Path, number: signal.Signals) -> None:
    """It may do with them what it likes; its end is the end."""
    program = """
import os, signal, sys
caught = []
def catch(number, frame):
    if caught:
        sys.exit(7)
    caught.append(number)
    os.write(1, f"{caught}\\n".encode())  # print may be in the middle of its work
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, catch)
print("ready", flush=True)
while True:
    signal.pause()
"""
    with started(tmp_path, *MOCK, "--", *PYTHON, program) as process:
        process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.readline() == f"[{number.value}]\n"
        process.send_signal(number)
        assert process.wait(SECONDS) == 7
        assert process.stderr is not None
        assert process.stderr.read().startswith("turnbridge: 0 turns recorded")


@pytest.mark.deep
def test_orphans_of_the_command_are_ended(tmp_path: Path) -> None:
    """Also what does not listen to SIGTERM: nothing of it could talk to the bridge any more."""
    code = "import signal; signal.signal(15, signal.SIG_IGN); print(0, flush=True); signal.pause()"
    deaf = f"{quote(sys.executable)} -c '{code}'"
    script = f"sleep 1000 & echo $!; ({deaf} & echo $!) | head -n 2"
    ran = run(tmp_path, *MOCK, "--", "sh", "-c", script)
    assert ran.returncode == 0, ran
    pids = [int(word) for word in ran.stdout.split() if word != "0"]
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)


def test_a_turn_that_the_command_leaves_is_recorded(tmp_path: Path) -> None:
    """The command ends in the middle of an answer; the log tells that nobody waited for the rest."""
    program = """
import json, openai, os
steps = json.dumps([{"text": "begun"}, {"hang": True}])
for event in openai.OpenAI().responses.create(model="prompted", input=steps, stream=True):
    if event.type == "response.output_text.delta":
        os._exit(5)
"""
    codex = prompted_codex(tmp_path)
    ran = run(tmp_path, *RECORD, f"--codex-bin={codex}", "--", *PYTHON, program, PROXY_MODELS="prompted")
    assert ran.returncode == 5, ran
    records = whole_log([only_log(tmp_path)])
    assert outcomes(records) == ["cancelled"]


def test_the_command_does_not_start_without_a_log(tmp_path: Path) -> None:
    """A log that cannot be written, found before the command begins: it does not begin."""
    ran = run(tmp_path, *MOCK, "--log-events=/dev/full", "--", "touch", "begun")
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: The event log /dev/full could not be written: No space left on device.")
    assert not (tmp_path / "begun").exists()
    ran = run(tmp_path, *MOCK, "--log-events=none/run.ndjson", "--", "touch", "begun")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert ran.stderr.startswith("error: The event log none/run.ndjson cannot be written")
    assert not (tmp_path / "begun").exists()


@pytest.mark.deep
def test_a_log_that_fails_later_ends_the_command(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk (tests/fault/test_log_disk.py has a real one)."""
    program = """
import openai
client = openai.OpenAI(max_retries=0)
while True:
    client.responses.create(model="mock-echo", input="word " * 1000)
"""
    limited = ("sh", "-c", 'ulimit -f 200; exec "$@"', "sh")
    ran = run(tmp_path, *limited, *MOCK, "--log-events=run.ndjson", "--", *PYTHON, program)
    assert ran.returncode == 1
    assert "error: The event log run.ndjson could not be written: File too large." in ran.stderr
    assert ran.stderr.splitlines()[-1].endswith("; the log is run.ndjson")


def test_kill_9_ends_the_command_too(tmp_path: Path) -> None:
    """It would wait for a bridge that is gone; the log is whole up to there."""
    with started(tmp_path, *MOCK, "--", *PYTHON, WAITING) as process:
        wait_for(lambda: len(children_of(process.pid)) >= 2, "the command and the bridge's child")
        pids = children_of(process.pid)
        process.kill()
        process.wait(SECONDS)
        wait_for(lambda: not any(is_alive(pid) for pid in pids), "nothing is left")
    assert records_of(only_log(tmp_path))[0]["kind"] == "header"


# In a terminal


def test_a_command_has_the_terminal(tmp_path: Path) -> None:
    """It reads what is typed, and Ctrl-C is for it alone."""
    program = """
import os, signal, sys
print("ready", os.isatty(0), os.tcgetpgrp(0) == os.getpgrp(), flush=True)
try:
    print("read", input(), flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(9)
"""
    argv = [*MOCK, "--log-events=run.ndjson", "--", *PYTHON, program]
    with terminal(argv, variables(tmp_path), tmp_path) as person:
        person.wait_for("ready True True")
        person.type("some words\n")
        person.wait_for("read some words")
        person.type("\x03")
        person.wait_for("interrupted")
        person.wait_for("0 turns recorded, 0 failed; the log is run.ndjson")
        assert person.wait() == 9


def test_ctrl_z_and_fg(tmp_path: Path) -> None:
    """Stopped in a shell, and brought back: the command goes on reading what is typed, and its shell too after it."""
    words = " ".join(f"'{word}'" for word in (*MOCK, "--log-events=run.ndjson", "--", "cat"))
    with terminal(["/bin/bash", "--norc", "-i"], variables(tmp_path, PS1="> ", TERM="dumb"), tmp_path) as person:
        person.wait_for("> ")
        person.type(f"{words}; echo over: $?\n")
        wait_for((tmp_path / "run.ndjson").exists, "it has begun", SECONDS)
        person.type("first\n")
        person.wait_for("first\r\nfirst\r\n")
        person.type("\x1a")
        person.wait_for("Stopped")
        person.wait_for("> ")
        person.type("echo the shell is here\n")
        person.wait_for("the shell is here\r\n")
        person.wait_for("> ")
        person.type("fg\n")
        person.wait_for("cat")
        person.type("second\n")
        person.wait_for("second\r\nsecond\r\n")
        person.type("\x04")
        person.wait_for("the log is run.ndjson")
        person.wait_for("> ")
        person.type("exit 4\n")
        assert person.wait() == 4
    whole_log([tmp_path / "run.ndjson"])


def test_a_command_in_a_pipeline_gets_the_terminal_when_it_reads(tmp_path: Path) -> None:
    """Until then another program of the pipeline may need it, as a pager does; Ctrl-C is passed on to it."""
    program = """
import os, signal, sys
try:
    print("ready", os.tcgetpgrp(0) == os.getpgrp(), flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("read", input(), os.tcgetpgrp(0) == os.getpgrp(), flush=True)
sys.exit(9)
"""
    (tmp_path / "program.py").write_text(program)
    words = join([*MOCK, "--log-events=run.ndjson", "--", sys.executable, "program.py"])
    with terminal(["/bin/bash", "--norc", "-i"], variables(tmp_path, PS1="> ", TERM="dumb"), tmp_path) as person:
        person.wait_for("> ")
        person.type(f"{words} | (trap '' INT; cat); echo over: ${{PIPESTATUS[0]}}\n")
        person.wait_for("ready False")
        person.type("\x03")
        person.wait_for("interrupted")
        person.type("some words\n")
        person.wait_for("read some words True")
        person.wait_for("over: 9")
        person.type("exit 0\n")
        assert person.wait() == 0


@pytest.mark.parametrize("target", ["log.ndjson", "logs/"])
@pytest.mark.parametrize("later", [True, False])
def test_a_deleted_log_is_not_reported_as_complete(tmp_path: Path, target: str, later: bool) -> None:
    """What comes after is recorded in a new file; the exit code is 1 whatever the command's is."""
    done = run(tmp_path, *MOCK, "--log-events", target, "--", *PYTHON, _ASK + _DELETE + (_ASK if later else ""))
    assert done.returncode == 1
    assert "was deleted while it was written" in done.stderr
    assert f"{2 if later else 1} turn{'s' if later else ''}, not all of them recorded" in done.stderr
    files = list(tmp_path.glob("log*/*.ndjson")) + list(tmp_path.glob("log.ndjson"))
    asked = [record for file in files for record in records_of(file) if record["kind"] == "client_request"]
    assert len(asked) == int(later)
    assert ("nothing is left of the log" in done.stderr) == (not files)


def test_a_log_without_a_name_that_is_deleted(tmp_path: Path) -> None:
    delete = "import glob, os; os.remove(*glob.glob('turnbridge-*.ndjson'))"
    done = run(tmp_path, *MOCK, "--", *PYTHON, delete)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
