"""docs/event-log.schema.json describes what the bridge writes, and names every kind that docs/event-log.md names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from harness import ROOT, running_bridge

SCHEMA = json.loads((ROOT / "docs/event-log.schema.json").read_text(encoding="utf-8"))
VALID = jsonschema_rs.validator_for(SCHEMA, validate_formats=True)
LOGS = sorted((ROOT / "fixtures/logs").glob("*.ndjson"))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def problems(found: list[dict[str, Any]]) -> list[str]:
    return [f"{record['kind']}: {error.message}" for record in found for error in VALID.iter_errors(record)]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_recorded_logs_fit(log: Path) -> None:
    found = records(log)
    assert found
    assert problems(found)[:5] == []


def test_a_new_log_fits(tmp_path: Path) -> None:
    """Also its refusals and its tool calls."""
    log = tmp_path / "events.ndjson"
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    with running_bridge(tmp_path, "--mock-only", f"--log-events={log}") as bridge:
        bridge.post("/responses", {"model": "mock-tool-call", "input": "x", "tools": [tool]})
        bridge.events("/responses", {"model": "mock-text", "input": "x"})
        assert bridge.post("/responses", {"model": "none", "input": "x"}).status_code == 400
    found = records(log)
    assert {"header", "client_request", "turn_end", "tool_call", "client_sse", "client_json"} <= {
        record["kind"] for record in found
    }
    assert problems(found) == []


def test_the_kinds_are_those_of_the_page() -> None:
    """By phase, as the table of the format lists them."""
    page = (ROOT / "docs/event-log.md").read_text(encoding="utf-8").partition("| phase | kinds | payload |")[2]
    listed: dict[str, list[str]] = {}
    phase = ""
    for first, kinds in re.findall(r"^\| (?:`(\w+)`)? ?\| ((?:`\w+`(?:, )?)+) \|", page, re.M):
        phase = first or phase
        listed.setdefault(phase, []).extend(re.findall(r"`(\w+)`", kinds))
    rules = [rule for rule in SCHEMA["allOf"] if "phase" in rule["if"]["properties"]]
    described = {
        rule["if"]["properties"]["phase"]["const"]: rule["then"]["properties"]["kind"]["enum"] for rule in rules
    }
    assert described == listed
    assert sorted(SCHEMA["properties"]["kind"]["enum"]) == sorted(kind for kinds in listed.values() for kind in kinds)


@pytest.mark.parametrize(
    ("changed", "about"),
    [
        ({"seq": -1}, "-1"),
        ({"kind": "turn_start"}, "turn_start"),
        ({"payload": {"body": {}}}, "path"),
        ({"direction": "sideways"}, "sideways"),
        ({"ts": "yesterday"}, "yesterday"),
    ],
)
def test_a_wrong_record_does_not_fit(changed: dict[str, Any], about: str) -> None:
    record = next(each for each in records(LOGS[-1]) if each["kind"] == "client_request")
    assert problems([record]) == []
    assert any(about in problem for problem in problems([record | changed]))
