"""Either body on either path: what a client sends decides how it is read, where it sends it decides how it is answered.

Cursor sends Responses bodies to /v1/chat/completions, others chat bodies to /v1/responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge.api.chat.request import parse_chat
from bridge.api.responses.request import parse_responses
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Endpoint, Turn


def shape_of(data: dict[str, Any], path: Endpoint) -> Endpoint:
    """Whose body this is. One with both `input` and `messages`, or neither, is its path's own."""
    has_input, has_messages = data.get("input") is not None, data.get("messages") is not None
    if has_input == has_messages:
        return path
    return "responses" if has_input else "chat"


def parse_request(
    data: dict[str, Any],
    path: Endpoint,
    resolve: Callable[[str], ModelChoice],
    context: Sequence[dict[str, Any]] = (),
) -> Turn:
    """The Turn of a body that came to `path`; `context` are the items of a response that it continues."""
    if shape_of(data, path) == "chat":
        return parse_chat(data, resolve, context)
    return parse_responses(data, resolve, context)
