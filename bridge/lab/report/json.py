"""The report as JSON: for programs, and as the baseline of later runs. Pure.

    report       the format's number, 1
    program      who wrote it
    suite        the suite's path, as it was given
    repeats      how often a case was asked, at most
    asked        how many results there are, errors among them
    planned      how many a whole run would have; null when nobody knows
    columns      a model and a variant each, with all their counts: `scored`, `passed`, `errors` (of the machinery, in
                 no other figure), `pass_rate` and its `interval` (from drawing cases again), `pass_at` and `pass_hat`
                 (of as many tries as `repeats`), `clean` of `called`, `forms`, `repairs`, `failed_checks`,
                 `error_codes`, `input_tokens`, `output_tokens`, `mean_seconds`
    cases        each with its `category` and a `cells` list: model, variant, a word (PASS, MIXED, FAIL, ERROR),
                 counts, Wilson's `interval`, `pass_at`, `pass_hat`
    comparisons  each variant with the first of its model: the mean `difference` of the cases' rates, its `interval`,
                 whether it is `distinguishable`, and all of it in `words`

Rates lie between 0 and 1; what is not known is null. The same results give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from bridge import __version__
from bridge.lab.report.summary import CellRates, Column, Compared, Rates, Summary
from bridge.lab.report.words import ordered
from bridge.lab.stats import describe
from bridge.lab.table import Count

FORMAT = 1
_DIGITS = 6


def json_report(summary: Summary) -> bytes:
    """The report, indented."""
    report = {
        "report": FORMAT,
        "program": f"codex-bridge {__version__}",
        "suite": summary.suite,
        "repeats": summary.repeats,
        "asked": summary.table.total.asked,
        "planned": summary.planned or None,
        "columns": [_column(summary, column) for column in summary.columns],
        "cases": [
            {
                "id": row.case,
                "category": row.category,
                "cells": [
                    _key(column) | {"word": count.word} | _counts(count) | _rates(summary.cell_rates(count))
                    for column in summary.columns
                    if (count := summary.cell(row, column)).word != "-"
                ],
            }
            for row in summary.rows
        ],
        "comparisons": [_comparison(compared) for compared in summary.compared],
    }
    return orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n"


def _column(summary: Summary, column: Column) -> dict[str, Any]:
    count, rates = summary.column(column), summary.rates[column]
    return (
        _key(column)
        | _counts(count)
        | {
            "pass_rate": _rounded(count.passed / count.scored) if count.scored else None,
            **_rates(rates),
            "clean": rates.clean.part,
            "called": rates.clean.whole,
            "input_tokens": count.input_tokens,
            "output_tokens": count.output_tokens,
            "mean_seconds": _rounded(rates.seconds),
        }
    )


def _key(column: Column) -> dict[str, Any]:
    return {"model": column.model, "variant": column.variant}


def _counts(count: Count) -> dict[str, Any]:
    return {
        "scored": count.scored,
        "passed": count.passed,
        "errors": count.errors,
        "forms": _present(count.forms),
        "repairs": _present(count.repairs),
        "failed_checks": _present(count.failed_checks),
        "error_codes": _present(count.error_codes),
    }


def _rates(rates: Rates | CellRates) -> dict[str, Any]:
    return {
        "interval": [_rounded(bound) for bound in rates.interval],
        "pass_at": _rounded(rates.pass_at),
        "pass_hat": _rounded(rates.pass_hat),
    }


def _present(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in ordered(counts).items() if number}


def _comparison(compared: Compared) -> dict[str, Any]:
    found = compared.comparison
    return {
        "model": compared.model,
        "variant": compared.variant,
        "first": compared.first,
        "cases": found.cases,
        "differing": found.differing,
        "difference": _rounded(found.difference),
        "interval": None if found.low is None else [_rounded(found.low), _rounded(found.high)],
        "distinguishable": found.distinguishable,
        "words": describe(found),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
