"""`turnbridge lab run` with checks in Python and a judge, and `lab judge`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.lab.command import MODEL, lab, read_results, run_each, scripted
from harness import scripted_codex, turns

pytestmark = pytest.mark.deep  # each test starts several processes


def suite(path: Path, **expect: object) -> Path:
    case = {"id": "talk", "category": "c", "input": "How many?", "expect": {"calls": "none", **expect}}
    path.write_text(json.dumps({"cases": [case]}))
    return path


def test_a_check_in_python_runs_only_if_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/mine.py").write_text("def three(answer): return answer['text'] == '3' or 'not three'\n")
    cases = suite(tmp_path / "s.json", check="mine:three")
    codex = scripted_codex(tmp_path, turns([{"text": "3"}], [{"text": "4"}]))
    command = ["run", cases, "-m", MODEL, "-n", "2", "-c", "1", "--results", "r.jsonl"]
    (refused,) = run_each(tmp_path, command)
    assert refused.code == 2
    assert (
        "Cases with a check in Python: talk. Read the checks, then allow them with --python-checks DIR"
        in refused.stderr
    )
    lab(tmp_path, *command, "--python-checks", "checks", "--log-events", "log.ndjson", **scripted(codex))
    found = read_results(tmp_path / "r.jsonl")
    assert [each["passed"] for each in found] == [True, False]
    assert found[1]["verdicts"][0]["reason"] == "not three"
    (again,) = run_each(tmp_path, ["run", cases, "--from", "log.ndjson", "--python-checks", "checks"])
    assert again.code == 0
    assert [each["passed"] for each in read_results(tmp_path / "log.ndjson.results.jsonl")] == [True, False]


def test_a_judge_grades_answers_and_is_graded_itself(tmp_path: Path) -> None:
    verdicts = [{"text": json.dumps({"reason": "because", "verdict": word})} for word in ("pass", "fail")]
    examples = [{"answer": "3", "verdict": "pass"}, {"answer": "4", "verdict": "pass"}]
    cases = suite(tmp_path / "s.json", judge={"rubric": "It is three.", "examples": examples})
    codex = scripted_codex(tmp_path, turns([{"text": "3"}], [verdicts[0]], [{"text": "4"}], [verdicts[1]]))
    command = ["run", cases, "-m", MODEL, "-n", "2", "-c", "1", "--results", "r.jsonl"]
    (refused,) = run_each(tmp_path, command)
    assert (refused.code, refused.stderr) == (
        2,
        "error: Cases with a rubric: talk. Name the judge with --judge, or choose other cases.\n",
    )
    lab(tmp_path, *command, "--judge", MODEL, "--html", "r.html", **scripted(codex))
    found = read_results(tmp_path / "r.jsonl")
    assert [each["passed"] for each in found] == [True, False]
    assert [each["verdicts"][0]["check"] for each in found] == ["judge", "judge"]
    assert "It is three." in found[0]["verdicts"][0]["prompt"]
    judge = scripted_codex(tmp_path, turns([verdicts[0]], [verdicts[1]]), name="judge")
    done = lab(tmp_path, "judge", cases, "-m", MODEL, "-c", "1", **scripted(judge))
    assert done.stdout.splitlines() == [
        "talk: labelled pass, judged fail: because",
        f"{MODEL} agrees with 1 of 2 labels (50%, 95 % interval 9% to 91%; Cohen's kappa 0.00)",
    ]
