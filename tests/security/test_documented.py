"""The threat model and the promises name their tests: each of them exists, and each threat has one."""

from __future__ import annotations

import re

import pytest
from harness import ROOT

PAGE = (ROOT / "docs/security.md").read_text()
ROWS = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", PAGE, re.MULTILINE)
PROMISES = (ROOT / "docs/promises.md").read_text()
NAMED = re.findall(r"`([\w/]+\.py)::(?:\w+::)?(test_\w+)`", PAGE + PROMISES)


def test_every_threat_is_in_the_table() -> None:
    """Counted through, and each has a test."""
    assert [int(number) for number, _ in ROWS] == list(range(1, 31))
    for number, tests in ROWS:
        assert "::test_" in tests, number


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)), ids=lambda word: word)
def test_a_named_test_exists(file: str, name: str) -> None:
    """In the file that is said to have it."""
    source = (ROOT / "tests" / file).read_text()
    assert re.search(rf"^ *(?:async )?def {name}\(", source, re.MULTILINE)


def test_the_page_and_the_policy_lead_to_each_other() -> None:
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text()
    assert "SECURITY.md" in PAGE
    assert "docs/security.md" in (ROOT / "README.md").read_text()
