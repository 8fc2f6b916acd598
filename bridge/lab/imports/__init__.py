"""Suites made of other material: recorded traffic, tables, BFCL. `turnbridge lab import` writes them.

An importer yields drafts: cases as a suite has them, or the reason why one is left out. `checked` keeps the drafts that
a suite accepts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bridge.errors import UsageError
from bridge.lab.suite import case_from_dict

Json = dict[str, Any]
Draft = Json | str
"""A case, or why there is none."""


@dataclass(slots=True)
class Imported:
    """The cases of an import, and how many were left out for which reason."""

    cases: list[Json] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def checked(drafts: Iterable[Draft]) -> Imported:
    """The drafts that a suite accepts."""
    found = Imported()
    for draft in drafts:
        if isinstance(draft, str):
            found.left_out[draft] += 1
            continue
        try:
            case_from_dict(draft)
        except UsageError as error:
            found.left_out[f"{draft.get('id', '?')}: {error.message.splitlines()[0]}"] += 1
        else:
            found.cases.append(draft)
    return found
