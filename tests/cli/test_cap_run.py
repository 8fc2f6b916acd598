"""`turnbridge cap run` as a process: requests on stdin, packets on stdout, the rest on stderr."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cli.exec.command import Ran, child_of, environment, finish, threads_in
from harness import KEY, ROOT, RunningBridge, scripted_codex, turns
from log.replayed import play_log
from protocols.cap.streams import Folded
from server.prompted import MODEL, is_alive, prompted_codex, wait_for
from trio.testing import MockClock
from warm import WarmProcess, run_warm

from bridge.cap.commands.run import Options, open_answer
from bridge.errors import UpstreamError
from bridge.protocols.cap.models import ServiceRequest
from bridge.protocols.cap.stream import parse_packet

Json = dict[str, Any]


def request(query: str, number: int = 1, **payload: Any) -> Json:
    """A ServiceRequest."""
    return {
        "request_id": str(UUID(int=number)),
        "context": {"session_id": "s", "user": {"id": "u", "name": "U"}},
        "payload": {"query": query, **payload},
    }


def lines(*requests: Json) -> bytes:
    """One request a line."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in requests)


def run(directory: Path, *arguments: str, stdin: bytes, **more: str) -> Ran:
    """Run it to its end."""
    done = run_warm("cap", "run", *arguments, input=stdin, env=environment(directory, **more), timeout=60)
    assert b"Traceback" not in done.stderr
    return Ran(done.returncode, done.stdout, done.stderr.decode())


@contextmanager
def started(directory: Path, *arguments: str, stdout: Any = subprocess.PIPE, **more: str) -> Iterator[Any]:
    """A run beside the test; its stdin is an open pipe."""
    pipe = subprocess.PIPE
    with WarmProcess(
        ["cap", "run", *arguments],
        stdin=pipe,
        stdout=stdout,
        stderr=pipe,
        env=environment(directory, **more),
        cwd=ROOT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answers(stdout: bytes) -> list[Folded]:
    """What each request was answered with; the packets are in the order of the grammar."""
    folds = [Folded()]
    for line in stdout.split(b"\n")[:-1]:
        if folds[-1].closed:
            folds.append(Folded())
        folds[-1].add(parse_packet(line))
    assert stdout.endswith(b"\n")
    assert folds[-1].closed
    return folds


def codes(stdout: bytes) -> list[str | None]:
    """The error of each answer."""
    return [fold.error.code if fold.error is not None else None for fold in answers(stdout)]


def test_one_request(tmp_path: Path) -> None:
    """Written over several lines; packets on stdout, and nothing else."""
    ran = run(tmp_path, "--mock", stdin=json.dumps(request("Hello\nthere"), indent=2).encode())
    assert (ran.code, ran.stderr) == (0, "")
    (answer,) = answers(ran.stdout)
    assert answer.text == "Hello\nthere"
    assert ran.stdout.endswith(b'\n{"op":"close","p":null}\n')


def test_one_request_per_line(tmp_path: Path) -> None:
    """In order, each to its end; what is wrong with one is told in its place, and the next is answered."""
    bad = b'nonsense\n{"a":1}\n\n'
    stdin = lines(request("one")) + bad + lines(request("two", 2, meta={"odd": 1}), request("x", 3, files=["/etc/x"]))
    ran = run(tmp_path, "--mock", stdin=stdin + lines(request("three", 4)).rstrip(b"\n"))
    assert ran.code == 1
    assert [fold.text for fold in answers(ran.stdout)] == ["one", "", "", "two", "", "three"]
    assert codes(ran.stdout) == [None, "invalid_json", "invalid_request", None, "unsupported_file", None]
    told = ran.stderr.splitlines()
    assert [line.partition(":")[0] for line in told] == ["error", "error", "warning", "error"]
    assert told[2] == "warning: ignored: meta.odd"
    assert "nonsense" not in ran.stdout.decode() + ran.stderr


def test_an_answer_comes_before_the_next_request(tmp_path: Path) -> None:
    """Who writes one request may wait for its answer; and a conversation goes on."""
    codex = prompted_codex(tmp_path)
    with started(tmp_path, CODEX_BIN=str(codex), PROXY_MODELS=MODEL) as process:
        for number in (1, 2):
            steps = json.dumps([{"text": f"answer {number}"}])
            process.stdin.write(lines(request(steps, number, conversation_id="c")))
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"op": "delta", "p": f"answer {number}"}
            assert json.loads(process.stdout.readline()) == {"op": "close", "p": None}
        process.stdin.close()
        process.stdin = None
        assert finish(process).code == 0


