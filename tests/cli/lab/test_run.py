"""`turnbridge lab run` as a person types it, over real children: results that are kept, errors, budgets, ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli.lab.command import (
    BRIDGE,
    MODEL,
    RIGHT,
    cells,
    environment,
    lab,
    read_results,
    run_each,
    scripted,
    write_suite,
)
from cli.terminal import terminal
from harness import ROOT, scripted_codex, turns
from peak import peak, watched
from server.prompted import children_of, is_alive, wait_for

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

CASES = ROOT / "fixtures/cases"
BAD = ROOT / "tests/lab/suites/bad"
MOCK = ("--mock-only", "--model", "mock-tool-call")
ANSWER = [{"text": RIGHT}, {"usage": {"input": 100, "output": 10}}]
HANG = [{"hang": True}]


def start(directory: Path, *arguments: str | Path, **more: str) -> subprocess.Popen[str]:
    """A run that goes on while the test does."""
    return subprocess.Popen(
        [*BRIDGE, "lab", "run", *map(str, arguments)],
        cwd=directory,
        env=environment(directory, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_results(path: Path, count: int) -> None:
    wait_for(lambda: path.exists() and len(read_results(path)) >= count, f"{count} results")


# The file of results


def test_a_killed_run_continues_where_it_stopped(tmp_path: Path) -> None:
    suite, results = write_suite(tmp_path / "suite.json", "a", "b", "c"), tmp_path / "r.jsonl"
    stuck = scripted_codex(tmp_path, turns(*[ANSWER] * 4, HANG), name="stuck")
    command: list[str | Path] = [
        suite,
        "--model",
        MODEL,
        "-n",
        "2",
        "-V",
        "spec",
        "-V",
        "short",
        "-c",
        "2",
        "--results",
        results,
    ]
    process = start(tmp_path, *command, **scripted(stuck))
    wait_for_results(results, 4)
    children = children_of(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_alive, children)), "the end of the children")
    kept = results.read_bytes()
    results.write_bytes(kept + kept.splitlines()[-1][:50])  # a line that was not written to its end

    healthy = scripted_codex(tmp_path, turns(ANSWER))
    done = lab(tmp_path, "run", *command, **scripted(healthy))
    assert "r.jsonl already has 4 result(s); 8 left" in done.stderr
    assert "12/12" not in done.stderr
    assert results.read_bytes().startswith(kept)
    found = cells(read_results(results))
    everything = [(variant, case, repeat) for variant in ("spec", "short") for case in "abc" for repeat in (0, 1)]
    assert sorted(found) == sorted(everything)
    assert re.search(r"passed +6/6 100 % +6/6 100 %", done.stdout)

    head = json.loads(kept.splitlines()[0])
    assert head["lab"] == 1
    assert (head["suite"], list(head["cases"]), list(head["variants"])) == (
        str(suite),
        ["a", "b", "c"],
        ["spec", "short"],
    )
    assert results.stat().st_mode & 0o777 == 0o600

    # Nothing is left: nobody is started, and the table is the same.
    again = lab(tmp_path, "run", *command, CODEX_BIN="/bin/false", PROXY_MODELS=MODEL)
    assert again.stdout == done.stdout
    # More may be asked: here another variant.
    more = lab(tmp_path, "run", *command, "-V", "nonce-tag", "--max-requests", "1", **scripted(healthy))
    assert "already has 12 result(s); 6 left" in more.stderr
    assert list(json.loads(results.read_text().splitlines()[-2])["variants"]) == ["nonce-tag"]


def test_results_of_something_else_are_refused(tmp_path: Path) -> None:
    suite, results = write_suite(tmp_path / "suite.json", "a"), tmp_path / "r.jsonl"
    variant = tmp_path / "mine.yaml"
    variant.write_text("blocks: {header: Call tools.}")
    command: list[str | Path] = ["-n", "1", *MOCK, "--results", results]
    lab(tmp_path, "run", suite, *command, "-V", variant)
    kept = results.read_bytes()

    variant.write_text("blocks: {header: Call them.}")
    changed = write_suite(tmp_path / "changed.json", "a", "b", asked="Quick, how is it in Bern?")
    refused: dict[str, list[str | Path]] = {
        "r.jsonl holds results of other cases.": [write_suite(tmp_path / "other.json", "b"), *command],
        "r.jsonl holds results of cases that have changed: a.": [changed, *command],
        "r.jsonl holds results of variants that have changed: mine.": [suite, *command, "-V", variant],
        f"{suite} does not hold results of `lab run`": [suite, *MOCK, "--results", suite],
        "Is a directory": [suite, *MOCK, "--results", tmp_path],
        "Cannot write results": [suite, *MOCK, "--results", tmp_path / "no" / "r.jsonl"],
        "--html r.jsonl: this file is the results": [suite, *command, "--html", "r.jsonl"],
    }
    runs: list[list[str | Path]] = [["run", *arguments] for arguments in refused.values()]
    for why, ran in zip(refused, run_each(tmp_path, *runs), strict=True):
        assert (ran.code, ran.stdout) == (2, ""), ran
        assert why in ran.stderr
        assert ran.stderr.count("\n") == 1
    assert results.read_bytes() == kept


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    suite, results = write_suite(tmp_path / "suite.json", "a", "b"), tmp_path / "r.jsonl"
    codex = scripted_codex(tmp_path, turns(ANSWER, HANG))
    command: list[str | Path] = [suite, "--model", MODEL, "-n", "1", "-c", "2", "--results", results]
    first = start(tmp_path, *command, **scripted(codex))
    wait_for_results(results, 1)
    second = lab(tmp_path, "run", *command, code=2, **scripted(codex))
    assert "Another run is writing its results to" in second.stderr
    first.send_signal(signal.SIGTERM)
    assert first.communicate(timeout=20)[1].startswith(
        "error: Interrupted. To continue, run the same command with --results"
    )
    assert first.returncode == 128 + signal.SIGTERM
    assert len(read_results(results)) == 1


def test_a_full_disk_ends_the_run(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite.json", *(f"case-{number}" for number in range(40)))
    command = f'ulimit -f 4; exec "$@" lab run {suite} -n 1 --mock-only --model mock-tool-call --results r.jsonl'
    done = subprocess.run(
        ["/bin/bash", "-c", command, "sh", *BRIDGE],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done
    assert done.stderr == "error: Cannot write results to r.jsonl: the disk is full.\n"
    assert 2 <= len(read_results(tmp_path / "r.jsonl")) < 40
    # There is room again: the torn line is passed over, and only what is missing is asked.
    lab(tmp_path, "run", suite, "-n", "1", *MOCK, "--results", "r.jsonl")
    assert len({each["case"] for each in read_results(tmp_path / "r.jsonl")}) == 40
    assert len(read_results(tmp_path / "r.jsonl")) == 40


# Errors of the machinery


def test_errors_are_counted_separately_and_retried(tmp_path: Path) -> None:
    """The second turn of each child is refused by the provider, the third kills it."""
    suite, results = write_suite(tmp_path / "suite.json", *"abcd"), tmp_path / "r.jsonl"
    limit = [{"error": {"message": "Slow down.", "info": "rateLimitExceeded"}}]
    codex = scripted_codex(tmp_path, turns(ANSWER, limit, [{"deltas": ["half "]}, {"exit": 3}]))
    command: list[str | Path] = [suite, "--model", MODEL, "-n", "1", "-c", "1", "--results", results]

    first = lab(tmp_path, "run", *command, "--json", "r.json", code=100, **scripted(codex))
    assert re.search(r"passed +2/2 100 %", first.stdout), "two answers came, and both were right"
    assert re.search(r"errors, not counted +2/4 50 %", first.stdout)
    assert "missed: scripted spec: 2 of 4 (50.0 %) requests failed; the maximum is 5 %" in first.stderr
    assert "1 request(s) failed and are not counted: rate_limit_exceeded: Slow down." in first.stderr
    assert "1 request(s) failed and are not counted: backend_crashed:" in first.stderr
    assert cells(read_results(results), "error") == [("spec", "b", 0), ("spec", "c", 0)]

    second = lab(tmp_path, "run", *command, "--max-errors", "25", **scripted(codex))
    assert "already has 2 result(s); 2 left" in second.stderr
    assert re.search(r"errors, not counted +1/4 25 %", second.stdout)
    lab(tmp_path, "run", *command, "--max-errors", "0", "--min-pass", "100", **scripted(codex))
    assert cells(read_results(results)) == [("spec", name, 0) for name in "adbc"]


def test_an_answer_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite.json", "slow", "quick")
    codex = scripted_codex(tmp_path, turns([{"deltas": ["wait"]}, {"hang": True}], ANSWER))
    command: list[str | Path] = [
        suite,
        "--model",
        MODEL,
        "-n",
        "1",
        "-c",
        "1",
        "--timeout",
        "4",
        "--results",
        "r.jsonl",
    ]
    done = lab(tmp_path, "run", *command, "--max-errors", "50", **scripted(codex))
    assert "1 request(s) failed and are not counted: timeout: No answer within 4 s." in done.stderr
    assert re.search(r"passed +1/1", done.stdout)


def test_a_run_that_cannot_begin(tmp_path: Path) -> None:
    """Nothing is asked, and no file is left behind."""
    suite = write_suite(tmp_path / "suite.json", "a")
    (tmp_path / "deeper").mkdir()
    for name in ("mine.yaml", "deeper/mine.yaml"):
        (tmp_path / name).write_text(f"blocks: {{header: {name}}}")
    refused: dict[str, list[str | Path]] = {
        "error: The Codex app-server is not ready: No Codex was found.": ["-m", "gpt-5.2", "PATH=/nowhere"],
        "CODEX_BIN: /no/codex does not exist": ["-m", "gpt-5.2", "CODEX_BIN=/no/codex"],
        "--model nope: The model 'nope' does not exist here.": [*MOCK, "-m", "nope"],
        "Missing --model.": [],
        "no.ndjson does not exist": ["--from", "no.ndjson"],
        "another variant is also called mine": [*MOCK, "-V", "mine.yaml", "-V", "deeper/mine.yaml"],
        "--variant huh: choose spec,": [*MOCK, "-V", "huh"],
        f"--case z*: no case of {suite} matches.": [*MOCK, "--case", "a", "--case", "z*"],
        "no such directory: no": [*MOCK, "--html", "no/r.html"],
        "Invalid value for '--repeat'": [*MOCK, "-n", "0"],
    }
    runs: list[list[str | Path]] = [["run", suite, *arguments] for arguments in refused.values()]
    for why, ran in zip(refused, run_each(tmp_path, *runs), strict=True):
        assert why in ran.stderr
        assert ran.code == (1 if "No Codex" in why else 2), ran
        assert ran.stdout == ""
    assert list(tmp_path.glob("*.jsonl")) == []


def test_a_child_that_cannot_offer_tools_natively_is_not_asked(tmp_path: Path) -> None:
    """In text they would be another variant."""
    suite = write_suite(tmp_path / "suite.json", "a")
    done = lab(tmp_path, "run", suite, *MOCK, "-n", "1", "-V", "spec", "-V", "native", "--results", "r.jsonl", code=2)
    assert done.stderr.startswith(
        "error: --variant native, --model mock-tool-call: This Codex does not support native tools "
    )
    assert done.stderr.endswith("Leave one of them out.\n")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r.jsonl").exists()


# Budgets


def test_budgets(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite.json", *"abcdefgh")
    codex = scripted_codex(tmp_path, turns(ANSWER))
    command: list[str | Path] = [suite, "--model", MODEL, "-n", "2", "-c", "3", "--results", "r.jsonl"]
    done = lab(tmp_path, "run", *command, "--max-requests", "5", **scripted(codex))
    assert done.stderr.endswith("note: the budget is spent; 11 cell(s) were not asked\n")
    assert len(read_results(tmp_path / "r.jsonl")) == 5
    sentence = "The run is incomplete: 5 of 16 requests were sent."
    assert f"Note: {sentence}" in done.stdout
    assert f"Note: {sentence}" in lab(tmp_path, "report", "r.jsonl").stdout
    assert "2 of 4 requests were sent" in lab(tmp_path, "report", "r.jsonl", "--case", "[ab]").stdout
    # Whatever is there from before: what counts for a run is what was chosen for it.
    (tmp_path / "more.jsonl").write_bytes((tmp_path / "r.jsonl").read_bytes())
    other: list[str | Path] = [*command, "--results", "more.jsonl", "-V", "short", "-n", "1", "--case", "a"]
    more = lab(tmp_path, "run", *other, "--min-pass", "100", **scripted(codex))
    assert "spec" not in more.stdout
    assert "Note: 5 results of other cases, variants or models not shown." in more.stdout
    assert "incomplete" not in more.stdout
    # 110 tokens each: with the third the budget is spent, and what runs then is finished.
    done = lab(tmp_path, "run", *command, "--max-tokens", "250", **scripted(codex))
    found = read_results(tmp_path / "r.jsonl")
    assert 8 <= len(found) <= 10
    assert done.stderr.endswith(f"note: the budget is spent; {16 - len(found)} cell(s) were not asked\n")
    assert {each["status"] for each in found} == {"scored"}


# A person at a terminal


def test_the_bar_and_ctrl_c(tmp_path: Path) -> None:
    suite, results = write_suite(tmp_path / "suite.json", *"abcdef"), tmp_path / "r.jsonl"
    codex = scripted_codex(tmp_path, turns(ANSWER, ANSWER, HANG))
    command = [*BRIDGE, "lab", "run", str(suite), "--model", MODEL, "-n", "1", "-c", "2", "--results", str(results)]
    with terminal(command, environment(tmp_path, TERM="xterm", **scripted(codex)), tmp_path) as shown:
        screen = shown.wait_for("░ 2/6  2 passed  0 errors") + shown.wait_for("tokens")
        children = children_of(shown.pid)
        assert children
        shown.type("\x03")
        screen += shown.wait_for("r.jsonl.")
        assert shown.wait() == 130
    assert not any(map(is_alive, children))
    assert len(read_results(results)) == 2
    drawn = [line for line in re.split(r"\r\x1b\[K", screen) if "passed" in line]
    assert drawn[0].startswith("░░░░░░░░░░░░░░░░░░░░ 0/6  0 passed  0 errors")
    assert max(map(len, drawn)) < 80


# Bad suites


def test_faults_of_a_suite_name_the_line_and_nothing_is_run(tmp_path: Path) -> None:
    # One is bad only beside another one.
    suites = [path for path in sorted(BAD.rglob("*.*")) if path.parent.name != "tools" and path.name != "same-id.yaml"]
    codex = tmp_path / "codex"
    codex.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    codex.chmod(0o755)
    runs: list[list[str | Path]] = [["run", suite, "--model", MODEL] for suite in suites]
    assert len(runs) > 10
    for ran in run_each(tmp_path, *runs, **scripted(codex)):
        assert (ran.code, ran.stdout) == (2, ""), ran
        for line in ran.stderr.splitlines():
            assert re.match(rf"error: {BAD}/\S+:\d+: \S", line), line
    assert {path.name for path in tmp_path.iterdir()} == {"codex"}


# Speed and memory


def measured(directory: Path, repeat: int, name: str) -> tuple[float, float, int]:
    """(seconds, processor seconds of the laboratory itself, cells) of a run of all shipped cases on the stand-in."""
    usage = directory / f"{name}.cpu"
    program = f"""
