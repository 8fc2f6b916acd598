"""`turnbridge lab cases`: what a suite asks, and whether it is right."""

from __future__ import annotations

from pathlib import Path

from cli.lab.command import BRIDGE, environment, run_each
from cli.terminal import terminal
from harness import ROOT

GOOD, BAD = (ROOT / "tests/lab/suites" / name for name in ("good", "bad"))


def test_the_cases_of_a_suite_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    whole, some, none, typo, empty, bad, nowhere = run_each(
        tmp_path,
        ["cases", GOOD],
        ["cases", GOOD, "--case", "*-bern", "--case", "no-cal?"],
        ["cases", GOOD, "--tag", "nothing"],
        ["cases", GOOD, "--case", "no-call", "--case", "weather-in-berne"],
        ["cases", GOOD, "--case", "no-call", "--category", "single"],
        ["cases", BAD / "unknown-key.yaml"],
        ["cases", "nowhere"],
    )
    *lines, last = whole.stdout.splitlines()
    assert (whole.code, whole.stderr, last) == (0, "", "5 case(s) in 5 categories")
    assert lines[0].split() == ["single", "weather-in-bern", "2", "tools", "weather"]
    assert [line.split()[1] for line in lines][2:] == ["no-call", "plain-words", "responses-items"]
    assert any(line.endswith(" no call") for line in lines)

    assert [line.split()[1] for line in some.stdout.splitlines()[:-1]] == ["weather-in-bern", "no-call"]
    assert (none.code, none.stderr) == (2, f"error: --tag nothing: no case of {GOOD} matches.\n")
    message = f"error: --case weather-in-berne: no case of {GOOD} matches; did you mean weather-in-bern?\n"
    assert (typo.code, typo.stderr) == (2, message)
    assert (empty.code, empty.stderr) == (2, f"error: No case of {GOOD} matches all options.\n")

    assert (bad.code, bad.stdout) == (2, "")
    assert all(line.startswith(f"error: {BAD}/unknown-key.yaml:") for line in bad.stderr.splitlines())
    assert (nowhere.code, nowhere.stderr) == (2, "error: nowhere: no such file\n")
    assert list(tmp_path.iterdir()) == [], "no model is asked"


def test_no_line_is_wider_than_the_terminal(tmp_path: Path) -> None:
    command = [*BRIDGE, "lab", "cases", str(ROOT / "fixtures/cases")]
    with terminal(command, environment(tmp_path, COLUMNS="80"), tmp_path) as shown:
        lines = shown.wait_for("categories").splitlines()
        assert shown.wait() == 0
    assert max(map(len, lines)) == 80
