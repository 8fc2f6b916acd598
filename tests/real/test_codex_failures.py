"""A real Codex behind the bridge: what a client gets when the model's provider fails."""

from __future__ import annotations

from typing import Any

import pytest
from real.rig import CHAT, RESPONSES, Answer, Api, Rig, Target, UseRig


def is_still_well(rig: Rig, api: Api) -> bool:
    """Whether the next request works."""
    return rig.ask(api, {"do": "text", "pieces": ["well"]}).text == "well"


def code_of(answer: Answer) -> str:
    """The bridge's own code of a failure within a stream."""
    return str(answer.error.get("bridge_code") or answer.error["code"])


def test_rate_limit(codex: Rig, api: Api, stream: bool) -> None:
    """The provider's 429 is the client's 429, as OpenAI's clients know it, also for a stream."""
    answer = codex.ask(api, {"do": "error", "status": 429}, stream=stream)
    assert answer.status == 429
    assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_bad_request(codex: Rig, api: Api, stream: bool) -> None:
    """The provider's 400 is the client's 400, with the provider's own message and code."""
    action = {"do": "error", "status": 400, "message": "Your <prompt> is odd", "code": "odd_prompt"}
    answer = codex.ask(api, action, stream=stream)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert (answer.error["message"], answer.error["code"]) == ("Your <prompt> is odd", "odd_prompt")


@pytest.mark.parametrize(
    ("action", "status", "code"),
    [
        ({"do": "error", "status": 401}, 401, "upstream_unauthorized"),
        ({"do": "error", "status": 500}, 502, "upstream_error"),
        ({"do": "failed", "code": "server_error"}, 502, "upstream_error"),
        ({"do": "failed", "code": "context_length_exceeded"}, 400, "context_length_exceeded"),
        ({"do": "failed", "code": "insufficient_quota"}, 429, "insufficient_quota"),
        ({"do": "empty"}, 502, "empty_response"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_other_failures(codex: Rig, api: Api, action: Any, status: int, code: str) -> None:
    """Whatever fails before the first word is an HTTP error, even for a stream; nothing is retried."""
    answer = codex.ask(api, action, stream=True)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert len(codex.posts) == 1


@pytest.mark.parametrize(
    ("reason", "finish_reason"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
def test_incomplete(codex: Rig, api: Api, stream: bool, reason: str, finish_reason: str) -> None:
    """An answer that the provider cuts short is no error: the text is kept, and the end says why."""
    answer = codex.ask(api, {"do": "incomplete", "reason": reason, "pieces": ["so", " far"]}, stream=stream)
    assert (answer.status, answer.text, answer.error) == (200, "so far", {})
    assert answer.end == (finish_reason if api is CHAT else "incomplete")
    if api is RESPONSES:
        assert answer.raw["incomplete_details"] == {"reason": reason}
    assert len(codex.posts) == 1


# The stream breaks


def test_a_dropped_stream_fails_a_whole_answer(codex: Rig, api: Api) -> None:
    """Not streamed: a dropped stream is a 502, never half an answer."""
    answer = codex.ask(api, {"do": "drop", "n": 3})
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert is_still_well(codex, api)


def test_a_dropped_stream_fails_the_clients_stream(codex: Rig, api: Api) -> None:
    """Streamed: after the first words the stream ends with one failure, and not as if it were complete."""
    answer = codex.ask(api, {"do": "drop", "n": 3, "delay": 0.02}, stream=True)
    assert (answer.status, answer.text) == (200, "word0 word1 word2 ")
    assert answer.end == ("failed" if api is RESPONSES else None)
    assert code_of(answer) == "upstream_error"
    assert is_still_well(codex, api)


# `times` counts the requests with the same script, so that each case has words of its own number.


@pytest.mark.parametrize(("api", "words"), [(RESPONSES, 2), (CHAT, 3)], ids=["responses", "chat"])
def test_a_retry_is_hidden_from_a_whole_answer(use: UseRig, target: Target, api: Api, words: int) -> None:
    """Not streamed: when Codex itself retries a dropped stream, the client gets the second answer alone."""
    rig = use(target, retries=1)
    answer = rig.ask(api, {"do": "drop", "n": words, "times": 1})
    assert (answer.status, answer.text, answer.end) == (200, "recovered", api.done)
    assert len(rig.posts) == 2


@pytest.mark.parametrize(("api", "words"), [(RESPONSES, 4), (CHAT, 5)], ids=["responses", "chat"])
def test_a_retry_after_visible_output_fails_the_stream(use: UseRig, target: Target, api: Api, words: int) -> None:
    """Streamed: words that are out cannot be taken back, so the retry's text never follows them."""
    rig = use(target, retries=1)
    answer = rig.ask(api, {"do": "drop", "n": words, "times": 1}, stream=True)
    assert answer.text == "".join(f"word{i} " for i in range(words))
    assert answer.end == ("failed" if api is RESPONSES else None)
    assert code_of(answer) == "stream_interrupted"
    assert is_still_well(rig, api)
