"""The report as JUnit XML: a suite for each column, a test for each case. Pure.

A test fails unless every sample passed. One for which nothing was scored is an error, never a failure; where the
machinery failed beside samples that were scored, the suite's `system-err` tells it. Elements and attributes are those
that the schemas of Ant and Jenkins have in common, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from xml.sax.saxutils import escape as escape_markup

from bridge.lab.case import Case
from bridge.lab.report.explain import explain
from bridge.lab.report.marked import stand_in_case, visible_text
from bridge.lab.report.summary import Column, Row, Summary
from bridge.lab.report.words import ordered, what_is_wrong
from bridge.lab.result import Result
from bridge.lab.table import Count
from bridge.lab.variant import LabVariant

LONGEST = 1_000
"""Characters that are told of a sample."""
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_Key = tuple[str, str, str]


def junit_pieces(
    summary: Summary,
    results: Iterable[Result],
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    *,
    when: datetime,
) -> Iterator[bytes]:
    """The document. `when` is the time of the run, in UTC."""
    examples = _examples(results, cases, variants)
    yield b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'
    for number, column in enumerate(summary.columns):
        yield "".join(_suite(summary, column, number, examples, when)).encode()
    yield b"</testsuites>\n"


def _suite(
    summary: Summary, column: Column, number: int, examples: Mapping[_Key, str], when: datetime
) -> Iterator[str]:
    rows = [(row, summary.cell(row, column)) for row in summary.rows]
    rows = [(row, count) for row, count in rows if count.word != "-"]
    failures = sum(count.word in ("MIXED", "FAIL") for _, count in rows)
    yield _open(
        "testsuite",
        name=f"{column.model} {column.variant}",
        package=column.model,
        id=number,
        timestamp=f"{when:%Y-%m-%dT%H:%M:%S}",
        hostname="localhost",
        tests=len(rows),
        failures=failures,
        errors=sum(count.word == "ERROR" for _, count in rows),
        time=_time(sum(count.seconds for _, count in rows)),
    )
    properties: dict[str, str | int]
    properties = {"model": column.model, "variant": column.variant, "suite": summary.suite, "repeats": summary.repeats}
    if summary.planned:
        properties["asked"] = f"{summary.table.total.asked} of {summary.planned}"
    yield "<properties>\n"
    yield from (_open("property", end="/>", name=name, value=value) for name, value in properties.items())
    yield "</properties>\n"
    for row, count in rows:
        yield from _case(row, count, column, examples.get((*column, row.case), ""))
    yield "<system-out></system-out>\n<system-err>"
    yield from (
        xml_text(f"{row.case}: {_errors(count)}\n") for row, count in rows if count.errors and count.word != "ERROR"
    )
    yield "</system-err>\n</testsuite>\n"


def _case(row: Row, count: Count, column: Column, example: str) -> Iterator[str]:
    named = {"name": row.case, "classname": f"{column.model}/{column.variant}.{row.category}"}
    if count.word == "PASS":
        yield _open("testcase", end="/>", **named, time=_time(count.seconds))
        return
    yield _open("testcase", **named, time=_time(count.seconds))
    if count.word == "ERROR":
        yield _open("error", end=">", message=_errors(count), type=next(iter(ordered(count.error_codes)), "error"))
        yield f"{xml_text(example)}</error>\n"
    else:
        wrong = what_is_wrong(count)
        kind = wrong[0].partition(":")[0] if wrong else "failed"
        yield _open("failure", end=">", message=f"{count.passed} of {count.scored} passed", type=kind)
        told = [*wrong, *([_errors(count)] if count.errors else []), *([example] if example else [])]
        yield f"{xml_text(chr(10).join(told))}</failure>\n"
    yield "</testcase>\n"


def _examples(
    results: Iterable[Result], cases: Mapping[str, Case], variants: Mapping[str, LabVariant]
) -> dict[_Key, str]:
    """For each cell the first sample that did not pass, in a few sentences."""
    found: dict[_Key, str] = {}
    scored: set[_Key] = set()
    for result in results:
        key = (result.cell.model, result.cell.variant, result.cell.case)
        if result.status == "error":
            if key not in scored:
                found.setdefault(key, str((result.error or {}).get("message", ""))[:LONGEST])
        elif not result.passed and key not in scored:
            scored.add(key)
            found[key] = _example(result, cases, variants)
    return found


def _example(result: Result, cases: Mapping[str, Case], variants: Mapping[str, LabVariant]) -> str:
    case = cases.get(result.cell.case)
    variant = variants.get(result.cell.variant) or LabVariant(result.cell.variant)
    visible = visible_text(result, case or stand_in_case(result), variant)
    told = [f"Sample {result.cell.repeat + 1}: {result.form}", *result.rejections]
    sentences = [sentence for _, sentence in explain(result, case, visible)]
    called = [f"called {call.name} {call.arguments}" for call in result.calls]
    return "\n".join((", ".join(told), *sentences, *called))[:LONGEST]


def _errors(count: Count) -> str:
    codes = ", ".join(f"{code} {number}" for code, number in ordered(count.error_codes).items())
    return f"{count.errors} of {count.errors + count.scored} requests failed: {codes}"


def _open(tag: str, end: str = ">\n", **attributes: str | int) -> str:
    """A tag. XML readers make spaces of the white space in attributes, so it is that already; no name is empty."""
    told = ""
    for name, value in attributes.items():
        text = " ".join(str(value).split())
        told += f' {name}="{xml_text(text or "?" if name == "name" else text)}"'
    return f"<{tag}{told}{end}" + ("\n" if end == "/>" else "")


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"


def xml_text(text: str) -> str:
    """A text as XML; what XML cannot hold is written out."""
    text = _FORBIDDEN.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r", "\\x0d"))
    return escape_markup(text, {'"': "&quot;"})
