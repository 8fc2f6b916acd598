"""Records as lines: when, where to, what, and how it begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bridge import exact_json
from bridge.cli.log.table import show_time
from bridge.cli.log.terminal import Screen, cells, fit, one_line
from bridge.protolog.summary import Summary

_ARROWS = {
    ("http_ingress", "in"): "client →",
    ("client_egress", "out"): "client ←",
    ("backend_submission", "out"): "→ backend",
    ("backend_io", "out"): "→ backend",
    ("backend_io", "in"): "← backend",
}
_STYLES = {"client →": "cyan", "client ←": "cyan", "→ backend": "blue", "← backend": "blue"}
_KINDS = {"rpc_request": "", "rpc_notification": "", "rpc_response": "answer to ", "rpc_error": "error to "}


def show_frames(screen: Screen, summary: Summary, records: Iterable[dict[str, Any]]) -> None:
    """The records of one request, with the seconds since it came."""
    screen.line(screen.style(f"{one_line(summary.id)}  {show_time(summary.time).strip()}", "bold"))
    began: float | None = None
    for record in records:
        began = record["mono"] if began is None else began
        screen.line(show_record(screen, record, f"{record['mono'] - began:+10.4f}"))


def show_record(screen: Screen, record: dict[str, Any], when: str) -> str:
    """One record on one line."""
    arrow = _ARROWS.get((record["phase"], record.get("direction", "")), "· bridge")
    kind, method = str(record["kind"]), record.get("method")
    what = f"{_KINDS[kind]}{method}" if isinstance(method, str) and kind in _KINDS else kind
    attempt = str(record["req_id"] or "").partition("#")[2]
    what = one_line(f"#{attempt} {what}" if attempt else what)
    left = screen.width - len(when) - 12 - max(24, cells(what)) - 2
    said = fit(_content(record), left).rstrip() if left >= 8 else ""
    shown = screen.style(f"{arrow:9}", _STYLES.get(arrow, "magenta"))
    return f"{when}  {shown} {what}{' ' * max(1, 25 - cells(what))}{said}".rstrip()


def _content(record: dict[str, Any]) -> str:
    """What a record carries, without what all of its kind carry."""
    payload = record.get("payload")
    if isinstance(payload, str):
        return payload
    if isinstance(payload, dict):
        for name in ("params", "result", "error"):
            if "method" in payload or "id" in payload:
                inner = payload.get(name)
                if isinstance(inner, dict):
                    delta = inner.get("delta")
                    payload = delta if isinstance(delta, str) else inner
                    break
    if isinstance(payload, str):
        return payload
    return exact_json.dumps(payload, default=str)[:2000].decode("utf-8", "replace")
