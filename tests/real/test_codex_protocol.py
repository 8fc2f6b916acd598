"""The parts of the app-server's protocol that the bridge uses, against what real Codex binaries say of themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness import ROOT
from real import codex_binaries

from bridge.appserver.failures import error_from_codex

sys.path.insert(0, str(ROOT / "scripts/compatibility"))

from surface import difference, read_schema, surface, used_names

RECORDED = ROOT / "fixtures/codex/surface.txt"


def newest() -> Path:
    binary = codex_binaries.find(codex_binaries.NEWEST)
    if isinstance(binary, str):
        pytest.skip(binary)
    return binary


def test_the_recorded_protocol_is_that_of_the_newest_version() -> None:
    """docs/compatibility.md and `scripts/codex-matrix --nightly` compare with it."""
    version, *recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    assert version == codex_binaries.NEWEST, "run scripts/codex-matrix --record"
    changes = difference(recorded, surface(read_schema(newest()), used_names()))
    assert not changes, "run scripts/codex-matrix --record\n" + "\n".join(changes)


def test_every_kind_of_error_has_a_meaning() -> None:
    """An unknown kind would be a 502, which clients repeat."""
    lines = surface(read_schema(newest()), used_names())
    kinds = [line.partition(": ")[2] for line in lines if line.startswith("CodexErrorInfo: ")]
    assert {"badRequest", "modelNotFound", "usageLimitExceeded"} <= set(kinds)
    unknown = error_from_codex("It failed.", "aKindThatDoesNotExist")
    without = [
        kind
        for kind in kinds
        if kind != "other" and (error := error_from_codex("It failed.", kind)).code == unknown.code and not error.cause
    ]
    assert without == []


def test_a_difference_names_what_came_and_what_went() -> None:
    before, after = ["call a", "call a.x", "kind: old"], ["call a", "call a requires y", "kind: old"]
    assert difference(before, after) == ["+ call a requires y", "- call a.x"]
    assert difference(before, before) == []
