"""What the scripted backend demands of a request (seed 001). A fault is a sentence; none means all is well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

CHATGPT_PATH = "/backend-api/codex/responses"
API_PATH = "/v1/responses"
TOKEN_PATH = "/oauth/token"

_MEMBERS = {
    "model", "instructions", "input", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "store", "stream",
    "include", "prompt_cache_key", "text", "service_tier", "client_metadata",
}  # fmt: skip
"""All that the ChatGPT backend takes; it refuses others by name."""

_TYPES: dict[str, type] = {
    "model": str,
    "instructions": str,
    "input": list,
    "tools": list,
    "parallel_tool_calls": bool,
    "include": list,
    "prompt_cache_key": str,
}


def request_faults(path: str, headers: list[tuple[str, str]], body: Any, account: str) -> Iterator[str]:
    """Everything that is wrong with a request for a response."""
    once = dict(headers)
    for name in ("authorization", "originator", "user-agent", "session_id", "accept", "content-type"):
        found = [value for header, value in headers if header == name]
        if len(found) != 1 or not found[0].strip():
            yield f"header {name}: {len(found)} times"
    if not once.get("user-agent", "").startswith("codex_cli_rs/"):
        yield "header user-agent: not codex_cli_rs/…"
    if once.get("accept") != "text/event-stream":
        yield "header accept: not text/event-stream"
    if once.get("content-type", "").partition(";")[0] != "application/json":
        yield "header content-type: not application/json"
    wanted = [account] if path == CHATGPT_PATH else []
    if [value for name, value in headers if name == "chatgpt-account-id"] != wanted:
        yield "header chatgpt-account-id: wrong for this mode"
    if isinstance(body, dict):
        yield from _body_faults(body, once.get("session_id"), chatgpt=path == CHATGPT_PATH)
    else:
        yield "body: not a JSON object"


def token_faults(headers: list[tuple[str, str]], body: Any) -> Iterator[str]:
    """Everything that is wrong with a request for new tokens."""
    if dict(headers).get("content-type", "").partition(";")[0] != "application/json":
        yield "token: content-type is not application/json"
    if any(name in ("authorization", "cookie") for name, _ in headers):
        yield "token: credentials in the headers"
    wanted = {
        "client_id": "app_EMoamEEZ73f0CkXaXp7hrann",
        "grant_type": "refresh_token",
        "scope": "openid profile email",
    }
    if not isinstance(body, dict) or not isinstance(body.get("refresh_token"), str):
        yield "token: no refresh_token"
    elif {name: value for name, value in body.items() if name != "refresh_token"} != wanted:
        yield "token: wrong members"


def _body_faults(body: Json, session: str | None, *, chatgpt: bool) -> Iterator[str]:
    for name, kind in _TYPES.items():
        if not isinstance(body.get(name), kind):
            yield f"body {name}: not a {kind.__name__}"
    if body.get("stream") is not True:
        yield "body stream: not true"
    if body.get("store") is not False:
        yield "body store: not false"
    if "previous_response_id" in body:
        yield "body previous_response_id: not supported"
    if "reasoning.encrypted_content" not in (body.get("include") or ()):
        yield "body include: no reasoning.encrypted_content"
    if body.get("prompt_cache_key") != session:
        yield "body prompt_cache_key: not the session_id"
    if not isinstance(body.get("tool_choice"), str | dict):
        yield "body tool_choice: missing"
    if chatgpt and (unknown := sorted(body.keys() - _MEMBERS - {"previous_response_id"})):
        yield f"body: unsupported {', '.join(unknown)}"
    items = body.get("input")
    yield from _orphans([item for item in items if isinstance(item, dict)] if isinstance(items, list) else [])


def _orphans(items: list[Json]) -> Iterator[str]:
    """Outputs without their calls: the backend's own rule, in its own words."""
    for kind in ("function_call", "custom_tool_call"):
        called = {item.get("call_id") for item in items if item.get("type") == kind}
        for item in items:
            if item.get("type") == f"{kind}_output" and item.get("call_id") not in called:
                yield f"No tool call found for {kind.replace('_', ' ')} output with call_id {item.get('call_id')}."
