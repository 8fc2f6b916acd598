"""How much of the account's quota is left, as the child reports it: for headers and for GET /v1/rate-limits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from bridge.errors import BridgeError

_WINDOWS = ("primary", "secondary")
_HEADERS = {"usedPercent": "used-percent", "windowDurationMins": "window-minutes", "resetsAt": "reset-at"}
_LARGEST = 2**31 - 1
"""Codex reads these numbers as 32-bit integers, and refuses the whole answer if one is larger."""


def limit_headers(limits: Mapping[str, Any] | None) -> list[tuple[bytes, bytes]]:
    """The headers that Codex's own clients read: `x-codex-primary-used-percent` and so on."""
    headers = []
    for window in _WINDOWS:
        known = (limits or {}).get(window)
        for member, name in _HEADERS.items():
            value = known.get(member) if isinstance(known, dict) else None
            if isinstance(value, int | float):
                headers.append((f"x-codex-{window}-{name}".encode(), str(value).encode()))
    return headers


def limits_object(limits: Mapping[str, Any] | None, now: float) -> dict[str, Any]:
    """The body of GET /v1/rate-limits: each window with what is used, and when it resets."""
    windows = {}
    for window in _WINDOWS:
        known = (limits or {}).get(window)
        if isinstance(known, dict):
            resets_at = known.get("resetsAt")
            windows[window] = {
                "used_percent": known.get("usedPercent"),
                "window_minutes": known.get("windowDurationMins"),
                "resets_at": resets_at,
                "resets_in_seconds": max(0, int(resets_at - now)) if isinstance(resets_at, int | float) else None,
            }
    return {
        "object": "rate_limits",
        "known": bool(windows),
        "plan": (limits or {}).get("planType"),
        "reached": (limits or {}).get("rateLimitReachedType"),
        **{window: windows.get(window) for window in _WINDOWS},
        "credits": (limits or {}).get("credits"),
    }


def codex_usage(limits: Mapping[str, Any] | None, now: float) -> dict[str, Any]:
    """The same in the form that Codex reads from its own backend, to show the limits to its user."""
    known = limits or {}
    windows = {f"{window}_window": _codex_window(known.get(window), now) for window in _WINDOWS}
    is_reached = any(window is not None and window["used_percent"] >= 100 for window in windows.values())
    credit, plan = known.get("credits"), known.get("planType")
    return {
        "plan_type": plan if isinstance(plan, str) and plan != "unknown" else "guest",
        "rate_limit": {"allowed": not is_reached, "limit_reached": is_reached, **windows}
        if any(windows.values())
        else None,
        "credits": {
            "has_credits": credit.get("hasCredits") is True,
            "unlimited": credit.get("unlimited") is True,
            "balance": balance if isinstance(balance := credit.get("balance"), str) else None,
        }
        if isinstance(credit, dict)
        else None,
    }


def _codex_window(window: Any, now: float) -> dict[str, int] | None:
    """A window in whole numbers, as Codex requires; None if it is not known whole."""
    values = [window.get(member) for member in _HEADERS] if isinstance(window, dict) else [None]
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) != len(_HEADERS):
        return None
    used, minutes, resets_at = (min(max(0, int(number)), _LARGEST) for number in numbers)
    return {
        "used_percent": used,
        "limit_window_seconds": min(minutes * 60, _LARGEST),
        "reset_after_seconds": min(max(0, resets_at - int(now)), _LARGEST),
        "reset_at": resets_at,
    }


def add_reset_time(error: BridgeError, limits: Mapping[str, Any] | None, now: float) -> None:
    """Add to an error about a used-up quota when the quota resets, if that is known."""
    if error.code != "insufficient_quota" or error.retry_after is not None:
        return
    resets = [
        known["resetsAt"]
        for window in _WINDOWS
        if isinstance(known := (limits or {}).get(window), dict)
        and isinstance(known.get("resetsAt"), int | float)
        and isinstance(known.get("usedPercent"), int | float)
        and known["usedPercent"] >= 100
    ]
    if resets and max(resets) > now:
        error.retry_after = max(resets) - now
        at = datetime.fromtimestamp(max(resets), UTC).strftime("%Y-%m-%d %H:%M UTC")
        error.message += f" The limit resets at {at}."
