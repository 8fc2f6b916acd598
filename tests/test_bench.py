"""`scripts/bench` and `scripts/load`: what they measure, and how they report it."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts" / "benchmark"


def ran(script: str, *options: str | Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPTS / script, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def loaded(name: str, monkeypatch: pytest.MonkeyPatch, directory: Path = SCRIPTS) -> ModuleType:
    """A module of the scripts, which are not a package: they find each other by their directory."""
    monkeypatch.syspath_prepend(directory)
    for sibling in directory.glob("*.py"):  # a test may have loaded a package of the same name
        monkeypatch.delitem(sys.modules, sibling.stem, raising=False)
    spec = importlib.util.spec_from_file_location(f"bench_{name}", directory / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, f"bench_{name}", module)  # dataclasses look up their annotations here
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("table", monkeypatch)


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("calibration", monkeypatch)


# What is measured


def test_requests_are_measured(tmp_path: Path) -> None:
    """Each kind of request costs something; the progress is on stderr, the table on stdout."""
    file = tmp_path / "numbers.json"
    done = ran("run.py", "--only", "16 at once", "--rounds", "1", "--json", file)
    assert done.returncode == 0, done.stderr
    found = {row: values["this version"] for row, values in json.loads(file.read_text()).items()}
    listed = ran("run.py", "--only", "16 at once", "--list").stdout
    assert [row for row in found if row not in listed] == []
    assert len(found) == 7
    assert all(20 < value < 100_000 for value in found.values()), found
    assert found["GET /v1/models, CPU µs"] < found["short turn, CPU µs"]
    assert "1 of 2: requests, 16 at once" in done.stderr
    assert all(row in done.stdout for row in found)
    assert "Load of the machine" in done.stdout
    assert "the one the goals were set on" in done.stdout


@pytest.mark.deep
def test_every_part_has_all_its_rows(tmp_path: Path) -> None:
    """Nothing that is listed is without a number."""
    file = tmp_path / "numbers.json"
    done = ran("run.py", "--rounds", "1", "--json", file, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert [row for row, values in found.items() if values["this version"] is None] == []
    assert len(found) > 35
    assert "ms by package (this version): " in done.stdout


@pytest.mark.deep
def test_a_short_load() -> None:
    """No event is lost, with 200 streams and with 400."""
    done = ran("load.py", "--seconds", "4")
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0]: line.split() for line in done.stdout.splitlines()}
    assert "40,000" in lines["events"]
    for row in ("events lost or out of order", "400 streams on one core: events lost or out of order"):
        assert "ok" in lines[row], done.stdout


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--docs", "--only", "lab"), "--docs needs the whole table"),
        (("--docs", "--against", "HEAD"), "--docs needs the whole table"),
        (("--only", "no such row"), "--only matches no part and no row; --list shows them."),
        (("--only", "("), "--only is not a regular expression"),
        (("--rounds", "0"), "--rounds must be 1 or more."),
    ],
)
def test_options_that_do_not_fit_are_refused(options: tuple[str, ...], message: str) -> None:
    done = ran("run.py", *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_part_is_chosen_by_its_name_or_a_row() -> None:
    everything = ran("run.py", "--list").stdout
    assert everything.count("(goal ") >= 18
    assert ran("run.py", "--list", "--only", "^cap$").stdout == ran("run.py", "--list", "--only", "delta packet").stdout
    assert "lab" not in ran("run.py", "--list", "--only", "^cap$").stdout


# Goals on other machines


def test_goals_for_times_and_rates_scale_with_the_machine(table: ModuleType) -> None:
    """On a machine half as fast a time may be twice as long, a rate half as high, and memory as it was."""
    rows = {"cpu": table.time_at_most(500), "rate": table.rate_at_least(450_000), "MB": table.at_most(50), "none": None}
    scaled = table.scaled(rows, 2.0)
    assert {name: str(goal) for name, goal in scaled.items()} == {
        "cpu": "≤ 1,000",
        "rate": "≥ 225,000",
        "MB": "≤ 50",
        "none": "None",
    }
    assert table.missed(scaled, {"cpu": 990.0, "rate": 230_000.0, "MB": 51.0}) == ["MB"]
    assert table.missed(scaled, {"cpu": 1010.0, "rate": 220_000.0, "MB": 49.0}) == ["cpu", "rate"]
    assert {name: str(goal) for name, goal in table.scaled(rows, 1.0).items()} == {n: str(g) for n, g in rows.items()}


def test_a_scaled_goal_has_three_digits(table: ModuleType) -> None:
    """The ratio is not known better than that."""
    assert str(table.time_at_most(0.2).on(1.23456)) == "≤ 0.247"
    assert str(table.rate_at_least(450_000).on(1.23456)) == "≥ 365,000"


def test_the_ratio_is_the_median_of_the_runs(calibration: ModuleType) -> None:
    """Runs that something else interrupted do not count."""
    times = itertools.cycle([2.0, 2.0, 2.0, 50.0])
    measured = calibration.Calibration(lambda: calibration.REFERENCE * next(times))
    assert measured.ratio == 1.0
    measured.sample()
    measured.sample()
    assert len(measured.times) == 2 * calibration.RUNS
    assert measured.ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1.5, "1.50 times slower"), (0.5, "2.00 times faster"), (1.02, "as fast as"), (3.0, "are scaled by 3.00")],
)
def test_the_ratio_is_reported_in_words(calibration: ModuleType, ratio: float, words: str) -> None:
    assert words in str(calibration.Calibration(times=[ratio * calibration.REFERENCE]))


def test_the_calibration_work_is_fixed(calibration: ModuleType) -> None:
    """Other work would need another reference: measure it before you change this number."""
    assert calibration.work() == 77_927
    assert calibration.timed_run() > 0


@pytest.mark.parametrize("script", ["run.py", "load.py"])
def test_memory_goals_are_never_scaled(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(script.removesuffix(".py"), monkeypatch)
    rows = (
        module.ROWS if script == "load.py" else {row: goal for part in module.PARTS for row, goal in part.rows.items()}
    )
    goals = {row: goal for row, goal in rows.items() if goal}
    assert [row for row, goal in goals.items() if goal.scales and re.search("memory|lost|times|against", row)] == []
    timed = [row for row in goals if re.search(r"µs|\bms\b|, s$|/CPU-s|per second|share of", row)]
    assert timed
    assert [row for row in timed if not goals[row].scales] == []


# What is reported


def test_a_missed_goal_is_marked(table: ModuleType) -> None:
    """Below, above, exactly met, and not measured."""
    rows = {
        "a": table.at_most(1),
        "b": table.rate_at_least(1),
        "c": table.at_most(1),
        "d": None,
        "e": table.rate_at_least(1),
    }
    values = {"a": 1.01, "b": 0.99, "c": 1.0, "d": 5.0}
    assert table.missed(rows, values) == ["a", "b", "e"]
    text = table.text_table(rows, ["this version"], [values])
    assert [line.split()[0] for line in text.splitlines() if "MISSED" in line] == ["a", "b", "e"]


def test_two_versions_stand_side_by_side(table: ModuleType) -> None:
    """The ratio is there where both have a number."""
    rows = {"both": None, "one": None}
    text = table.text_table(rows, ["this version", "main"], [{"both": 1.0, "one": 2.0}, {"both": 4.0}])
    head, both, one = (line.split() for line in text.splitlines())
    assert head == ["this", "version", "main", "ratio"]
    assert both == ["both", "1.00", "4.00", "0.25"]
    assert one == ["one", "2.00"]


def test_the_page_keeps_what_is_around_the_table(table: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("before\n<!-- results -->\nold\n<!-- end of results -->\nafter\n")
    made = table.page_table({"row": table.at_most(1200)}, {"row": 1234.5})
    table.put_into_page("results", made, "a note", page=page)
    assert page.read_text() == (
        "before\n<!-- results -->\n\n| what | measured | goal |\n|---|---:|---:|\n| row | 1,234 | ≤ 1,200 |\n"
        "\na note\n\n<!-- end of results -->\nafter\n"
    )
    with pytest.raises(SystemExit, match="has no lines"):
        table.put_into_page("other", made, page=page)


def test_the_page_has_the_marks() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    for mark in ("results", "load"):
        assert page.index(f"<!-- {mark} -->\n") < page.index(f"<!-- end of {mark} -->\n")
