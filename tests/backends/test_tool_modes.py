"""How tools are offered: the request's header wins over its key, its key over the model, all over the setting."""

from __future__ import annotations

import pytest

from bridge.errors import InvalidRequest
from bridge.routing.router import ToolModes

MODES = ToolModes(
    {"gpt-6": "native", "gpt-6-luna": "text", "*-mini": "native"}, {"agent-*": "native", "agent-old": "text"}
)


@pytest.mark.parametrize(
    ("key", "model", "header", "native"),
    [
        ("ada", "gpt-5.5", None, None),
        ("ada", "gpt-6-sol", None, True),
        ("ada", "GPT-6-Luna", None, False),
        ("ada", "gpt-5-mini", None, True),
        ("agent-1", "gpt-5.5", None, True),
        ("agent-old", "gpt-6-sol", None, False),
        ("agent-1", "gpt-6-luna", None, True),
        ("agent-1", "gpt-6-sol", b"text", False),
        ("ada", "gpt-5.5", b"native", True),
    ],
)
def test_what_holds_for_a_request(key: str, model: str, header: bytes | None, native: bool | None) -> None:
    """Patterns as in routing: of those that fit, the one that fixes most of the name."""
    assert MODES.offers_natively(key, model, header) is native


def test_an_unknown_mode_is_refused() -> None:
    """With the words that can be used."""
    with pytest.raises(InvalidRequest, match="'text' or 'native'"):
        MODES.offers_natively("ada", "gpt-5.5", b"json")


def test_without_choices_the_setting_holds() -> None:
    """For all requests."""
    assert ToolModes().offers_natively("ada", "gpt-5.5") is None
