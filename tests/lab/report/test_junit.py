"""The report as JUnit XML, read by a reader of such files and by the rules of its schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import junitparser
from hypothesis import given
from hypothesis import strategies as st
from lab.report.golden import check_golden
from lab.report.making import CASES, answer, small_run, small_summary, trouble

from bridge.lab.case import Case
from bridge.lab.report.exports import junit_pieces, xml_text
from bridge.lab.report.summary import summarise
from bridge.lab.result import Cell, Result
from bridge.lab.variant import SHIPPED

WHEN = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)
REQUIRED = {
    "testsuites": set[str](),
    "testsuite": {
        *("name", "package", "id", "timestamp", "hostname"),
        *("tests", "failures", "errors", "time"),
    },
    "properties": set[str](),
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "system-out": set[str](),
    "system-err": set[str](),
}
"""All attributes that the schema of Ant asks for; there are no others."""
DECIMAL = re.compile(r"\d+\.\d+")


def made(results: Iterable[Result], cases: Mapping[str, Case] = CASES) -> bytes:
    results = list(results)
    summary = summarise(results, cases, list(SHIPPED), suite="suites/small")
    return b"".join(junit_pieces(summary, results, cases, SHIPPED, when=WHEN))


def check_schema(data: bytes) -> ElementTree.Element:
    root = ElementTree.fromstring(data)
    for element in root.iter():
        assert set(element.attrib) == REQUIRED[element.tag], element.tag
        assert element.get("name", "x") != ""
    for number, suite in enumerate(root):
        tags = [child.tag for child in suite]
        inside = ["testcase"] * (len(tags) - 3)
        assert tags == ["properties", *inside, "system-out", "system-err"]
        assert suite.get("id") == str(number)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
        assert int(suite.attrib["tests"]) == len(inside)
        assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert int(suite.attrib["errors"]) == len(suite.findall("testcase/error"))
        for test in suite.iter("testcase"):
            assert len(test) <= 1
            assert DECIMAL.fullmatch(test.attrib["time"])
        assert DECIMAL.fullmatch(suite.attrib["time"])
    return root


def test_the_golden_report(tmp_path: Path) -> None:
    summary, results = small_summary(tmp_path / "r")
    data = b"".join(junit_pieces(summary, results, CASES, SHIPPED, when=WHEN))
    check_schema(data)
    check_golden("report.xml", data)


def test_a_reader_of_junit_files_understands_it(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_bytes(made(small_run()))
    suites = {suite.name: suite for suite in junitparser.JUnitXml.fromfile(str(path))}
    assert list(suites) == [
        f"{model} {variant}" for model in ("gpt-5.2-codex", "mini") for variant in ("spec", "short", "native")
    ]
    short, native = suites["gpt-5.2-codex short"], suites["mini native"]
    assert (short.tests, short.failures, short.errors) == (5, 3, 0)
    assert (native.tests, native.failures, native.errors) == (5, 1, 1)
    tests = {test.name: test for test in short}
    assert tests["only-talk"].is_passed
    (failure,) = tests["weather-bern"].result
    assert isinstance(failure, junitparser.Failure)
    assert (failure.message, failure.type) == ("2 of 3 passed", "broken")
    assert failure.text.splitlines() == [
        "broken: an attempted call that cannot be repaired (1 of 3)",
        "count: the number of calls is wrong (1 of 3)",
        "Sample 3: broken, bad_json",
        "Expected 1 call, got none.",
    ]
    assert tests["weather-bern"].time == 3.75


def test_a_request_error_is_never_a_failure() -> None:
    cell = Cell("m", "spec", "weather-bern", 0)
    (suite,) = check_schema(made([trouble(cell), trouble(cell._replace(repeat=1), "rate_limited", "Wait.")]))
    error = suite.find("testcase/error")
    assert error is not None
    assert error.get("message") == "2 of 2 requests failed: rate_limited 1, timeout 1"
    assert error.text == "No answer within 180 s."
    (suite,) = check_schema(made([trouble(cell), answer(cell._replace(repeat=1), "clean")]))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert suite.findtext("system-err") == "weather-bern: 1 of 2 requests failed: timeout 1\n"


def test_without_the_suite_failures_are_described_in_general() -> None:
    cell = Cell("m", "spec", "a", 0)
    (suite,) = check_schema(made([answer(cell, "clean", failed=["values"])], {}))
    assert "A call is not one of the expected calls." in (suite.findtext("testcase/failure") or "")


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_text_gives_a_valid_document(name: str, text: str) -> None:
    root = check_schema(
        made([answer(Cell(name, text, text, 0), "broken", text, failed=["name"], rejections=[text])], {})
    )
    if name.isprintable():
        assert root[0].attrib["package"] == " ".join(name.split())
    check_schema(made([trouble(Cell("m", "v", "c", 0), text, text)], {}))


@given(st.text())
def test_text_survives_xml_except_for_forbidden_characters(text: str) -> None:
    element = ElementTree.Element("a")
    element.text = xml_text(text)
    found = ElementTree.fromstring(ElementTree.tostring(element)).text or ""
    if text.isprintable():
        assert found == text
