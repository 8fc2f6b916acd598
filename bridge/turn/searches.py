"""What a search of the web did, in the words of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MEMBERS = {"search": ("type", "query", "queries", "sources"), "open_page": ("type", "url")}


def search_action(told: Mapping[str, Any]) -> dict[str, Any]:
    """An action as clients' types know it, from what claims to be one; what they do not know is left out.

    An action of a kind that nobody knows is a search for its query.
    """
    kind = told.get("type")
    action = {name: value for name, value in told.items() if _fits(name, value)}
    if kind == "find_in_page":
        return {"type": kind, "url": action.get("url") or "", "pattern": action.get("pattern") or ""}
    known = _MEMBERS.get(kind) if isinstance(kind, str) else None
    if known is None:
        return {"type": "search", "query": action.get("query") or ""}
    return {name: value for name, value in action.items() if name in known}


def _fits(name: str, value: Any) -> bool:
    if name in ("query", "url", "pattern"):
        return value is None or isinstance(value, str)
    if name in ("queries", "sources"):
        member_fits = _is_text if name == "queries" else _is_source
        return isinstance(value, list) and all(map(member_fits, value))
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_source(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "url" and isinstance(value.get("url"), str)
