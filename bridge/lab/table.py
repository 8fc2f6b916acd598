"""The table of a run: what came of each cell, of each variant, and how they compare. Pure; holds counts, no texts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from bridge.lab.result import Result

Word = Literal["PASS", "MIXED", "FAIL", "ERROR", "-"]


@dataclass(slots=True)
class Count:
    """All samples of a case, a variant or a model."""

    passed: int = 0
    scored: int = 0
    errors: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)
    failed_checks: Counter[str] = field(default_factory=Counter)
    error_codes: Counter[str] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        """Count one more."""
        self.input_tokens += result.input_tokens
        self.output_tokens += result.output_tokens
        self.seconds += result.seconds
        if result.status == "error":
            self.errors += 1
            self.error_codes[(result.error or {}).get("code", "unknown")] += 1
            return
        self.scored += 1
        self.passed += result.passed
        self.forms[result.form or ""] += 1
        self.repairs.update(result.repairs)
        self.failed_checks.update(result.failed_checks)

    @property
    def asked(self) -> int:
        """All of them, also those that the machinery failed."""
        return self.scored + self.errors

    @property
    def word(self) -> Word:
        """In one word. Errors of the machinery do not count against the model."""
        if not self.scored:
            return "ERROR" if self.errors else "-"
        if self.passed == self.scored:
            return "PASS"
        return "MIXED" if self.passed else "FAIL"


@dataclass(slots=True)
class Table:
    """Counts by model, variant and case, in the order in which they were met."""

    cells: dict[tuple[str, str, str], Count] = field(default_factory=dict)
    columns: dict[tuple[str, str], Count] = field(default_factory=dict)
    """By model and variant."""
    total: Count = field(default_factory=Count)
    outcomes: dict[tuple[str, str], dict[str, list[bool]]] = field(default_factory=dict)
    """For each model and variant the outcomes by case, to compare variants."""

    def add(self, result: Result) -> None:
        """Count one result."""
        cell = result.cell
        self.cells.setdefault((cell.model, cell.variant, cell.case), Count()).add(result)
        self.columns.setdefault((cell.model, cell.variant), Count()).add(result)
        self.total.add(result)
        if result.status == "scored":
            by_case = self.outcomes.setdefault((cell.model, cell.variant), {})
            by_case.setdefault(cell.case, []).append(result.passed)

    @property
    def cases(self) -> list[str]:
        """The cases, in order."""
        return list(dict.fromkeys(case for _, _, case in self.cells))

    def count(self, model: str, variant: str, case: str) -> Count:
        """What came of a cell; nothing, perhaps."""
        return self.cells.get((model, variant, case), Count())
