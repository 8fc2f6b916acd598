"""`turnbridge log redact` reads a log twice, and copies only what it has searched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bridge.cli import build_app
from bridge.errors import ConfigError
from bridge.log.split_secrets import SplitSecretFinder

KEY = b"sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


def line(text: str, **members: Any) -> bytes:
    about = {"ts": "", "mono": 0.0, "seq": 0, "phase": "backend_io", "kind": "rpc_notification", "req_id": None}
    return json.dumps(about | members | {"payload": {"delta": text}}).encode() + b"\n"


def redact(log: Path, output: Path) -> None:
    arguments = ["log", "redact", str(log), "--output", str(output), "--secret", "nothing"]
    build_app(completion=False)(arguments, standalone_mode=False)


def test_records_that_are_appended_meanwhile_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have not been searched. Here they are in the first of two files, so that later records move."""
    log, copy = tmp_path / "logs", tmp_path / "copy.ndjson"
    log.mkdir()
    for name in ("1.ndjson", "2.ndjson"):
        (log / name).write_bytes(line("not") + line("hing"))

    def end(finder: SplitSecretFinder) -> SplitSecretFinder:
        with (log / "1.ndjson").open("ab") as file:
            file.write(line("late " + KEY.decode()))
        return original(finder)

    original = SplitSecretFinder.end
    monkeypatch.setattr(SplitSecretFinder, "end", end)
    redact(log, copy)
    _, *records = map(json.loads, copy.read_bytes().splitlines())
    assert [record["payload"]["delta"] for record in records[1::2]] == ["", ""]
    assert KEY not in copy.read_bytes()


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """Its second reading would find nothing."""
    pipe = tmp_path / "pipe.ndjson"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="not a regular file"):
        redact(pipe, tmp_path / "copy.ndjson")


def test_an_output_that_cannot_be_written_is_reported_before_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def feed(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(SplitSecretFinder, "feed", feed)
    (tmp_path / "day.ndjson").write_bytes(line("hello"))
    with pytest.raises(ConfigError, match="cannot be written"):
        redact(tmp_path / "day.ndjson", tmp_path / "missing" / "copy.ndjson")
