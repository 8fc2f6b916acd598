"""Server-sent events as bytes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from bridge.protocols.sse import DONE, KEEPALIVE, data_event


def test_a_keepalive_is_a_comment() -> None:
    """Clients ignore lines that begin with a colon."""
    assert KEEPALIVE.startswith(b":")
    assert KEEPALIVE.endswith(b"\n\n")


def test_the_end_of_a_chat_stream() -> None:
    """The word that OpenAI's clients wait for."""
    assert DONE == b"data: [DONE]\n\n"


@given(st.dictionaries(st.text(), st.text() | st.integers(-(2**53), 2**53) | st.none()))
def test_an_event_is_one_line_of_json(payload: dict[str, object]) -> None:
    """No content, line breaks of any kind included, can break the frame."""
    event = data_event(payload)
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    body = event[len(b"data: ") : -2]
    assert b"\n" not in body
    assert b"\r" not in body
    assert json.loads(body) == payload
