"""The file of results: read back as written, whatever happens to its end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.report.making import CASES, small_run, write_results

from bridge.errors import BridgeError, ConfigError
from bridge.lab.case import Sample
from bridge.lab.result import About, Cell, Result, ResultFile, ResultsLost, from_line, score_sample, to_line
from bridge.lab.variant import SHIPPED

RUN = list(small_run())


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    file = write_results(tmp_path / "r.jsonl", RUN, "suites/small")
    assert list(file) == RUN
    assert file.unread == 0
    assert file.head() == About.model_validate({"lab": 1, "suite": "suites/small"})


@given(st.text(), st.text(), st.integers(0, 10**9))
def test_any_text_is_kept(text: str, name: str, repeat: int) -> None:
    text, name = (each.encode("utf-8", "replace").decode() for each in (text, name))
    result = Result(Cell(name, "spec", name, repeat), "scored", "absent", texts=(text,))
    line = to_line(result)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert from_line(line) == result


def test_tokens_of_an_answer_that_failed_count() -> None:
    sample = Sample(input_tokens=5, output_tokens=2, failure=BridgeError("Not now.", code="overloaded"))
    result = score_sample(Cell("m", "spec", "weather-bern", 0), CASES["weather-bern"], SHIPPED["spec"], sample)
    assert (result.input_tokens, result.output_tokens, result.status) == (5, 2, "error")
    assert from_line(to_line(result)) == result


def test_only_a_torn_line_is_lost(tmp_path: Path) -> None:
    """Cut at every byte of its last line, a file goes on, and what is appended is whole."""
    path = tmp_path / "r.jsonl"
    write_results(path, RUN[:3])
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for cut in (*range(start, len(whole), 7), len(whole) - 2, len(whole) - 1, len(whole)):
        path.write_bytes(whole[:cut])
        file = ResultFile(path)
        file.open({})
        file.append(RUN[3])
        file.close()
        kept = 3 if cut >= len(whole) - 1 else 2
        assert list(file) == [*RUN[:kept], RUN[3]]
        assert file.unread == (kept == 2 and cut > start)


def test_lines_that_are_not_results_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_results(path, RUN[:1])
    with path.open("ab") as file:
        file.write(b'not json\n[1]\n{"model":"m"}\n"text"\nnull\n\xff\xfe\n\n')
    read = ResultFile(path)
    assert list(read) == RUN[:1]
    assert read.unread == 6


def test_later_runs_append_header_lines(tmp_path: Path) -> None:
    file = write_results(tmp_path / "r.jsonl", RUN[:1])
    for header in ({"variants": {"a": "1"}}, {}, {"cases": {"x": "2"}, "variants": {"b": "3"}}):
        file.open(header)
        file.append(RUN[1])
        file.close()
    about = file.about()
    assert about.variants == {"a": "1", "b": "3"}
    assert about.cases == {"x": "2"}
    assert about.plan == {}
    assert list(file) == [RUN[0], *[RUN[1]] * 3]
    assert file.unread == 0


def test_files_that_do_not_hold_results(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for content, why in (
        (b"", "does not hold results"),
        (b"# notes\n", "does not hold results"),
        (b'{"lab": "1"}\n', "does not hold results"),
        (b"[" * 100_000, "does not hold results"),
        (json.dumps({"lab": 99}).encode(), "newer version"),
    ):
        path.write_bytes(content)
        for reading in (
            lambda: list(ResultFile(path)),
            ResultFile(path).head,
            ResultFile(path).about,
        ):
            with pytest.raises(ConfigError, match=why):
                reading()
    with pytest.raises(ConfigError, match="Cannot read"):
        ResultFile(tmp_path / "nowhere").head()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    first, second = ResultFile(tmp_path / "r.jsonl"), ResultFile(tmp_path / "r.jsonl")
    first.open({"cases": {}})
    with pytest.raises(ConfigError, match="Another run"):
        second.open({})
    first.close()
    second.open({})
    second.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_reported() -> None:
    file = ResultFile(Path("/dev/full"))
    with pytest.raises(ResultsLost, match=r"Cannot write results to /dev/full: No space left on device\."):
        file.open({"cases": {}})
    file.close()
