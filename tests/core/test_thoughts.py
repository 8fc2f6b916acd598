"""A thought goes back to the provider that made it, and to no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.items import FunctionCall, Message, RawItem, Text
from bridge.core.thoughts import own_items, seal
from bridge.core.turn import Turn
from bridge.protocols.chat.calls import pack
from bridge.protocols.messages.models import pack_thought

TURN = Turn("m", "m", (Message("user", (Text("hi"),)),), backend="codex")


def thought(content: object) -> RawItem:
    return RawItem("reasoning", {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": content})


def given_back(turn: Turn, content: object) -> list[object]:
    """The encrypted contents that a provider gets for a history with this thought; the other items are untouched."""
    call = FunctionCall("c", "look", "{}")
    items = list(own_items(replace(turn, items=(*TURN.items, thought(content), call))))
    assert (items[0], items[-1]) == (TURN.items[0], call)
    return [item.data["encrypted_content"] for item in items if isinstance(item, RawItem)]


@pytest.mark.parametrize("content", ["gAAAAA", "", "a:b", "bridge.thought.1.zz:x", "anthropic", "ü 🌍"])
def test_its_owner_gets_it_as_it_was(content: str) -> None:
    sealed = seal(TURN, content)
    assert sealed != content
    assert given_back(replace(TURN, model="another", requested_model="x"), sealed) == [content]


@pytest.mark.parametrize("changed", [{"backend": "plain"}, {"provider": "azure"}, {"backend": ""}])
def test_nobody_else_gets_it(changed: dict[str, str]) -> None:
    """Another backend, or another provider of Codex's config.toml; in both directions."""
    other = replace(TURN, **changed)  # type: ignore[arg-type]
    assert given_back(other, seal(TURN, "gAAAAA")) == []
    assert given_back(TURN, seal(other, "gAAAAA")) == []
    assert given_back(other, seal(other, "gAAAAA")) == ["gAAAAA"]


def test_what_anthropic_and_gemini_have_signed_is_left_out() -> None:
    signed = pack_thought("claude-sonnet-4-5", {"type": "thinking", "thinking": "x", "signature": "s"})
    assert given_back(TURN, signed) == []
    assert given_back(TURN, pack({"call_1": "s"})) == []


@pytest.mark.parametrize("content", ["gAAAAA", "", None, 5])
def test_what_has_no_mark_is_passed_on(content: object) -> None:
    """The client has it from the provider itself."""
    assert given_back(TURN, content) == [content]


def test_a_thought_may_pass_several_bridges() -> None:
    """Each adds its mark and takes it away again."""
    inner, outer = TURN, replace(TURN, backend="url")
    sealed = seal(outer, seal(inner, "gAAAAA"))
    (once,) = given_back(outer, sealed)
    assert given_back(inner, once) == ["gAAAAA"]
