"""Secrets with a known shape are found in texts that were recorded in pieces."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from security.test_canaries import SHAPES, TAIL

from bridge.log import split_secrets
from bridge.log.redact import Remover
from bridge.log.split_secrets import LONGEST, SplitSecretFinder
from bridge.redact import mark, secrets_in

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


def delta(text: str, req_id: str = "req_1") -> dict[str, Any]:
    payload = {"method": "x/delta", "params": {"itemId": "m", "delta": text}}
    return {"phase": "backend_io", "kind": "rpc_notification", "req_id": req_id, "payload": payload}


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def found(pieces: list[str], pattern: str | None = None) -> SplitSecretFinder:
    finder = SplitSecretFinder((), [re.compile(pattern)] if pattern else [])
    for number, piece in enumerate(pieces):
        finder.feed(number, delta(piece))
    return finder.end()


@pytest.mark.parametrize("secret", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("size", [1, 4, 9])
def test_every_shape_is_found_however_it_is_cut(secret: str, size: int) -> None:
    shaped = found(cut(f"say {secret} here", size)).shaped
    assert any(TAIL in each and each in secret for each in shaped)


@given(st.lists(st.sampled_from([KEY, f"ghp_{'q' * 30}", "x ", "[redacted:01234567]", " é日 ", "\n", ", "])))
def test_it_reports_what_the_redactor_would_remove(words: list[str]) -> None:
    """Also beside marks that were there before, and beside each other."""
    text = " ".join(words)
    told = [word for word in words if word == KEY or word.startswith("ghp_")]
    assert secrets_in(text) == told


def test_a_pattern_reports_only_matches_that_span_several_pieces() -> None:
    """Within one piece it is applied directly; a shorter match would be found everywhere."""
    finder = found(["the numbers 12", "34 and 5678", " and 9", "9"], r"\d+")
    assert list(finder.matched) == ["1234"]
    assert not finder.shaped


def test_words_of_the_protocol_are_not_text() -> None:
    events = [json.dumps({"type": "response.delta", "delta": piece}) for piece in ("a", "b", "c")]
    finder = SplitSecretFinder((), [re.compile("deltaresponse")])
    for number, event in enumerate(events):
        finder.feed(number, {"kind": "client_sse", "req_id": "req_1", "payload": f"data: {event}\n\n"})
    finder.end()
    assert not finder.matched


def test_requests_are_kept_apart_and_forgotten_at_their_end() -> None:
    finder = SplitSecretFinder()
    for number, piece in enumerate(cut(KEY, 5)):
        finder.feed(2 * number, delta(piece, "req_1"))
        finder.feed(2 * number + 1, delta("x", "req_2"))
    finder.feed(999, {"phase": "turn", "kind": "turn_end", "req_id": "req_1", "payload": {}})
    assert list(finder.shaped) == [KEY]


def test_a_text_without_end_is_held_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_secrets, "MOST_HELD", 3 * LONGEST)
    for before in range(3 * LONGEST - 60, 3 * LONGEST + 10, 7):
        assert KEY in list(found([*cut("x" * before, 9), *cut(f" {KEY} ", 3), "y" * LONGEST]).shaped)


def test_a_long_secret_is_reported_in_parts() -> None:
    """All of which together are the whole."""
    secret = "sk-" + "".join(str(number) for number in range(3000))
    parts = list(found(cut(secret, 50)).shaped)
    assert "".join(parts) == secret
    assert all(LONGEST <= len(part) < 2 * LONGEST for part in parts)


def test_a_pattern_is_applied_to_the_texts_of_an_event_stream() -> None:
    """In the recorded stream they are escaped, so that the pattern does not match there."""
    word = 'pa"ss'
    event = {"type": "response.output_text.delta", "item_id": "i", "delta": f"my {word} word"}
    record = {"kind": "client_sse", "req_id": "req_1", "phase": "client_egress", "ts": "", "mono": 0, "seq": 0}
    record["payload"] = f"data: {json.dumps(event)}\n\n"
    finder = SplitSecretFinder((), [re.compile(word)])
    finder.feed(0, record)
    out = Remover((), [re.compile(word)], split=finder.end()).entry(record, 0)
    assert json.loads(out["payload"].removeprefix("data:"))["delta"] == f"my {mark(word)} word"
