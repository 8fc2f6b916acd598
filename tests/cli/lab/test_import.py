"""`turnbridge lab import`: suites made of recorded traffic."""

from __future__ import annotations

from pathlib import Path

from cli.lab.command import run_each
from harness import ROOT

from bridge.core.items import FunctionCall
from bridge.lab import load_suite

LOG = ROOT / "fixtures/logs/current.ndjson"


def test_cases_from_a_log(tmp_path: Path) -> None:
    every, some, again, none, wrong, nowhere, other, stdout = run_each(
        tmp_path,
        ["import", LOG, "--into", "all.yaml"],
        ["import", "log", LOG, "--into", "some.yaml", "--tool", "look", "--path", "chat"],
        ["import", LOG, "--into", "some.yaml"],
        ["import", LOG, "--into", "none.yaml", "--model", "gpt-1"],
        ["import", LOG, "--into", "x.yaml", "--outcome", "well"],
        ["import", "nowhere", "--into", "x.yaml"],
        ["import", "parquet", LOG, "--into", "x.yaml"],
        ["import", LOG, "--into", "-", "--tool", "look", "--path", "chat"],
    )
    cases = load_suite(tmp_path / "all.yaml").cases
    assert every.code == 0
    assert every.stderr.splitlines()[-1] == (
        f"note: {len(cases)} case(s) written to all.yaml; check what each one expects"
    )
    assert "left out: The request is not valid" in every.stderr
    chosen = load_suite(tmp_path / "some.yaml").cases
    assert some.code == 0
    assert 0 < len(chosen) < len(cases)
    assert all(call.name == "look" for case in chosen for call in case.expect.calls)
    assert all(case.expects_calls for case in chosen)

    assert (again.code, again.stderr) == (
        2,
        "error: some.yaml exists. Choose another name for --into, so that no edited case is lost.\n",
    )
    assert (none.code, none.stderr) == (
        2,
        f"error: Nothing to import from {LOG}. Choose other filters or another file.\n",
    )
    assert (wrong.code, wrong.stderr.startswith("error: Invalid --outcome 'well'.")) == (2, True)
    assert (nowhere.code, nowhere.stderr) == (2, "error: nowhere: no such file.\n")
    assert other.code == 2
    assert "Give a path, or a format and a path. The formats are log" in other.stderr
    assert stdout.stdout == (tmp_path / "some.yaml").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.yaml", "some.yaml"]


def test_the_lines_of_a_continued_conversation_are_all_in_its_case(tmp_path: Path) -> None:
    """A request with previous_response_id gets the messages of those before it from the same log."""
    (done,) = run_each(tmp_path, ["import", LOG.with_name("current-ends.ndjson"), "--into", "all.yaml"])
    assert "No tool call found" not in done.stderr
    texts = [[getattr(item, "text", item) for item in case.items] for case in load_suite(tmp_path / "all.yaml").cases]
    assert ['@@{"do": "text", "pieces": ["Yes."]}@@', "Yes.", "And now?"] in texts
    assert any(isinstance(each[1], FunctionCall) for each in texts if len(each) == 3), "a call, before its output"


def test_a_file_that_is_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("hello\n")
    (done,) = run_each(tmp_path, ["import", "words.txt", "--into", "x.yaml"])
    assert done.code == 2
    assert "words.txt is not an event log" in done.stderr
    assert not (tmp_path / "x.yaml").exists()
