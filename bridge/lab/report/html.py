"""The report as one page that needs nothing else: no server, no network, no other file.

It is made like the page of a log (`bridge.protolog.export`), and shares parts of it: what was recorded is in it as JSON
that no browser runs, the page's script puts it on the screen as text alone, and a policy in the page forbids every
other script, and every request.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from bridge import __version__
from bridge.lab.case import Case
from bridge.lab.report.page_index import index_block
from bridge.lab.report.page_parts import case_block, sample_block, whole_text
from bridge.lab.report.summary import Column, Summary
from bridge.lab.result import Result
from bridge.lab.variant import LabVariant
from bridge.protolog.export.page_turn import script_safe

SAMPLES = 20
"""Of one cell in the page, at most."""
MAX_BYTES = 100_000_000
"""Of samples in the page. A browser holds them all in memory."""

_LOG_PAGE = "bridge.protolog.export"
_LAB_PAGE = "bridge.lab.report"
SCRIPTS = (
    *((_LOG_PAGE, name) for name in ("dom", "text", "pretty", "conversation")),
    *((_LAB_PAGE, name) for name in ("bars", "overview", "sample", "cell", "matrix", "start")),
)
"""The page's script, in the order of its parts."""
STYLES = ((_LOG_PAGE, "page"), (_LAB_PAGE, "lab"))


@dataclass(slots=True)
class _Kept:
    """How many samples of each cell are in the page, and how much they take."""

    cells: Counter[tuple[int, int]] = field(default_factory=Counter)
    size: int = 0
    left_out: int = 0


def html_pieces(
    summary: Summary,
    results: Iterable[Result],
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    *,
    samples: int = SAMPLES,
    max_bytes: int = MAX_BYTES,
) -> Iterator[bytes]:
    """The page, in pieces. Of each cell the first `samples` are in it, as long as all of them fit into `max_bytes`."""
    style = b"\n".join(_asset(where, f"{name}.css") for where, name in STYLES)
    script = b'"use strict";\n{\n' + b"\n".join(_asset(where, f"{name}.js") for where, name in SCRIPTS) + b"}\n"
    head, _, tail = _asset(_LAB_PAGE, "lab.html").partition(b"<!--results-->")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
        "; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    yield head.replace(b"{policy}", policy.encode()).replace(b"{style}", style)
    yield from _cases(summary, cases, variants)
    kept = _Kept()
    yield from _samples(summary, results, cases, variants, kept, samples, max_bytes)
    index = index_block(summary, cases, kept.cells) | {
        "program": f"codex-bridge {__version__}",
        "left_out": kept.left_out,
    }
    yield _block("index", index)
    yield tail.replace(b"{script}", script)


def _cases(summary: Summary, cases: Mapping[str, Case], variants: Mapping[str, LabVariant]) -> Iterator[bytes]:
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


def _samples(
    summary: Summary,
    results: Iterable[Result],
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    kept: _Kept,
    samples: int,
    max_bytes: int,
) -> Iterator[bytes]:
    """Each sample as it is read: nothing of it stays in memory."""
    rows = {row.case: number for number, row in enumerate(summary.rows)}
    columns = {column: number for number, column in enumerate(summary.columns)}
    for result in results:
        cell = result.cell
        row, column = rows.get(cell.case), columns.get(Column(cell.model, cell.variant))
        if row is None or column is None:
            continue
        place = (row, column)
        if kept.cells[place] >= samples:
            kept.left_out += 1
            continue
        variant = variants.get(cell.variant) or LabVariant(cell.variant)
        name = f"s{row}-{column}-{kept.cells[place]}"
        block = _block(name, sample_block(result, cases.get(cell.case), variant))
        if kept.size + len(block) > max_bytes:
            kept.left_out += 1
            continue
        kept.size += len(block)
        kept.cells[place] += 1
        yield block


def _block(name: str, value: Any) -> bytes:
    return b'<script type="application/json" id="%b">%b</script>\n' % (name.encode(), script_safe(whole_text(value)))


def _asset(package: str, name: str) -> bytes:
    return files(package).joinpath("page", name).read_bytes()


def _hash(source: bytes) -> str:
    """The one script, or style, that the policy lets through."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source).digest()).decode()}'"
