"""Some of the cases of a suite, by what they are called. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from bridge.errors import UsageError
from bridge.lab.case import Case
from bridge.lab.suite.faults import did_you_mean


def choose_cases(cases: Sequence[Case], only: Sequence[str]) -> tuple[Case, ...]:
    """The cases that one of the patterns names, in their order; all when there is no pattern.

    A pattern is an id, `tag:TAG` or `category:CATEGORY`, each with `*` for anything. Raises UsageError for one that
    names nothing.
    """
    kept: set[str] = set()
    for pattern in only:
        named = [case.id for case in cases if any(fnmatchcase(name, pattern) for name in _names(case))]
        if not named:
            near = did_you_mean(pattern, dict.fromkeys(name for case in cases for name in _names(case)))
            raise UsageError(f"no case of the suite is named by {pattern!r}{near}")
        kept.update(named)
    return tuple(case for case in cases if not only or case.id in kept)


def _names(case: Case) -> list[str]:
    return [case.id, f"category:{case.category}", *(f"tag:{tag}" for tag in case.tags)]
