"""All results as a table for a spreadsheet (RFC 4180), one row each, with everything but the texts. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping

import orjson

from bridge.lab.case import Case
from bridge.lab.result import Result
from bridge.lab.score import CHECKS

COLUMNS = (
    *("model", "variant", "category", "case", "repeat", "status", "passed", "form"),
    *("repairs", "rejections"),
    *(f"check_{name}" for name in CHECKS),
    *("f1", "calls", "arguments", "error_code", "error_message"),
    *("input_tokens", "output_tokens", "seconds", "req_id"),
)
"""`check_…` are passed, failed, or empty; lists are separated by spaces, `arguments` is a JSON list of texts."""

_FORMULA = re.compile(r"[=+\-@\t\r\n|%\uff1d\uff0b\uff0d\uff20]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def csv_pieces(results: Iterable[Result], cases: Mapping[str, Case]) -> Iterator[bytes]:
    """The table: UTF-8, lines end in CR LF, the first one names the columns."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for result in results:
        writer.writerow([harmless(value) if isinstance(value, str) else value for value in _row(result, cases)])
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula: one that begins like one gets an apostrophe before it."""
    text = _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return f"'{text}" if _FORMULA.match(text.lstrip(" \u00a0")) else text


def _row(result: Result, cases: Mapping[str, Case]) -> Iterator[str | int | float]:
    case = cases.get(result.cell.case)
    yield from (result.cell.model, result.cell.variant, case.category if case else "", result.cell.case)
    yield from (result.cell.repeat, result.status, "" if result.status == "error" else _outcome(result.passed))
    yield from (result.form or "", " ".join(result.repairs), " ".join(result.rejections))
    yield from (_outcome(result.checks.get(name)) for name in CHECKS)
    yield result.f1 if result.status == "scored" else ""
    yield " ".join(call.name for call in result.calls)
    yield orjson.dumps([call.arguments for call in result.calls]).decode() if result.calls else ""
    error = result.error or {}
    yield from (str(error.get("code", "")), str(error.get("message", "")))
    yield from (result.input_tokens, result.output_tokens, result.seconds, str(result.req_id or ""))


def _outcome(passed: bool | None) -> str:
    return "" if passed is None else "passed" if passed else "failed"
