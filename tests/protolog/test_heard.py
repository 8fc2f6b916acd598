"""What the model itself said."""

from __future__ import annotations

import pytest
from harness import ROOT
from protolog.export.making import recordings

from bridge.protolog.heard import heard_text

TRACES = ROOT / "fixtures/traces"


@pytest.mark.parametrize("trace", ["current_0.166.0_toolcall_tiny_deltas", "legacy_0.107.0_toolcall"])
def test_text_of_both_dialects_is_heard_once(trace: str) -> None:
    """The legacy child says each piece three times."""
    (recording,) = recordings(TRACES / f"{trace}.ndjson")
    text = heard_text(recording)
    assert text.count("<tool_call>") == text.count("</tool_call>") >= 1
    assert text.startswith("Let me look.")