import atexit, resource
def tell():
    used = resource.getrusage(resource.RUSAGE_SELF)
    open({str(usage)!r}, "w").write(str(used.ru_utime + used.ru_stime))
atexit.register(tell)
from bridge.cli import main
main()
"""
    arguments = ["lab", "run", str(CASES), *MOCK, "-n", str(repeat), "-c", "16", "--results", f"{name}.jsonl"]
    began = time.monotonic()
    subprocess.run(
        [*BRIDGE[:2], "-c", program, *arguments],
        cwd=directory,
        env=environment(directory),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - began, float(usage.read_text()), len(read_results(directory / f"{name}.jsonl"))


@pytest.mark.deep
def test_three_hundred_cells_a_second(tmp_path: Path) -> None:
    """Start and report taken off. By the clock this is the stand-in's speed too, which has the other processor."""
    seconds, used, few = measured(tmp_path, 1, "few")
    more_seconds, more_used, many = measured(tmp_path, 17, "many")
    assert many - few >= 1000
    rate, by_processor = (many - few) / (more_seconds - seconds), (many - few) / (more_used - used)
    print(f"{rate:.0f} cells/s by the clock, {by_processor:.0f} cells per processor second")
    assert by_processor >= 300
    if os.getloadavg()[0] < 1.5:
        assert rate >= 300


@pytest.mark.deep
def test_memory_is_flat_over_twenty_thousand_results(tmp_path: Path) -> None:
    """Four times as many take no more, but for what the report knows of each cell."""

    def run(repeat: int) -> tuple[int, int]:
        results, memory = tmp_path / f"{repeat}.jsonl", tmp_path / "peak"
        arguments = ["lab", "run", str(CASES), *MOCK, "-n", str(repeat), "-c", "16", "--results", str(results)]
        subprocess.run(
            [*watched(memory), *arguments],
            cwd=tmp_path,
            env=environment(tmp_path),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with results.open() as file:
            return peak(memory), sum(1 for _ in file) - 1

    small, few = run(75)
    large, many = run(300)
    assert many >= 20_000
    print(f"{small / 1e6:.1f} MB for {few} results, {large / 1e6:.1f} MB for {many}")
    assert large - small < 14_000_000, "the cells that were asked, for the report"
