"""A log with what clients get today in place of what they got; every other byte stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st
from log.replayed import compared, play_log, recordings_in

from bridge.replay.compare import update_log

Json = dict[str, Any]
LOGS = sorted((ROOT / "fixtures/logs").glob("*.ndjson"))


def accept(*paths: Path) -> int:
    """Put what clients get today into a log; how many requests had changed."""
    changed = [(each.recording, each.now) for each in compared(recordings_in(*paths)) if each.outcome == "different"]
    update_log(list(paths), [(then, now) for then, now in changed if now is not None])
    return len(changed)


def spoil(path: Path, how: Any) -> None:
    """Change what clients got."""
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["phase"] == "client_egress":
            record = how(record)
        lines.append(json.dumps(record, separators=(",", ":"), ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n")


def numbers(lines: list[str]) -> set[tuple[str, int]]:
    """(run, number) of each record."""
    return {(record["run"], record["seq"]) for record in map(json.loads, lines)}


def other_text(record: Json) -> Json:
    if record["kind"] == "client_line":
        return record | {"payload": {"type": "other"}}
    return record | {"payload": record["payload"].replace("e", "3")} if record["kind"] == "client_sse" else record


def nothing_said(record: Json) -> Json:
    nothing = {"client_sse": "", "client_line": None}
    return record | {"payload": nothing[record["kind"]]} if record["kind"] in nothing else record


def an_error(record: Json) -> Json:
    said = record["kind"] in ("client_sse", "client_line")
    return record | {"kind": "client_json", "payload": {"error": 1}} if said else record


@pytest.mark.parametrize("how", [other_text, nothing_said, an_error], ids=lambda how: how.__name__)
@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_an_updated_log_verifies(log: Path, how: Any, tmp_path: Path) -> None:
    """No record is lost, so that no number is missing; nothing but what the clients got is touched."""
    path = tmp_path / log.name
    path.write_bytes(log.read_bytes())
    spoil(path, how)
    before = path.read_text().splitlines()
    assert accept(path) > 0
    play_log(path)
    after = path.read_text().splitlines()
    assert numbers(after) == numbers(before)
    kept = [line for line in after if '"phase":"client_egress"' not in line]
    assert kept == [line for line in before if '"phase":"client_egress"' not in line]


def test_an_unchanged_log_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    path.write_bytes(LOGS[0].read_bytes())
    assert accept(path) == 0
    assert path.read_bytes() == LOGS[0].read_bytes()


@given(data=st.data())
def test_foreign_lines_blanks_and_torn_ends_stay(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "strange.ndjson"
    lines = LOGS[0].read_bytes().splitlines(keepends=True)
    for _ in range(3):
        at = data.draw(st.integers(0, len(lines)))
        lines.insert(
            at, data.draw(st.sampled_from([b"\n", b"  \n", b"foreign\r\n", b"{}\n", b"\xff\xfe\n", b'{"t":1}\n']))
        )
    lines.append(data.draw(st.sampled_from([b"", b'{"torn', b"{}"])))
    path.write_bytes(b"".join(lines))
    update_log([path], [])
    assert path.read_bytes() == b"".join(lines)


def test_a_turn_may_continue_in_the_next_file(tmp_path: Path) -> None:
    lines = LOGS[0].read_bytes().splitlines(keepends=True)
    for index in range(4):
        part = lines[index * len(lines) // 4 : (index + 1) * len(lines) // 4]
        (tmp_path / f"{index}.ndjson").write_bytes(b"".join(part))
        spoil(tmp_path / f"{index}.ndjson", other_text)
    files = sorted(tmp_path.iterdir())
    assert accept(*files) > 0
    play_log(tmp_path)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    path = tmp_path / "real.ndjson"
    path.write_bytes(LOGS[0].read_bytes())
    spoil(path, other_text)
    link = tmp_path / "link"
    link.symlink_to(path)
    accept(link)
    assert link.is_symlink()
    play_log(path)