@pytest.mark.parametrize(
    ("arguments", "stdin", "told"),
    [
        (["--mock"], b"", "stdin holds no request"),
        (["--mock"], b"\n \n", "stdin holds no request"),
        (["--mock-mode", "text"], b"", "--mock-mode requires --mock"),
        (["--mock", "--mock-mode", "odd"], b"", "Choose one of echo"),
        (["--mock", "--url", "http://localhost:1"], b"", "It excludes --mock"),
        (["--url", "http://example.org", "--provider-key", "x"], b"", "--url: plain http"),
        (["--config", "/nonexistent"], b"", "/nonexistent: No such file"),
        (["--log-events", ""], b"", "--log-events is empty"),
        (["--odd"], b"", "--help"),
    ],
    ids=str,
)
def test_invalid_usage(tmp_path: Path, arguments: list[str], stdin: bytes, told: str) -> None:
    ran = run(tmp_path, *arguments, stdin=stdin)
    assert (ran.code, ran.stdout) == (2, b"")
    assert told in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_failure_is_reported_in_packets_and_on_stderr(tmp_path: Path) -> None:
    """On stdout for programs, on stderr for people."""
    codex = scripted_codex(tmp_path, turns([{"text": "begun"}, {"error": {"message": "It broke."}}]))
    ran = run(tmp_path, "--model", "m", stdin=lines(request("hi")), CODEX_BIN=str(codex), PROXY_MODELS="m")
    assert ran.code == 1
    (answer,) = answers(ran.stdout)
    assert answer.text == "begun"
    assert answer.error is not None
    assert ran.stderr == f"error: {answer.error.message}\n"


def test_without_a_codex(tmp_path: Path) -> None:
    ran = run(tmp_path, stdin=lines(request("hi")), PATH="/nonexistent")
    assert ran.code == 1
    assert codes(ran.stdout) == ["agent_not_ready"]


def test_url_uses_a_running_bridge(tmp_path: Path, mock_bridge: RunningBridge) -> None:
    """Its answers, its refusals; with its key."""
    stdin = lines(request("one", 501), {"a": 1}, request("x", 502, files=["/etc/x"]), request("two", 503))
    ran = run(tmp_path, "--url", mock_bridge.root, "--provider-key", KEY, stdin=stdin)
    assert ran.code == 1
    assert [fold.text for fold in answers(ran.stdout)] == ["one", "", "", "two"]
    assert codes(ran.stdout) == [None, "invalid_request", "unsupported_file", None]
    wrong = run(tmp_path, "--url", mock_bridge.url, "--provider-key", "wrong", stdin=lines(request("one", 504)))
    assert (wrong.code, codes(wrong.stdout)) == (1, ["unauthorized"])
    assert run(tmp_path, "--url", mock_bridge.url, stdin=b"").code == 2


def test_an_unreachable_bridge_is_retried(tmp_path: Path) -> None:
    """Who waits for it hears why."""
    ran = run(
        tmp_path, "--url", "http://127.0.0.1:9", "--provider-key", "k", "--timeout", "4", stdin=lines(request("one"))
    )
    told = "warning: The service cannot be reached (ConnectError). Retrying in"
    assert [line[: len(told)] for line in ran.stderr.splitlines()[:2]] == [told, told]
    assert (ran.code, codes(ran.stdout)) == (1, ["timeout"])


async def test_an_unreachable_bridge_gives_a_remedy(tmp_path: Path, autojump_clock: MockClock) -> None:
    """In the end it is told what to do."""
    options = Options(url="http://127.0.0.1:9", provider_key="k")
    async with open_answer(options) as answer:
        body = request("one")
        with pytest.raises(UpstreamError, match="turnbridge serve"):
            await answer(ServiceRequest.model_validate(body), body, _nothing)


async def _nothing(packets: list[bytes]) -> None:
    raise AssertionError(packets)


