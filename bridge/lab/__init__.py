"""The laboratory measures whether a model makes the right tool calls in the right form.

Other programs can score answers of their own:

    from bridge.lab import Called, Sample, case_from_dict, load_suite, score, SHIPPED

    case = case_from_dict({"id": "one", "category": "single", "tools": […], "messages": […], "expect": {…}})
    print(score(case, SHIPPED["spec"], Sample(texts=(answer,))))
"""

from bridge.lab.case import Called, Case, Expect, ExpectedCall, Sample
from bridge.lab.checks import CHECKS
from bridge.lab.score import FORMS, Score, score
from bridge.lab.suite import case_from_dict, load_suite
from bridge.lab.variant import SHIPPED, LabVariant

__all__ = [
    "CHECKS",
    "FORMS",
    "SHIPPED",
    "Called",
    "Case",
    "Expect",
    "ExpectedCall",
    "LabVariant",
    "Sample",
    "Score",
    "case_from_dict",
    "load_suite",
    "score",
]
