"""Normalised requests: equal requests are equal, however a client spells them. Pure.

Two requests are equal when nothing differs that could change the answer: neither the order of members, nor a text
spelled as a list of one part, nor streaming, nor what `ignore` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from bridge import exact_json
from bridge.errors import UsageError
from bridge.exact_json import member
from bridge.protocols.cap.decoder import effective_meta
from bridge.protocols.reading import shape_of

IGNORED = (
    "background",
    "client_metadata",
    "generate",
    "include_usage",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_id",
    "stream_options",
    "user",
)
"""Members of a request that do not reach the model."""
_WISHES = (
    "approval_policy",
    "cwd",
    "effort",
    "instructions",
    "locale",
    "model",
    "output_schema",
    "sandbox",
    "summary",
    "timezone",
)
"""Members of `meta` in a CAP request that change the answer. The current encoder decides which events are sent."""


class Ignore:
    """Paths of members that do not count, such as `input.*.id`; `*` is any one name or index."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._paths = [tuple(path.split(".")) for path in (*IGNORED, *paths)]
        if any(not name for path in self._paths for name in path):
            raise UsageError("--ignore takes the path of a member, such as input.*.id or metadata.")

    def strip(self, value: Any) -> Any:
        """The same value without these members."""
        for path in self._paths:
            value = _without(value, path)
        return value


def normalise(body: dict[str, Any], protocol: str, ignore: Ignore) -> dict[str, Any]:
    """A request in its one spelling."""
    kept = ignore.strip(body)
    if protocol == "cap":
        return _normalise_cap(kept)
    name = "input" if shape_of(body, protocol) == "responses" else "messages"
    said = kept.get(name)
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    others = {name: value for name, value in kept.items() if name not in ("input", "messages", "model")}
    return {
        "model": str(kept.get("model", "")).lower(),
        name: [_normalise_item(item) for item in items] if isinstance(items, list) else items,
        **_without_nulls(others),
    }


def fingerprint(request: dict[str, Any]) -> bytes:
    """The same for equal requests that are normalised."""
    return blake2b(exact_json.dumps(request, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _normalise_cap(body: dict[str, Any]) -> dict[str, Any]:
    """A ServiceRequest without its id, its sender and its session, and without members that change no answer."""
    payload, wishes = body.get("payload"), effective_meta(member(body, "payload", "meta"))
    asked = {name: member(payload, name) or None for name in ("query", "files", "conversation_id")}
    wished = {name: wishes[name] for name in _WISHES if wishes.get(name) is not None}
    if isinstance(wished.get("model"), str):
        wished["model"] = wished["model"].lower()
    agent = member(body, "context", "agent", "id")
    spelled: dict[str, Any] = {
        "context": None if agent is None else {"agent": {"id": agent}},
        "payload": {**asked, "meta": wished or None},
    }
    found: dict[str, Any] = _without_nulls(spelled)
    return found


def _normalise_item(item: Any) -> Any:
    """A message, a call or an output, without ids from a store, and with a text instead of a list of one text."""
    spelled = _without_nulls(item)
    if not isinstance(spelled, dict):
        return spelled
    if "role" in spelled or "call_id" in spelled:
        spelled.pop("id", None)
        spelled.pop("status", None)
    if spelled.get("type") == "message":
        del spelled["type"]
    if "content" in spelled:
        spelled["content"] = _text(spelled["content"])
    return spelled


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(member) for member in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _text(content: Any) -> Any:
    """The only text of a message's content, or the content."""
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return content
    part = content[0]
    if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
        return content
    return content if part.keys() - {"type", "text", "annotations", "logprobs"} else part["text"]


def _without(value: Any, path: Sequence[str]) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(value, dict):
        names = value.keys() if name == "*" else value.keys() & {name}
        kept = {key: inner for key, inner in value.items() if rest or key not in names}
        return kept | {key: _without(value[key], rest) for key in names if rest}
    if isinstance(value, list) and (name == "*" or name.isdecimal()):
        hits = range(len(value)) if name == "*" else (int(name),)
        return [
            _without(inner, rest) if rest and index in hits else inner
            for index, inner in enumerate(value)
            if rest or index not in hits
        ]
    return value
