"""`turnbridge lab report` as a person types it, on a file of results."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli.terminal import terminal
from harness import ROOT
from lab.report.making import CASES, answer, small_run, suite_file, trouble, write_results

from bridge.lab.result import Cell, Result

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

BRIDGE = [sys.executable, "-m", "bridge"]


def typed(directory: Path, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command, which must exit with this code, and never with a traceback."""
    command = [*BRIDGE, "lab", "report", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with the small run in it, without the requests that failed, and its suite."""
    results = [each for each in small_run() if each.status == "scored"]
    write_results(tmp_path / "r.jsonl", results, str(suite_file(tmp_path / "suite.json")))
    return tmp_path


def test_the_table_goes_to_stdout(run: Path) -> None:
    done = typed(run, "r.jsonl")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  weather-by-force          2/3 MIXED ra  1/3 MIXED ba  3/3 PASS" in lines
    assert lines[2].startswith("single ")


def test_columns_keep_the_order_of_the_variants(run: Path) -> None:
    """Not in that of their answers: which of two is compared with the other must not change."""
    lines = (run / "r.jsonl").read_text().splitlines()
    head = json.loads(lines[0]) | {"variants": {"short": "1", "native": "2", "spec": "3"}}
    for order in (lines[1:], lines[:0:-1]):
        (run / "r.jsonl").write_text("\n".join([json.dumps(head), *order, ""]))
        table = typed(run, "r.jsonl").stdout.splitlines()
        assert table[1].split() == [name for name in head["variants"] if name in table[1]]
        assert "against short" in "\n".join(table)


def test_all_reports_at_once(run: Path) -> None:
    names = {"html": "r.html", "junit": "r.xml", "json": "r.json", "csv": "r.csv", "markdown": "r.md"}
    typed(run, "r.jsonl", *(part for name, file in names.items() for part in (f"--{name}", file)))
    assert (run / "r.html").read_bytes().startswith(b"<!doctype html>")
    assert ElementTree.parse(run / "r.xml").getroot().tag == "testsuites"
    assert len(json.loads((run / "r.json").read_bytes())["cases"]) == len(CASES)
    with (run / "r.csv").open(newline="") as file:
        assert {row["category"] for row in csv.DictReader(file)} == {case.category for case in CASES.values()}
    assert (run / "r.md").read_text().startswith("# Tool calls")
    assert {(run / name).stat().st_mode & 0o777 for name in names.values()} == {0o600}, "they contain texts"


def test_a_report_to_stdout_replaces_the_table(run: Path) -> None:
    assert json.loads(typed(run, "r.jsonl", "--json", "-").stdout)["report"] == 1
    assert typed(run, "r.jsonl", "--markdown", "-").stdout.startswith("# Tool calls")


def test_a_selection_of_cases(run: Path) -> None:
    done = typed(run, "r.jsonl", "--category", "parallel")
    assert "two-at-once" in done.stdout
    assert "weather-bern" not in done.stdout
    assert "results of other cases, variants or models not shown" in done.stdout


@pytest.mark.deep
def test_on_a_terminal_words_have_colours(run: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    command = [*BRIDGE, "lab", "report", "r.jsonl"]
    with terminal(command, environment, run) as shown:
        shown.wait_for("\x1b[33m2/3 MIXED ra\x1b[0m")
        assert shown.wait() == 0
    with terminal(command, environment | {"NO_COLOR": "1"}, run) as shown:
        assert "\x1b" not in shown.wait_for("Compared case by case")


def test_a_run_whose_suite_has_moved(run: Path) -> None:
    (run / "suite.json").unlink()
    done = typed(run, "r.jsonl", "--junit", "r.xml")
    assert "the suite has moved" in done.stderr
    assert "2/3 MIXED ra" in done.stdout
    assert "--suite" in typed(run, "r.jsonl", "--case", "x", code=2).stderr


def test_a_case_that_has_changed_since_is_named(run: Path) -> None:
    file = run / "changed.jsonl"
    head = {"lab": 1, "suite": str(run / "suite.json"), "cases": {"weather-bern": "0" * 16}}
    _, _, lines = (run / "r.jsonl").read_text().partition("\n")
    file.write_text(f"{json.dumps(head)}\n{lines}")
    assert "1 case(s) have changed since the run: weather-bern" in typed(run, file).stderr


# Thresholds


def write(path: Path, *results: Result) -> Path:
    write_results(path, results, "")
    return path


def outcomes(path: Path, passed: str, variant: str = "spec") -> Path:
    """Cases with two samples each: `+` passes both, `~` one, `-` none."""
    return write(
        path,
        *(
            answer(
                Cell("m", variant, f"case-{number}", repeat),
                "clean",
                failed=[] if repeat < "-~+".index(mark) else ["values"],
            )
            for number, mark in enumerate(passed)
            for repeat in range(2)
        ),
    )


def test_min_pass(tmp_path: Path) -> None:
    file = outcomes(tmp_path / "r.jsonl", "++~-")
    done = typed(tmp_path, file, "--min-pass", "62.5")
    assert "missed" not in done.stderr
    done = typed(tmp_path, file, "--min-pass", "63", code=100)
    assert "missed: m spec: 5 of 8 (62.5 %) passed; the minimum is 63 %\n" in done.stderr
    assert "case-0" in done.stdout, "the table is shown all the same"


@pytest.mark.deep
def test_min_clean(tmp_path: Path) -> None:
    cells = [Cell("m", "spec", "a", number) for number in range(4)]
    forms = ("clean", "repaired", "absent", "broken")
    file = write(tmp_path / "r.jsonl", *(answer(cell, form) for cell, form in zip(cells, forms, strict=True)))
    typed(tmp_path, file, "--min-clean", "33")
    done = typed(tmp_path, file, "--min-clean", "34", code=100)
    assert "missed: m spec: 1 of 3 (33.3 %) answers with calls are clean; the minimum is 34 %" in done.stderr


@pytest.mark.deep
def test_without_calls_nothing_is_clean_unless_none_was_expected(tmp_path: Path) -> None:
    absent = [answer(Cell("m", "spec", "a", number), "absent", failed=["count"]) for number in range(2)]
    done = typed(tmp_path, write(tmp_path / "r.jsonl", *absent), "--min-clean", "1", code=100)
    assert "missed: m spec: 0 of 0 answers with calls are clean; the minimum is 1 %" in done.stderr
    typed(tmp_path, write(tmp_path / "talk.jsonl", answer(Cell("m", "spec", "a", 0), "absent")), "--min-clean", "100")


@pytest.mark.deep
def test_max_errors(tmp_path: Path) -> None:
    cells = [Cell("m", "spec", "a", number) for number in range(10)]
    file = write(tmp_path / "r.jsonl", trouble(cells[0]), *(answer(cell, "clean") for cell in cells[1:]))
    typed(tmp_path, file, "--max-errors", "10")
    done = typed(tmp_path, file, code=100)
    assert "missed: m spec: 1 of 10 (10.0 %) requests failed; the maximum is 5 %" in done.stderr
    typed(tmp_path, file, "--max-errors", "10", "--min-pass", "100")


@pytest.mark.deep
def test_a_run_without_scores_fails(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", trouble(Cell("m", "spec", "a", 0)))
    done = typed(tmp_path, file, "--min-pass", "0", "--max-errors", "100", code=100)
    assert "missed: m spec: 0 of 0 passed" in done.stderr
    empty = write(tmp_path / "empty.jsonl")
    assert "No results." in typed(tmp_path, empty).stdout
    assert "missed: there are no results" in typed(tmp_path, empty, "--min-pass", "50", code=100).stderr


def test_a_regression_names_the_case(tmp_path: Path) -> None:
    typed(tmp_path, outcomes(tmp_path / "before.jsonl", "++~-+"), "--json", "base.json")
    better = outcomes(tmp_path / "better.jsonl", "+++~+")
    assert "regression" not in typed(tmp_path, better, "--baseline", "base.json").stderr
    worse = outcomes(tmp_path / "worse.jsonl", "~--++-")
    done = typed(tmp_path, worse, "--baseline", "base.json", "--markdown", "r.md", code=100)
    assert [line for line in done.stderr.splitlines() if line.startswith("regression")] == [
        "regression: case-0 (m, spec) was 2/2 and is 1/2",
        "regression: case-1 (m, spec) was 2/2 and is 0/2",
        "regression: case-2 (m, spec) was 1/2 and is 0/2",
    ]
    assert "Note: Not in the baseline: case-5." in done.stdout
    assert "Worse than before: case-0 (m, spec) was 2/2 and is 1/2." in (tmp_path / "r.md").read_text()
    shorter = outcomes(tmp_path / "shorter.jsonl", "+")
    assert "Only in the baseline: case-1, case-2" in typed(tmp_path, shorter, "--baseline", "base.json").stdout


def test_an_unrelated_baseline_fails(tmp_path: Path) -> None:
    typed(tmp_path, outcomes(tmp_path / "before.jsonl", "+"), "--json", "base.json")
    other = outcomes(tmp_path / "other.jsonl", "+", "short")
    done = typed(tmp_path, other, "--baseline", "base.json", code=100)
    assert "missed: no case can be compared with the baseline of m spec" in done.stderr
    assert "Note: m short is not in the baseline." in done.stdout


# Typed wrong


def test_other_files_are_refused_as_baseline_and_results(run: Path) -> None:
    assert "not a report" in typed(run, "r.jsonl", "--baseline", "r.jsonl", code=2).stderr
    assert "does not hold results" in typed(run, "suite.json", code=2).stderr
    assert "Cannot read" in typed(run, "nothing.jsonl", code=2).stderr


def test_a_report_never_overwrites_its_sources(run: Path) -> None:
    before = (run / "r.jsonl").read_bytes()
    assert "the results themselves" in typed(run, "r.jsonl", "--csv", "r.jsonl", code=2).stderr
    (run / "link").symlink_to(run / "r.jsonl")
    assert "the results themselves" in typed(run, "r.jsonl", "--csv", "link", code=2).stderr
    typed(run, "r.jsonl", "--json", "base.json")
    done = typed(run, "r.jsonl", "--baseline", "base.json", "--json", "./base.json", code=2)
    assert "this file is the baseline" in done.stderr
    assert (run / "r.jsonl").read_bytes() == before


def test_a_full_disk_exits_with_1(run: Path) -> None:
    """Not of whoever typed."""
    done = typed(run, "r.jsonl", "--csv", "/dev/full", code=1)
    assert done.stderr == "error: /dev/full cannot be written: No space left on device.\n"
    command = [
        "/bin/bash",
        "-c",
        'ulimit -f 2; exec "$@"',
        "sh",
        *BRIDGE,
        "lab",
        "report",
        "r.jsonl",
        "--html",
        "r.html",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    full = subprocess.run(command, cwd=run, capture_output=True, text=True, timeout=60, env=environment)
    assert (full.returncode, full.stderr) == (1, "error: r.html cannot be written: File too large.\n")
    assert sorted(path.name for path in run.iterdir()) == ["r.jsonl", "suite.json"]
    with open("/dev/full", "wb") as full_stdout:
        command = [*BRIDGE, "lab", "report", "r.jsonl", "--json", "-"]
        full = subprocess.run(
            command, cwd=run, stdout=full_stdout, stderr=subprocess.PIPE, text=True, timeout=60, env=environment
        )
    assert (full.returncode, full.stderr) == (1, "error: stdout cannot be written: No space left on device.\n")


@pytest.mark.deep
def test_two_reports_in_one_file_and_a_directory_that_is_not_there(run: Path) -> None:
    assert "cannot both be written" in typed(run, "r.jsonl", "--csv", "x", "--json", "./x", code=2).stderr
    assert "no such directory: no" in typed(run, "r.jsonl", "--csv", "no/x", code=2).stderr
    assert not (run / "x").exists()
