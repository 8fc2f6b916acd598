"""The laboratory: does a model, with this injected text, call the tools that it should, in the form that it should?

What another program needs to score answers of its own is here:

    from bridge.lab import Called, Sample, case_from_dict, load_suite, score, SHIPPED

    case = case_from_dict({"id": "one", "category": "single", "tools": […], "messages": […], "expect": {…}})
    print(score(case, SHIPPED["spec"], Sample(texts=(answer,))))
"""

from bridge.lab.case import Case, Expect, ExpectedCall
from bridge.lab.sample import Called, Sample
from bridge.lab.score import CHECKS, FORMS, Score, score
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
