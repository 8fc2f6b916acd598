"""The report as JSON, results as CSV for spreadsheets, and the report as JUnit XML for CI systems. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from xml.etree import ElementTree

import orjson

from bridge import __version__
from bridge.lab.case import Case
from bridge.lab.checks import CHECKS
from bridge.lab.report.summary import Column, Count, Summary, ordered
from bridge.lab.result import Cell, Result
from bridge.lab.variant import LabVariant

FORMAT = 1
"""The number of the JSON report's format."""


def json_report(summary: Summary) -> bytes:
    figures = summary.figures()
    for case in figures["cases"]:
        case["cells"] = [cell for cell in case["cells"] if cell["word"] != "-"]
    report = {"report": FORMAT, "program": f"turnbridge {__version__}", **figures}
    return orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n"


# CSV (RFC 4180): one row per result, without the texts. `check_…` is passed, failed or empty; lists are separated by
# spaces; `arguments` is a JSON list of texts.

_FORMULA = re.compile(r"[=+\-@\t\r\n|%\uff1d\uff0b\uff0d\uff20]")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def csv_pieces(results: Iterable[Result], cases: Mapping[str, Case]) -> Iterator[bytes]:
    """The table: UTF-8, CR LF, with a header row."""
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    for result in results:
        row = _row(result, cases.get(result.cell.case))
        writer.writerow({name: harmless(value) if isinstance(value, str) else value for name, value in row.items()})
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula: an apostrophe precedes text that begins like one."""
    text = _escape(text)
    return f"'{text}" if _FORMULA.match(text.lstrip(" \u00a0")) else text


def _row(result: Result, case: Case | None) -> dict[str, str | int | float]:
    error, scored = result.error or {}, result.status == "scored"
    return {
        "model": result.cell.model,
        "variant": result.cell.variant,
        "category": case.category if case else "",
        "case": result.cell.case,
        "repeat": result.cell.repeat,
        "status": result.status,
        "passed": _outcome(result.passed if scored else None),
        "form": result.form or "",
        "repairs": " ".join(result.repairs),
        "rejections": " ".join(result.rejections),
        **{f"check_{name}": _outcome(result.checks.get(name)) for name in CHECKS},
        "f1": result.f1 if scored else "",
        "calls": " ".join(call.name for call in result.calls),
        "arguments": orjson.dumps([call.arguments for call in result.calls]).decode() if result.calls else "",
        "error_code": error.get("code", ""),
        "error_message": error.get("message", ""),
        "input_tokens": result.input_tokens,
        "output_tokens": result.output_tokens,
        "seconds": result.seconds,
        "req_id": result.req_id or "",
    }


def _outcome(passed: bool | None) -> str:
    return "" if passed is None else "passed" if passed else "failed"


COLUMNS = tuple(_row(Result(Cell("", "", "", 0), "error"), None))


# JUnit: a test suite per column, a test per case. Elements and attributes are those that the schemas of Ant and Jenkins
# share, in their order.

LONGEST = 1_000
"""Characters of a sample's description."""


def junit_pieces(
    summary: Summary,
    results: Iterable[Result],
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    *,
    when: datetime,
) -> Iterator[bytes]:
    """`when` is the time of the run, in UTC.

    A test fails unless every sample passed. It is an error if no sample was scored; other errors go to the suite's
    `system-err`.
    """
    examples = _examples(results, cases, variants)
    yield b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'
    for number, column in enumerate(summary.columns):
        suite = _suite(summary, column, number, examples, when)
        ElementTree.indent(suite, "")
        yield ElementTree.tostring(suite) + b"\n"
    yield b"</testsuites>\n"


def _suite(
    summary: Summary, column: Column, number: int, examples: Mapping[tuple[Column, str], str], when: datetime
) -> ElementTree.Element:
    rows = [(row, summary.cell(row, column)) for row in summary.rows if summary.cell(row, column).word != "-"]
    suite = _add(
        None,
        "testsuite",
        name=f"{column.model} {column.variant}",
        package=column.model,
        id=number,
        timestamp=f"{when:%Y-%m-%dT%H:%M:%S}",
        hostname="localhost",
        tests=len(rows),
        failures=sum(count.word in ("MIXED", "FAIL") for _, count in rows),
        errors=sum(count.word == "ERROR" for _, count in rows),
        time=f"{sum(count.seconds for _, count in rows):.3f}",
    )
    facts = {**column._asdict(), "suite": summary.suite, "repeats": summary.repeats}
    if summary.planned:
        facts["asked"] = f"{summary.total.asked} of {summary.planned}"
    properties = _add(suite, "properties")
    for name, value in facts.items():
        _add(properties, "property", name=name, value=value)
    for row, count in rows:
        classname = f"{column.model}/{column.variant}.{row.category}"
        test = _add(suite, "testcase", name=row.case, classname=classname, time=f"{count.seconds:.3f}")
        example = examples.get((column, row.case), "")
        if count.word == "ERROR":
            _add(test, "error", example, message=_errors(count), type=next(iter(ordered(count.error_codes)), "error"))
        elif count.word != "PASS":
            wrong = count.what_is_wrong()
            lines = [*wrong, *([_errors(count)] if count.errors else []), *([example] if example else [])]
            kind = wrong[0].partition(":")[0] if wrong else "failed"
            _add(test, "failure", "\n".join(lines), message=f"{count.passed} of {count.scored} passed", type=kind)
    _add(suite, "system-out")
    failed = [(row, count) for row, count in rows if count.errors and count.word != "ERROR"]
    _add(suite, "system-err", "".join(f"{row.case}: {_errors(count)}\n" for row, count in failed))
    return suite


def _examples(
    results: Iterable[Result], cases: Mapping[str, Case], variants: Mapping[str, LabVariant]
) -> dict[tuple[Column, str], str]:
    """The first sample of each cell that did not pass, in a few sentences."""
    found: dict[tuple[Column, str], str] = {}
    scored: set[tuple[Column, str]] = set()
    for result in results:
        key = (Column(result.cell.model, result.cell.variant), result.cell.case)
        if key in scored or result.passed:
            continue
        if result.status == "error":
            found.setdefault(key, (result.error or {}).get("message", "")[:LONGEST])
            continue
        scored.add(key)
        _, reasons = result.explain(cases.get(result.cell.case), variants.get(result.cell.variant))
        head = ", ".join([f"Sample {result.cell.repeat + 1}: {result.form}", *result.rejections])
        called = [f"called {call.name} {call.arguments}" for call in result.calls]
        found[key] = "\n".join((head, *(sentence for _, sentence in reasons), *called))[:LONGEST]
    return found


def _errors(count: Count) -> str:
    codes = ", ".join(f"{code} {number}" for code, number in ordered(count.error_codes).items())
    return f"{count.errors} of {count.asked} requests failed: {codes}"


def _add(parent: ElementTree.Element | None, tag: str, text: str = "", **attributes: str | int) -> ElementTree.Element:
    """An element. White space in attributes becomes single spaces, as XML readers do; no name is empty."""
    shown = {name: " ".join(xml_text(str(value)).split()) for name, value in attributes.items()}
    if shown.get("name") == "":
        shown["name"] = "?"
    element = ElementTree.Element(tag, shown) if parent is None else ElementTree.SubElement(parent, tag, shown)
    element.text = xml_text(text) or None
    return element


def xml_text(text: str) -> str:
    """Text whose characters that XML forbids, or that its readers change, are written as escapes."""
    return _escape(text).replace("\r", "\\x0d")


def _escape(text: str) -> str:
    return _FORBIDDEN.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
