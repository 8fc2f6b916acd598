"""`turnbridge lab run` over a matrix: every combination is asked, and the report says what makes the difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.lab.command import MODEL, RIGHT, lab, read_results, run_each, scripted, write_suite
from harness import scripted_codex, turns

pytestmark = pytest.mark.deep  # each test starts several processes

ANSWER = [{"text": RIGHT}, {"usage": {"input": 100, "output": 10}}]


def test_a_matrix_is_asked_continued_and_reported(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite.json", "a", "b", "c")
    (tmp_path / "polite.txt").write_text("Say please.")
    codex = scripted_codex(tmp_path, turns(ANSWER))
    command: list[str | Path] = [
        suite,
        *("--model", MODEL, "-n", "1", "-V", "spec", "-V", "short", "--results", "r.jsonl"),
        *("--instructions", "as-is", "--instructions", "append:polite.txt", "--effort", "low"),
    ]
    lab(tmp_path, "run", *command, "--max-requests", "5", **scripted(codex))
    done = lab(tmp_path, "run", *command, "--json", "report.json", **scripted(codex))
    assert "already has 5 result(s); 7 left" in done.stderr
    assert {each["variant"] for each in read_results(tmp_path / "r.jsonl")} == {
        f"{variant}/instructions={how}/effort=low"
        for variant in ("spec", "short")
        for how in ("as-is", "append:polite.txt")
    }
    assert "What makes the difference" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(each["dimension"], each["level"], each["first"], each["cases"]) for each in report["effects"]] == [
        ("variant", "short", "spec", 3),
        ("instructions", "append:polite.txt", "as-is", 3),
    ]
    assert not any(each["seen"] for each in report["effects"])
    again = lab(tmp_path, "report", "r.jsonl", "--json", "again.json")
    assert json.loads((tmp_path / "again.json").read_text())["effects"] == report["effects"]
    assert again.stdout == done.stdout


def test_a_temperature_for_a_backend_without_one_is_refused(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite.json", "a")
    codex = scripted_codex(tmp_path, turns(ANSWER))
    variables = [f"{name}={value}" for name, value in scripted(codex).items()]
    (done,) = run_each(tmp_path, ["run", suite, "-m", MODEL, "--temperature", "0.5", *variables])
    assert done.code == 2
    assert (
        f"error: --model {MODEL}: its backend, app-server, takes no temperature. Leave one of them out." in done.stderr
    )
