"""How an answer ends: what it cost, why it stopped, what went wrong."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import orjson

from bridge.backends.upstream.failures import error_from_object, error_from_status
from bridge.errors import BridgeError, UpstreamError
from bridge.turn.events import Usage

BROKEN_OFF = ("error", "abort")
"""Reasons to stop that are failures: OpenRouter says `error`, vLLM `abort`."""

_LENGTH = ("length", "max_tokens", "model_length")
_FILTERED = ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_")
"""Gemini's own words come through as well, in capitals."""

_LONG_AGO = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def cut_short(finish_reason: str) -> str | None:
    """Why the answer is incomplete; None when it is not."""
    reason = finish_reason.lower()
    if reason in _LENGTH:
        return "max_output_tokens"
    return "content_filter" if reason.startswith(_FILTERED) else None


def usage_of(said: Mapping[str, Any]) -> Usage:
    """`usage`, wherever the server puts the cached tokens (OpenAI, DeepSeek, Moonshot).

    Gemini and xAI leave the reasoning out of `completion_tokens`, but not out of `total_tokens`.
    """
    prompt, completion = _count(said.get("prompt_tokens")), _count(said.get("completion_tokens"))
    details = _object(said.get("prompt_tokens_details"))
    cached = details.get("cached_tokens") or said.get("prompt_cache_hit_tokens") or said.get("cached_tokens")
    reasoning = _count(_object(said.get("completion_tokens_details")).get("reasoning_tokens"))
    left_out = _count(said.get("total_tokens")) - prompt - completion
    if left_out > 0 and reasoning in (0, left_out):
        completion, reasoning = completion + left_out, left_out
    return Usage(prompt, min(_count(cached), prompt), completion, min(reasoning, completion))


def failure_of(said: Any) -> BridgeError:
    """An error object of a stream, or just a text. Its code may be an HTTP status, as a number (OpenRouter, Gemini)."""
    if not isinstance(said, dict):
        return error_from_object({"message": str(said)})
    code = said.get("code")
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0
    if 400 <= status <= 599:
        told = {name: value for name, value in said.items() if name != "code"}
        return error_from_status(status, {}, orjson.dumps({"error": told}), _LONG_AGO)
    return error_from_object(said)


def broken_off(finish_reason: str) -> UpstreamError:
    """The error of an answer that ends with one of `BROKEN_OFF` and no further word."""
    return UpstreamError(f"The provider broke the answer off ({finish_reason}). Try again.", severity="transient")


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return max(0, int(value)) if whole else 0
