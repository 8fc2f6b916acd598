"""`turnbridge log serve`: the page over a recording, as a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from harness import ROOT
from log.export.making import LogMaker
from page.visiting import browser, following, rows

from bridge.log.export import ExportedTurn
from bridge.log.export.html import conversation_block, list_row
from bridge.log.read import RecordReader
from bridge.log.recording import Recording, read_recordings

LOG = ROOT / "fixtures" / "logs" / "current-ends.ndjson"


@contextmanager
def shown(log: Path, home: Path) -> Iterator[httpx2.Client]:
    """A browser that has opened the printed address."""
    command = [sys.executable, "-m", "bridge", "log", "serve", str(log)]
    env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=ROOT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"^page at (http://127\.0\.0\.1:\d+)/#token=(\S+)", line)
            assert found, line
            with browser(found[1]) as client:
                assert client.post("/page/session", json={"token": found[2]}).status_code == 204
                yield client
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


def recordings(log: Path) -> list[Recording]:
    return sorted(read_recordings(RecordReader([log])), key=lambda each: (each.ts, each.id), reverse=True)


def test_a_log_is_shown_as_its_export_shows_it(tmp_path: Path) -> None:
    expected = [ExportedTurn(each) for each in recordings(LOG)]
    with shown(LOG, tmp_path) as client:
        listed = rows(client, limit="500")
        assert [{name: row[name] for name in list_row(expected[0])} for row in listed] == [
            json.loads(json.dumps(list_row(each))) for each in expected
        ]
        for turn in expected:
            opened = client.get(f"/page/api/turns/{turn.recording.id}").json()
            block = json.loads(json.dumps(conversation_block(turn)))
            # An older log does not say which of two crashes at a time ended a turn.
            shown_exit, exit = opened.pop("exit"), block.pop("exit")
            assert (shown_exit is None) == (exit is None)
            assert {name: opened[name] for name in block} == block
        assert [row["id"] for row in rows(client, outcome="failed")] == [
            row["id"] for row in listed if row["outcome"] == "failed"
        ]


def test_it_changes_nothing_and_runs_nothing(tmp_path: Path) -> None:
    before = LOG.read_bytes()
    with shown(LOG, tmp_path) as client:
        about = client.get("/page/api/about").json()
        assert (about["live"], about["operator"], about["source"]) == (False, True, LOG.name)
        name = rows(client)[0]["id"]
        assert client.post(f"/page/api/turns/{name}/send", json={}).status_code == 409
        assert client.post(f"/page/api/turns/{name}/cancel", json={}).status_code == 409
        assert client.get("/page/api/overview").status_code == 404
        assert client.get("/v1/models").status_code == 401
        assert "recorded" in client.post(f"/page/api/turns/{name}/case", json={}).json().get("yaml", "recorded")
        assert "attachment" in client.get(f"/page/api/turns/{name}/export").headers["content-disposition"]
        with following(client, f"turns/{name}/events") as events:
            assert [event.name for event in events] == ["start", "end"]
    assert LOG.read_bytes() == before


def test_a_log_without_records_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bridge", "log", "serve", str(tmp_path / "none.ndjson")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, "does not exist" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("name", ["req/with/slashes", "req%2fcoded", "req_ends/wire", "req_\u00e9 ?&="])
def test_any_id_of_a_log_can_be_opened(tmp_path: Path, name: str) -> None:
    """An id is whatever the log says; the page encodes it twice."""
    maker = LogMaker(tmp_path / "events.ndjson")
    maker.turn(body={"model": "mock-text", "input": "hi"}, req_id=name)
    with shown(maker.close(), tmp_path) as client:
        assert [row["id"] for row in rows(client)] == [name]
        path = f"/page/api/turns/{quote(quote(name, safe=''), safe='')}"
        assert client.get(path).json()["row"]["id"] == name
        assert client.get(f"{path}/wire").json()["request"]["path"] == "/v1/responses"


def test_turns_of_a_conversation_are_linked_in_a_log(tmp_path: Path) -> None:
    """By the answer that a request continues, or by the conversation that it names."""
    maker = LogMaker(tmp_path / "events.ndjson")

    def turn(name: str, **body: Any) -> None:
        answer = {"id": f"resp_{name}", "object": "response", "output": []}
        maker.turn(body={"model": "mock-text", "input": name} | body, req_id=f"req_{name}", answer=answer)
        maker.wait(1)

    turn("a")
    turn("x", conversation="conv_1")
    turn("b", previous_response_id="resp_a")
    turn("y", conversation={"id": "conv_1"})
    turn("c", previous_response_id="resp_b")
    turn("alone", previous_response_id="resp_of_another_log")
    with shown(maker.close(), tmp_path) as client:
        links = {
            name: client.get(f"/page/api/turns/req_{name}/neighbours").json()
            for name in ("a", "b", "c", "x", "y", "alone")
        }
        assert client.get("/page/api/turns/req_none/neighbours").status_code == 404
    assert {name: (each["previous"], each["next"]) for name, each in links.items()} == {
        "a": (None, "req_b"),
        "b": ("req_a", "req_c"),
        "c": ("req_b", None),
        "x": (None, "req_y"),
        "y": ("req_x", None),
        "alone": (None, None),
    }
