"""The programs' harness: whatever a program does instead of answering is told, with what it wrote to stderr."""

from __future__ import annotations

import sys

import pytest
from clients.program import Program

ECHO = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"ok": json.loads(line)}), flush=True)
"""


def python(source: str, **env: str) -> Program:
    return Program([sys.executable, "-c", "import sys; print('hello', file=sys.stderr)\n" + source], env)


def test_cases() -> None:
    """Each case gets its own reply; the program ends with its input."""
    with python(ECHO) as program:
        for number in range(3):
            reply = program.run("plain", prompt="é\n", number=number)
            assert reply == {"ok": {"case": "plain", "prompt": "é\n", "number": number}}


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of ours but PATH, a home of its own, and what is given."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    source = "import os, json; input(); print(json.dumps({'ok': dict(os.environ)}))"
    with python(source, BRIDGE_MODEL="m") as program:
        seen = program.run("plain")["ok"]
    assert seen["BRIDGE_MODEL"] == "m"
    assert {"PATH", "HOME"} <= seen.keys()
    assert "HTTP_PROXY" not in seen


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("input(); sys.exit(3)", "ended with exit code 3; its stderr:\nhello"),
        ("input(); print('a warning', flush=True); input()", "instead of a reply: b'a warning'; its stderr:\nhello"),
        ("input(); print('[]', flush=True); input()", "instead of a reply: b'[]'; its stderr:\nhello"),
    ],
    ids=["dies", "talks", "says nonsense"],
)
def test_no_reply(source: str, told: str) -> None:
    """An AssertionError tells the case, what happened, and the stderr; the program is gone afterwards."""
    with python(source) as program:
        with pytest.raises(AssertionError, match="case 'plain'") as caught:
            program.run("plain")
        assert told in str(caught.value)
        with pytest.raises(AssertionError, match="is dead already"):
            program.run("plain")


def test_no_reply_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a program that hangs."""
    monkeypatch.setattr(Program, "limit", 0.5)
    hangs = python("import threading; threading.Event().wait()")
    with hangs as program, pytest.raises(AssertionError, match=r"did not answer within 0\.5 s"):
        program.run("plain")
