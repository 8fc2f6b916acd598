"""The programs of fixtures/examples that ask with Codex's login, against the scripted backend in its place."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.exec.command import environment
from harness import ROOT
from upstream.answers import Stream, refusal
from upstream.chatgpt import ChatGPT, serving_in_thread
from upstream.events import answer, call, search, text

EXAMPLES = ROOT / "fixtures/examples"
BRIDGE = ("--bridge", shlex.join((sys.executable, "-P", "-m", "bridge")))


@pytest.fixture
def chatgpt() -> Iterator[ChatGPT]:
    with serving_in_thread() as running:
        yield running
        assert running.faults == []


def run(name: str, directory: Path, chatgpt: ChatGPT, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of them to its end, with a login that works."""
    directory.mkdir(exist_ok=True)
    variables = environment(directory, **chatgpt.environment(chatgpt.home(directory)))
    program = [sys.executable, str(EXAMPLES / name), *BRIDGE, *arguments]
    done = subprocess.run(program, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr + done.stdout, done
    return done


def test_test_request(tmp_path: Path, chatgpt: ChatGPT) -> None:
    """The follow-up has the call and its output, with the sum that the tool gave."""
    chatgpt.will(Stream(answer(call("add", '{"a":2,', '"b":3}', call_id="call_x"))))
    done = run("test_request.py", tmp_path, chatgpt)
    assert (done.returncode, done.stdout) == (0, "ok     function tool and follow up: result: 5\n"), done
    first, second = [request.body for request in chatgpt.requests]
    assert first["tools"][0]["name"] == "add"
    assert (first["tool_choice"], first["tools"][0]["strict"]) == ("auto", False)
    made, given = second["input"][-2:]
    assert (made["type"], made["call_id"], made["arguments"]) == ("function_call", "call_x", '{"a":2,"b":3}')
    assert given == {"type": "function_call_output", "call_id": "call_x", "output": "5"}


def test_test_web_search(tmp_path: Path, chatgpt: ChatGPT) -> None:
    """The search is offered, and seen."""
    chatgpt.will(Stream(answer(search("newest CPython"), text("3.14"))))
    done = run("test_web_search.py", tmp_path, chatgpt)
    assert (done.returncode, done.stdout) == (0, "ok     web search: newest CPython -> 3.14\n"), done
    assert chatgpt.requests[0].body["tools"] == [{"type": "web_search", "external_web_access": True}]


def test_edge_cases(tmp_path: Path, chatgpt: ChatGPT) -> None:
    """Five are asked as they are, and answered; an output without its call never gets there."""
    done = run("edge_cases.py", tmp_path, chatgpt)
    assert done.returncode == 0, done
    assert [line[:7] for line in done.stdout.splitlines()] == ["ok     "] * 6
    schema, arguments, nothing, large, parallel = [request.body for request in chatgpt.requests]
    assert schema["tools"][0]["parameters"] == {"type": "nonsense"}
    assert arguments["input"][1]["arguments"] == '{"a": 2, "b": '
    assert nothing["tools"] == []
    assert len(large["input"][-1]["output"]) == 20_000
    assert [item.get("call_id") for item in parallel["input"][1:]] == ["call_1", "call_2", "call_2", "call_1"]


@pytest.mark.parametrize(
    ("name", "reply", "why"),
    [
        ("test_request.py", Stream(answer(text("It is 5."))), "one call of add was expected"),
        ("test_request.py", Stream(answer(call("add", '{"a":2,"b":4}'))), "2 and 3 were expected"),
        ("test_request.py", refusal(400, "odd", "no"), "the run failed (odd)"),
        ("test_web_search.py", Stream(answer(text("3.14"))), "the model has not searched"),
        ("edge_cases.py", Stream(answer(call("add", "{}"))), "no call was expected"),
    ],
)
def test_a_failed_check_is_reported(tmp_path: Path, chatgpt: ChatGPT, name: str, reply: Stream, why: str) -> None:
    """One line, and exit code 1; the other checks go on."""
    before = [Stream(answer(text("hello")))] * 2 if name == "edge_cases.py" else []
    chatgpt.will(*before, reply)
    done = run(name, tmp_path, chatgpt)
    assert done.returncode == 1
    (failed,) = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert failed.startswith("FAILED ")
    assert why in failed


def test_other_arguments_of_exec(tmp_path: Path, chatgpt: ChatGPT) -> None:
    """Whatever follows `--` takes the place of the login; a mock calls with an example of its own."""
    done = run("test_request.py", tmp_path, chatgpt, "--", "-m", "mock-tool-loop")
    assert done.returncode == 1
    assert "2 and 3 were expected, not {'a': 0, 'b': 0}" in done.stdout
    assert chatgpt.requests == []


def test_pytest_does_not_collect_them() -> None:
    """Two are called test_…, and would ask a real model."""
    words = ["-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "fixtures"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 5, done.stdout  # nothing was collected
