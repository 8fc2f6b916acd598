"""Which recording answers a request: the one whose request says the same. Pure.

Two requests are the same when nothing differs that could change the answer: not the order of members, the spelling of a
text as a list of one part, or whether it is streamed; nor what is named in `ignore`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Literal

import orjson

from bridge import exact_json
from bridge.api.shape import shape_of
from bridge.errors import UsageError
from bridge.protolog.assist import wishes_of
from bridge.protolog.loose import member
from bridge.turn.turn import Endpoint

Spoken = Endpoint | Literal["cap"]
"""The protocol of a request."""

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
"""Members of a request that say nothing to the model."""
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
"""What `meta` of a CAP request may say that changes the answer. Which events are told is up to today's encoder."""

Leaf = tuple[str, str]
"""A place in a request (`input.0.content`), and what stands there."""
MAX_SHOWN = 120
MAX_DIFFERENCES = 3


class Ignore:
    """Places that do not count: names with dots between, `*` for any one name or number."""

    def __init__(self, places: Iterable[str] = ()) -> None:
        self._places = [tuple(name.split(".")) for name in (*IGNORED, *places)]
        if any(not name for place in self._places for name in place):
            raise UsageError("--ignore takes members of a request with dots between, such as input.*.id or metadata.")

    def strip(self, value: Any) -> Any:
        """The same value without those places."""
        for place in self._places:
            value = _without(value, place)
        return value


def normalise(body: dict[str, Any], spoken: Spoken, ignore: Ignore) -> dict[str, Any]:
    """A request, spelled in one way: without members that are null, and the same items in the same words."""
    kept = ignore.strip(body)
    if spoken == "cap":
        return _assist(kept)
    shape = shape_of(body, spoken)
    said = kept.get("input") if shape == "responses" else kept.get("messages")
    others = {name: value for name, value in kept.items() if name not in ("input", "messages", "model")}
    return {
        "model": str(kept.get("model", "")).lower(),
        "input" if shape == "responses" else "messages": _messages(said),
        **_without_nulls(others),
    }


def fingerprint(body: dict[str, Any], spoken: Spoken, ignore: Ignore) -> bytes:
    """The same for requests that are the same."""
    same = exact_json.dumps(normalise(body, spoken, ignore), option=orjson.OPT_SORT_KEYS)
    return blake2b(same, digest_size=16).digest()


def leaves(body: dict[str, Any], spoken: Spoken, ignore: Ignore) -> frozenset[Leaf]:
    """All that a request says, place by place; how near two requests are is how many of them they share."""
    return frozenset(_leaves(normalise(body, spoken, ignore), ""))


def nearness(one: frozenset[Leaf], other: frozenset[Leaf]) -> float:
    """From 0, nothing in common, to 1, the same."""
    return len(one & other) / (len(one | other) or 1)


def differences(asked: frozenset[Leaf], recorded: frozenset[Leaf]) -> list[str]:
    """What a person should look at, the first few places in which two requests differ."""
    here, there = dict(asked), dict(recorded)
    places = sorted({place for place, _ in asked ^ recorded})
    said = []
    for place in places[:MAX_DIFFERENCES]:
        if place not in there:
            said.append(f"{place} is {_shown(here[place])}, which the recording does not have")
        elif place not in here:
            said.append(f"{place} is missing; the recording has {_shown(there[place])}")
        else:
            said.append(f"{place} is {_shown(here[place])}, recorded was {_shown(there[place])}")
    if len(places) > MAX_DIFFERENCES:
        said.append(f"{len(places) - MAX_DIFFERENCES} more")
    return said


def _assist(body: dict[str, Any]) -> dict[str, Any]:
    """A ServiceRequest: neither who asks, in which session and under which id, nor names that nobody looks at."""
    payload, wishes = body.get("payload"), wishes_of(body)
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


def _messages(said: Any) -> Any:
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    return [_item(item) for item in items] if isinstance(items, list) else items


def _shown(value: str) -> str:
    return value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}… ({len(value)} characters)"


def _item(item: Any) -> Any:
    """A message, a call or an output, without the ids that a store gives, and with a text instead of a list of one."""
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
    """The one text of a message's content, however it was written."""
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return content
    part = content[0]
    if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
        return content
    return content if part.keys() - {"type", "text", "annotations", "logprobs"} else part["text"]


def _without(value: Any, place: Sequence[str]) -> Any:
    name, rest = place[0], place[1:]
    if isinstance(value, dict):
        kept = {}
        for key, member in value.items():
            if name not in ("*", key):
                kept[key] = member
            elif rest:
                kept[key] = _without(member, rest)
        return kept
    if isinstance(value, list) and (name == "*" or name.isdecimal()):
        hit = [name == "*" or int(name) == index for index in range(len(value))]
        return [
            _without(member, rest) if found else member
            for member, found in zip(value, hit, strict=True)
            if rest or not found
        ]
    return value


def _leaves(value: Any, place: str) -> Iterator[Leaf]:
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from _leaves(member, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value:
        for index, member in enumerate(value):
            yield from _leaves(member, f"{place}.{index}" if place else str(index))
    else:
        yield place, exact_json.dumps(value).decode()
