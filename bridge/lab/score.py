"""How good an answer is: its form and its meaning, kept apart. Pure; the same sample gets the same score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.lab.case import Case
from bridge.lab.form import FORMS, Form, read_answer
from bridge.lab.meaning import CHECKS, check_answer, name_f1
from bridge.lab.sample import Called, Sample
from bridge.lab.variant import LabVariant

__all__ = ["CHECKS", "FORMS", "Form", "Score", "score"]


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome for one sample. `passed`: a client would have got what it should, after repairs if need be."""

    form: Form
    checks: Mapping[str, bool | None]
    """The outcome of each of CHECKS; None where it has no matter."""
    repairs: tuple[str, ...] = ()
    rejections: tuple[str, ...] = ()
    calls: tuple[Called, ...] = ()
    visible: str = field(default="", repr=False)
    f1: float = 1.0
    """How well the called names are those that are due, 0 to 1."""

    @property
    def form_ok(self) -> bool:
        """Whether nothing was wrong with the form, even if it had to be mended."""
        return self.form in ("clean", "repaired", "absent")

    @property
    def meaning_ok(self) -> bool:
        """Whether no check has failed."""
        return False not in self.checks.values()

    @property
    def passed(self) -> bool:
        """Whether form and meaning are right."""
        return self.form_ok and self.meaning_ok


def score(case: Case, variant: LabVariant, sample: Sample) -> Score:
    """Score an answer that came. One that did not (`sample.failure`) has no score."""
    reading = read_answer(case, variant, sample)
    return Score(
        reading.form,
        check_answer(case, reading.calls, reading.visible),
        tuple(reading.repairs),
        tuple(reading.rejections),
        tuple(reading.calls),
        reading.visible,
        name_f1(case.expect.calls, reading.calls),
    )
