"""The report as one self-contained HTML page.

It is built like the page of a log (`bridge.log.export`) and shares parts of it: recorded values are embedded as JSON,
the page's script shows them only as text, and a content security policy forbids every other script and every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from bridge import __version__
from bridge.core.items import FunctionCall, FunctionOutput, Image, Item, Message, Text
from bridge.lab.case import Case, Expect, ExpectedCall
from bridge.lab.checks import CHECKS, as_json
from bridge.lab.report.summary import MARKS, Column, Summary
from bridge.lab.result import Result
from bridge.lab.score import FORMS, REJECTIONS, REPAIRS
from bridge.lab.variant import LabVariant
from bridge.log.export.html import json_block, page_frame, script_safe

WORDS = {
    "marks": dict(MARKS),
    "forms": dict(FORMS),
    "checks": {name: check.words for name, check in CHECKS.items()},
    "repairs": dict(REPAIRS),
    "rejections": dict(REJECTIONS),
}


def index_block(summary: Summary, cases: Mapping[str, Case], kept: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    """All figures, with the words for them. `kept` is the number of samples in the page, by row and column."""
    index = summary.figures()
    for number, (row, entry) in enumerate(zip(summary.rows, index["cases"], strict=True)):
        case = cases.get(row.case)
        entry |= {"due": row.due, "known": case is not None, "tags": list(case.tags) if case is not None else []}
        for place, (column, cell) in enumerate(zip(summary.columns, entry["cells"], strict=True)):
            cell |= {"marks": summary.cell(row, column).marks(row), "kept": kept.get((number, place), 0)}
    return index | {"notes": list(summary.notes), "missed": list(summary.missed), "words": WORDS}


# Cases and samples, which the page reads when they are opened

LONGEST_MEDIA = 200


def case_block(case: Case) -> dict[str, Any]:
    choice = case.tool_choice
    asked = [["system", "text", case.instructions, "", ""]] if case.instructions else []
    return {
        "asked": asked + [part for item in case.items for part in _parts(item)],
        "tools": [tool.full_name for tool in case.tools],
        "choice": f"function {choice.name}" if choice.mode == "named" else choice.mode,
        "parallel": case.parallel,
        "notes": case.notes,
        "expect": asdict(replace(case.expect, bfcl=None)) | {"calls": _expected_calls(case.expect)},
    }


def sample_block(result: Result, case: Case | None, variant: LabVariant | None) -> dict[str, Any]:
    """A sample: its texts with marked calls, its calls, and what is wrong with it."""
    reading, failed = result.explain(case, variant)
    found = asdict(result)
    found = {name: value for name, value in found.items() if value or name not in ("verdicts", "ended")}
    return found | {"repeat": result.cell.repeat, "failed": failed, "texts": reading.texts}


def whole_text(value: Any) -> Any:
    """A value that any encoder can write: half of a surrogate pair becomes U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {whole_text(name): whole_text(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [whole_text(member) for member in value]
    return value


def _parts(item: Item) -> Iterator[list[str]]:
    """(role, kind, text, name, call id) of each part."""
    if isinstance(item, FunctionCall):
        yield ["assistant", "call", item.arguments, item.full_name, item.call_id]
    elif isinstance(item, FunctionOutput):
        yield ["tool", "output", item.text, "", item.call_id]
    elif isinstance(item, Message):
        for part in item.parts:
            if isinstance(part, Text):
                yield [item.role, "text", part.text, "", ""]
            else:
                kind = "image" if isinstance(part, Image) else "document"
                yield [item.role, "media", part.url[:LONGEST_MEDIA], kind, ""]
    else:
        yield ["user", "other", as_json(dict(item.data)), item.type, ""]


def _expected_calls(expect: Expect) -> list[dict[str, str]]:
    if expect.bfcl is None:
        return [_expected(call) for call in expect.calls]
    return [_expected(ExpectedCall(call.name, call.values)) for call in expect.bfcl.calls]


def _expected(call: ExpectedCall) -> dict[str, str]:
    optional = as_json(dict(call.optional)) if call.optional else ""
    return {"name": call.name, "arguments": as_json(dict(call.arguments)), "optional": optional}


SAMPLES = 20
"""The maximum number of samples of one cell."""
MAX_BYTES = 100_000_000
"""The maximum size of all samples: a browser holds them in memory."""

_LOG_PAGE = "bridge.log.export"
STYLES = ((_LOG_PAGE, "page"), (__package__, "lab"))
SCRIPTS = (
    *((_LOG_PAGE, name) for name in ("dom", "text", "pretty", "conversation")),
    *((__package__, name) for name in ("bars", "overview", "sample", "cell", "matrix", "start")),
)
"""The parts of the page's script, in order."""


def html_pieces(
    summary: Summary,
    results: Iterable[Result],
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    *,
    samples: int = SAMPLES,
    max_bytes: int = MAX_BYTES,
) -> Iterator[bytes]:
    """The page, in pieces, with the first `samples` of each cell while they fit into `max_bytes`."""
    head, tail = page_frame(__package__, "lab.html", "Tool calls", STYLES, SCRIPTS)
    yield head
    yield from _case_blocks(summary, cases, variants)
    rows = {row.case: number for number, row in enumerate(summary.rows)}
    columns = {column: number for number, column in enumerate(summary.columns)}
    kept = Counter[tuple[int, int]]()
    size = left_out = 0
    for result in results:  # none stays in memory
        cell = result.cell
        row, column = rows.get(cell.case), columns.get(Column(cell.model, cell.variant))
        if row is None or column is None:
            continue
        block = b""
        if kept[row, column] < samples:
            sample = sample_block(result, cases.get(cell.case), variants.get(cell.variant))
            block = _block(f"s{row}-{column}-{kept[row, column]}", sample)
        if block and size + len(block) <= max_bytes:
            size += len(block)
            kept[row, column] += 1
            yield block
        else:
            left_out += 1
    about = {"program": f"turnbridge {__version__}", "left_out": left_out}
    yield _block("index", index_block(summary, cases, kept) | about)
    yield tail


def _case_blocks(summary: Summary, cases: Mapping[str, Case], variants: Mapping[str, LabVariant]) -> Iterator[bytes]:
    texts: dict[str, int] = {}
    for number, row in enumerate(summary.rows):
        case = cases.get(row.case)
        if case is None:
            continue
        injected: list[int | None] = []
        for column in summary.columns:
            text = variants[column.variant].text_for(case) if column.variant in variants else ""
            if text and text not in texts:
                texts[text] = len(texts)
                yield _block(f"t{texts[text]}", text)
            injected.append(texts.get(text))
        yield _block(f"k{number}", case_block(case) | {"injected": injected})


def _block(name: str, value: Any) -> bytes:
    return json_block(name, script_safe(whole_text(value)))
