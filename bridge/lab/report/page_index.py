"""What the page of a report knows at once: all counts, and the words for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.lab.case import Case
from bridge.lab.report.summary import Column, Compared, Row, Summary
from bridge.lab.report.words import CHECK_WORDS, FORM_WORDS, MARKS, REJECTION_WORDS, REPAIR_WORDS, marks_of, ordered
from bridge.lab.stats import describe
from bridge.lab.table import Count


def index_block(summary: Summary, cases: Mapping[str, Case], kept: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    """`kept` tells how many samples of a cell, by row and column, the page holds."""
    return {
        "suite": summary.suite,
        "repeats": summary.repeats,
        "told": list(summary.told),
        "missed": list(summary.missed),
        "words": {
            "marks": dict(MARKS),
            "forms": dict(FORM_WORDS),
            "checks": dict(CHECK_WORDS),
            "repairs": dict(REPAIR_WORDS),
            "rejections": dict(REJECTION_WORDS),
        },
        "columns": [_column(summary, column) for column in summary.columns],
        "rows": [_row(summary, row, number, cases.get(row.case), kept) for number, row in enumerate(summary.rows)],
        "compared": [_compared(each) for each in summary.compared],
    }


def _column(summary: Summary, column: Column) -> dict[str, Any]:
    rates, count = summary.rates[column], summary.column(column)
    return {
        "model": column.model,
        "variant": column.variant,
        "interval": list(rates.interval),
        "pass_at": rates.pass_at,
        "pass_hat": rates.pass_hat,
        "clean": list(rates.clean),
        "in": count.input_tokens,
        "out": count.output_tokens,
        "seconds": rates.seconds,
    } | _counts(count)


def _row(
    summary: Summary, row: Row, number: int, case: Case | None, kept: Mapping[tuple[int, int], int]
) -> dict[str, Any]:
    cells = []
    for place, column in enumerate(summary.columns):
        count = summary.cell(row, column)
        told = {"word": count.word, "marks": marks_of(count, row), "kept": kept.get((number, place), 0)}
        cells.append(told | _counts(count) | summary.cell_rates(count)._asdict())
    return {
        "id": row.case,
        "category": row.category,
        "due": row.due,
        "known": case is not None,
        "tags": list(case.tags) if case is not None else [],
        "cells": cells,
    }


def _counts(count: Count) -> dict[str, Any]:
    return {
        "passed": count.passed,
        "scored": count.scored,
        "errors": count.errors,
        "forms": ordered(count.forms),
        "repairs": ordered(count.repairs),
        "failed": ordered(count.failed_checks),
        "codes": ordered(count.error_codes),
    }


def _compared(compared: Compared) -> dict[str, Any]:
    found = compared.comparison
    return {
        "model": compared.model,
        "variant": compared.variant,
        "first": compared.first,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "distinguishable": found.distinguishable,
        "words": describe(found),
    }
