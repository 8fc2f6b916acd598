"""What the program says on stderr: its two forms, what never shows, and whose request a line belongs to."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from harness import KEY, ROOT, RunningBridge, running_bridge
from server.prompted import MODEL, ask, prompted_codex, wait_for
from warm import run_warm

from bridge import logs

SECRET = "sk-" + "s3cr3t" * 8
KNOWN = "a key of nobody's shape"
FORGED = "\nERROR bridge: forged\r\x1b[2J\x9b1m\u202e\u2028\ud800 "
"""What a text from outside may try on a log."""


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """What is said during the test; how logging was set up before is restored."""
    root, own = logging.getLogger(), logging.getLogger("bridge")
    before = root.handlers[:], root.level, own.level, logging.getLogger(logs.ACCESS).level, sys.excepthook
    yield io.StringIO()
    root.handlers[:], sys.excepthook = before[0], before[4]
    for logger, level in ((root, before[1]), (own, before[2]), (logging.getLogger(logs.ACCESS), before[3])):
        logger.setLevel(level)
    logging.captureWarnings(False)


def speak(form: Any, said: io.StringIO) -> str:
    """A line, a hostile one, and one with a traceback."""
    # pytest would keep what is said here for its report, which cannot hold half a character.
    logging.getLogger().handlers.clear()
    redactor = logs.set_up(form, "info", [KNOWN], said)
    log = logging.getLogger("bridge.test")
    log.info("plain %s", "words", extra={"status": 200, "api_key": "anything", "where": Path("/x")})
    log.warning("hostile %s %s %s", FORGED, SECRET, KNOWN)
    try:
        raise ValueError(f"{FORGED} {SECRET} {KNOWN}")
    except ValueError:
        log.exception("failed")
    log.debug("not told")
    assert redactor.removed >= 4
    text = said.getvalue()
    assert SECRET not in text
    assert KNOWN not in text
    assert "not told" not in text
    assert not [char for char in text if (ord(char) < 32 and char != "\n") or char in "\x9b\u202e\u2028\ud800"]
    return text


def test_lines_for_people(said: io.StringIO) -> None:
    """One line each, as ever; what follows is indented, so nothing can pass for a line of its own."""
    lines = speak("console", said).splitlines()
    assert lines[0] == "INFO bridge.test: plain words"
    assert lines[1].startswith(
        r"WARNING bridge.test: hostile \nERROR bridge: forged\r\u001b[2J\u009b1m\u202e\u2028\ud800 "
    )
    assert lines[2:4] == ["ERROR bridge.test: failed", "  Traceback (most recent call last):"]
    assert all(line.startswith("  ") for line in lines[3:])
    assert any(line.startswith("  ERROR bridge: forged") for line in lines[3:])


def test_lines_for_programs(said: io.StringIO) -> None:
    """One object each, with what else is known; its members are looked through by name, too."""
    plain, hostile, failed = map(json.loads, speak("json", said).splitlines())
    assert list(plain)[:4] == ["timestamp", "level", "logger", "event"]
    assert plain["event"] == "plain words"
    assert (plain["level"], plain["logger"], plain["status"]) == ("info", "bridge.test", 200)
    assert plain["api_key"].startswith("[redacted:")
    assert "/x" in plain["where"]
    assert hostile["event"].startswith("hostile \nERROR bridge: forged\r\x1b[2J\x9b1m\u202e\u2028")
    assert failed["exception"].startswith("Traceback (most recent call last):\n")


def test_neither_format_loads_a_library() -> None:
    """A formatter of `logging` is enough; rich would be four times the size of the rest."""
    program = (
        "import sys; from bridge import logs; loaded = set(sys.modules)\n"
        "logs.set_up(sys.argv[1]); print({'structlog', 'rich'} & set(sys.modules), set(sys.modules) - loaded)"
    )
    for form in ("console", "json"):
        command = [sys.executable, "-c", program, form]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == "set() set()\n"


@pytest.mark.parametrize(
    ("form", "level", "told"),
    [("console", "info", False), ("console", "debug", True), ("json", "info", True), ("json", "warning", False)],
)
def test_requests_are_told_to_programs_and_to_the_curious(said: io.StringIO, form: Any, level: Any, told: bool) -> None:
    """A person sees what is wrong; each request only when asking for everything."""
    logs.set_up(form, level, (), said)
    logging.getLogger(logs.ACCESS).info("GET /: 200")
    assert ("GET /: 200" in said.getvalue()) == told


async def test_a_line_has_the_id_of_its_request(said: io.StringIO) -> None:
    """That of the task it comes from, and of the tasks which that has started; never another's, and not twice."""
    logs.set_up("console", "info", (), said)
    log = logging.getLogger("bridge.test")

    async def work(name: str) -> None:
        logs.current_request.set(logs.RequestNames(name))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(part, name)

    async def part(name: str) -> None:
        log.info("part of %s", name[::-1])
        log.info("names %s itself", name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, "req_abc")
        nursery.start_soon(work, "req_xyz")
    log.info("nobody's")
    assert sorted(said.getvalue().splitlines()) == [
        "INFO bridge.test: names req_abc itself",
        "INFO bridge.test: names req_xyz itself",
        "INFO bridge.test: nobody's",
        "INFO bridge.test: part of cba_qer [req_abc]",
        "INFO bridge.test: part of zyx_qer [req_xyz]",
    ]


