"""Secrets that nobody named are found in texts that came in pieces."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from security.test_canaries import SHAPES, TAIL

from bridge.protolog import spelled
from bridge.protolog.spelled import LONGEST, SpelledFinder, shaped_in

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


def delta(text: str, req_id: str = "req_1") -> dict[str, Any]:
    payload = {"method": "x/delta", "params": {"itemId": "m", "delta": text}}
    return {"phase": "backend_io", "kind": "rpc_notification", "req_id": req_id, "payload": payload}


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def found(pieces: list[str], pattern: str | None = None) -> SpelledFinder:
    finder = SpelledFinder([re.compile(pattern)] if pattern else [])
    for piece in pieces:
        finder.feed(delta(piece))
    finder.end()
    return finder


@pytest.mark.parametrize("secret", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("size", [1, 4, 9])
def test_every_shape_is_found_however_it_is_cut(secret: str, size: int) -> None:
    shaped = found(cut(f"say {secret} here", size)).shaped
    assert any(TAIL in each and each in secret for each in shaped)


@given(st.lists(st.sampled_from([KEY, f"ghp_{'q' * 30}", "x ", "[redacted:01234567]", " é日 ", "\n", ", "])))
def test_what_is_told_is_what_the_redactor_would_remove(words: list[str]) -> None:
    """Also beside marks that were there before, and beside each other."""
    text = " ".join(words)
    told = [word for word in words if word == KEY or word.startswith("ghp_")]
    assert list(shaped_in(text)) == told


def test_a_pattern_tells_only_what_it_finds_over_several_pieces() -> None:
    """What stands within one it finds there itself; what is too short would be found everywhere."""
    finder = found(["the numbers 12", "34 and 5678", " and 9", "9"], r"\d+")
    assert list(finder.matched) == ["1234"]
    assert not finder.shaped


def test_the_words_of_the_protocol_are_no_text() -> None:
    events = [json.dumps({"type": "response.delta", "delta": piece}) for piece in ("a", "b", "c")]
    finder = SpelledFinder([re.compile("deltaresponse")])
    for event in events:
        finder.feed({"kind": "client_sse", "req_id": "req_1", "payload": f"data: {event}\n\n"})
    finder.end()
    assert not finder.matched


def test_requests_are_told_apart_and_let_go() -> None:
    finder = SpelledFinder()
    for piece in cut(KEY, 5):
        finder.feed(delta(piece, "req_1"))
        finder.feed(delta("x", "req_2"))
    finder.feed({"phase": "turn", "kind": "turn_end", "req_id": "req_1", "payload": {}})
    assert list(finder.shaped) == [KEY]


def test_a_text_without_end_is_held_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelled, "MOST_HELD", 3 * LONGEST)
    for before in range(3 * LONGEST - 60, 3 * LONGEST + 10, 7):
        assert KEY in list(found([*cut("x" * before, 9), *cut(f" {KEY} ", 3), "y" * LONGEST]).shaped)


def test_a_long_one_is_told_in_parts() -> None:
    """All of which together are the whole."""
    secret = "sk-" + "".join(str(number) for number in range(3000))
    parts = list(found(cut(secret, 50)).shaped)
    assert "".join(parts) == secret
    assert all(LONGEST <= len(part) < 2 * LONGEST for part in parts)
