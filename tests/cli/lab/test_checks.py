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
    command: list[str | Path] = [cases, "-m", MODEL, "-n", "2", "-c", "1", "--results", "r.jsonl"]
    (refused,) = run_each(tmp_path, ["run", *command])
    assert refused.code == 2
    assert "Cases with code in Python: talk. Read it, then allow it with --python-checks DIR" in refused.stderr
    lab(tmp_path, "run", *command, "--python-checks", "checks", "--log-events", "log.ndjson", **scripted(codex))
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
    command: list[str | Path] = [cases, "-m", MODEL, "-n", "2", "-c", "1", "--results", "r.jsonl"]
    (refused,) = run_each(tmp_path, ["run", *command])
    assert (refused.code, refused.stderr) == (
        2,
        "error: Cases with a rubric: talk. Name the judge with --judge, or choose other cases.\n",
    )
    lab(tmp_path, "run", *command, "--judge", MODEL, "--html", "r.html", **scripted(codex))
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


def test_episodes_over_a_child(tmp_path: Path) -> None:
    """Each sample is a whole episode, and pass^n counts episodes. A log of them is not scored again."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    call = '<tool_call>{"name":"weather","arguments":"{\\"city\\":\\"Bern\\"}"}</tool_call>'
    case = {
        "id": "trip",
        "category": "c",
        "input": "How is it?",
        "tools": [{"name": "weather", "parameters": city}],
        "loop": {"tools": {"weather": [{"result": "rain"}]}},
        "expect": {"calls": [{"name": "weather", "arguments": {"city": "Bern"}}], "text": {"$contains": "rain"}},
    }
    (tmp_path / "s.json").write_text(json.dumps({"cases": [case]}))
    codex = scripted_codex(
        tmp_path, turns([{"text": call}], [{"text": "It rains."}], [{"text": call}], [{"text": "It is dry."}])
    )
    command = ["s.json", "-m", MODEL, "-n", "2", "-c", "1", "--results", "r.jsonl", "--json", "r.json"]
    lab(tmp_path, "run", *command, "--log-events", "log.ndjson", "--html", "r.html", **scripted(codex))
    found = read_results(tmp_path / "r.jsonl")
    assert [each["passed"] for each in found] == [True, False]
    assert [each["texts"] for each in found] == [[call, "It rains."], [call, "It is dry."]]
    (cell,) = json.loads((tmp_path / "r.json").read_text())["cases"][0]["cells"]
    assert (cell["passed"], cell["scored"], cell["pass_at"], cell["pass_hat"]) == (1, 2, 1.0, 0.0)
    (again,) = run_each(tmp_path, ["run", "s.json", "--from", "log.ndjson"])
    assert again.code == 2
    assert "their cases are episodes, which are not scored again" in again.stderr