def test_everything_can_be_logged(tmp_path: Path) -> None:
    log = tmp_path / "events.ndjson"
    ran = run(tmp_path, "--mock", f"--log-events={log}", stdin=lines(request("one")))
    assert ran.code == 0
    kinds = [json.loads(line)["kind"] for line in log.read_bytes().split(b"\n")[:-1]]
    assert kinds.count("client_request") == kinds.count("turn_end") == 1


def test_a_logged_run_replays_the_same(tmp_path: Path) -> None:
    """An answer, one that continues it, and a refusal."""
    log = tmp_path / "events.ndjson"
    asked = [request(query, number, conversation_id="c") for number, query in enumerate(("Good", "morning", " "))]
    run(tmp_path, "--mock", f"--log-events={log}", stdin=lines(*asked))
    found = play_log(log)
    assert [each.recording.path for each in found] == ["cap run"] * 3
    assert [(each.recording.end or {})["outcome"] for each in found] == ["completed", "completed", "failed"]


def test_the_example_of_the_docs_works(tmp_path: Path) -> None:
    (example,) = re.findall(r"echo '(\{[^']*)' \| turnbridge cap run --mock\n", (ROOT / "docs/cap.md").read_text())
    assert answers(run(tmp_path, "--mock", stdin=example.encode()).stdout)[0].text == "hello"


# Ends


@pytest.mark.deep
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_turn_is_stopped(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """What was said stays; then `interrupted` and the close packet. The child is gone with the run."""
    codex = scripted_codex(tmp_path, turns([{"text": "begun"}, {"hang": True}]))
    with started(tmp_path, CODEX_BIN=str(codex), PROXY_MODELS="m") as process:
        process.stdin.write(lines(request("hi")))
        process.stdin.flush()
        begun = process.stdout.readline()
        child = child_of(process)
        process.send_signal(number)
        ran = finish(process, seconds=8)
    assert ran.code == code
    assert codes(begun + ran.stdout) == ["interrupted"]
    assert ran.stderr == "error: The run was interrupted.\n"
    assert not is_alive(child)


@pytest.mark.deep
def test_a_request_that_does_not_arrive(tmp_path: Path) -> None:
    with started(tmp_path, "--mock") as process:
        wait_for(lambda: threads_in(process, "read", 0), "it reads stdin")
        process.send_signal(signal.SIGINT)
        ran = finish(process, seconds=8)
    assert (ran.code, ran.stdout, ran.stderr) == (130, b"", "error: The run was interrupted.\n")


@pytest.mark.deep
def test_a_run_that_takes_too_long(tmp_path: Path) -> None:
    codex = scripted_codex(tmp_path, turns([{"text": "begun"}, {"hang": True}]))
    ran = run(tmp_path, "--timeout", "3", stdin=lines(request("hi")), CODEX_BIN=str(codex), PROXY_MODELS="m")
    assert (ran.code, codes(ran.stdout)) == (1, ["timeout"])
    assert ran.stderr == "error: The run took longer than 3 s (--timeout) and was stopped.\n"


@pytest.mark.deep
def test_a_closed_stdout(tmp_path: Path) -> None:
    """There is nobody to tell."""
    codex = scripted_codex(tmp_path, turns([{"text": "begun"}, {"sleep": 0.2}, {"flood": 20000}, {"hang": True}]))
    with started(tmp_path, CODEX_BIN=str(codex), PROXY_MODELS="m") as process:
        process.stdin.write(lines(request("hi")))
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        ran = finish(process)
    assert (ran.code, ran.stderr) == (1, "")


@pytest.mark.deep
def test_a_stdout_that_is_read_slowly(tmp_path: Path) -> None:
    """Nothing is lost."""
    codex = scripted_codex(tmp_path, turns([{"flood": 30_000}]))
    with started(tmp_path, CODEX_BIN=str(codex), PROXY_MODELS="m") as process:
        process.stdin.write(lines(request("hi")))
        process.stdin.close()
        process.stdin = None
        wait_for(lambda: threads_in(process, "write", 1), "it waits for its reader")
        ran = finish(process)
    assert ran.code == 0
    assert ran.stdout.count(b"\n") == 30_001