def test_what_nobody_catches_is_told_in_the_same_way() -> None:
    """As a line with its traceback, without its secrets."""
    program = f"from bridge import logs\nlogs.set_up('json')\nraise ValueError('{SECRET}')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["level"] == "critical"
    assert "ValueError" in line
    assert SECRET not in line
    assert done.returncode == 1


# A whole bridge


def lines_of(bridge: RunningBridge) -> list[dict[str, Any]]:
    """What it has said so far; a line that is still being written is left out."""
    return [json.loads(line) for line in bridge.stderr.read_text().rpartition("\n")[0].splitlines()]


def test_a_bridge_that_speaks_json(tmp_path: Path) -> None:
    """Every line is an object, from the first one on; requests are told with their ids, and what they carry is not."""
    environment = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL, "PROXY_MISSPELT": "x"}
    with running_bridge(tmp_path, "--log-format=json", **environment) as bridge:
        headers = {"x-client-request-id": "mine-1", "x-provider-key": SECRET}
        with bridge.client() as client:
            answer = client.post("/responses", json=ask({"text": "hi"}), headers=headers)
            client.get(f"/models/{SECRET}")
        assert answer.status_code == 200
        httpx2.get(f"{bridge.url}/models", headers={"authorization": f"Bearer {SECRET}"}, trust_env=False, timeout=30)
        wait_for(lambda: sum(line["logger"] == "bridge.access" for line in lines_of(bridge)) == 3, "they are told")
        told = lines_of(bridge)
        assert "PROXY_MISSPELT" in told[0]["event"]
        asked, looked, refused = (line for line in told if line["logger"] == "bridge.access")
        assert asked["request_id"] == answer.headers["x-request-id"]
        assert (asked["client_request_id"], asked["status"], asked["route"]) == ("mine-1", 200, "/v1/responses")
        assert (looked["status"], looked["code"]) == (404, "model_not_found")
        assert (refused["status"], refused["code"], refused["route"]) == (401, "invalid_api_key", "none")
        assert "key" not in refused
        bridge.post("/responses", ask({"exit": 3}))

        def warned() -> bool:
            return any((line["logger"], line["level"]) == ("bridge.supervisor", "warning") for line in lines_of(bridge))

        wait_for(warned, "the child's end is told")
    text = bridge.stderr.read_text()
    for secret in (SECRET, KEY):
        assert secret not in text


def test_a_wrong_setting_is_refused(tmp_path: Path) -> None:
    """With its name and what it may be."""
    done = run_warm("serve", "--mock-only", "--log-format=xml", env={"HOME": str(tmp_path)}, text=True)
    assert done.returncode == 2
    assert "--log-format xml" in done.stderr
    assert "console" in done.stderr
