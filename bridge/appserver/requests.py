"""What we answer when the child asks: at once, and always no.

A request that nobody answers stalls its turn for ever, so every one gets a reply: approvals are declined, questions
to the user stay empty, everything unknown is an error (which Codex takes as a refusal and goes on).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import orjson

from bridge.counts import OTHER

TOOL_CALL = "item/tool/call"

ANSWERS: dict[str, dict[str, Any]] = {
    # the current dialect
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "item/tool/requestUserInput": {"answers": {}},
    "mcpServer/elicitation/request": {"action": "decline"},
    TOOL_CALL: {
        "contentItems": [{"type": "inputText", "text": "this tool is not available"}],
        "success": False,
    },
    # the legacy dialect
    "execCommandApproval": {"decision": "denied"},
    "applyPatchApproval": {"decision": "denied"},
}
"""What is answered, by method."""

REFUSALS = {"item/permissions/requestApproval": "permissions are not granted through the bridge"}
"""Methods that are answered with an error, and why."""


def known_request(method: str) -> str:
    """The method as it is counted: one that Codex is known to ask with, or `other`."""
    return method if method in ANSWERS or method in REFUSALS else OTHER


@cache
def _methods() -> dict[str, Any]:
    """The methods for jsonrpcserver, which brings five megabytes along: loaded when a child first asks."""
    from jsonrpcserver import Error, Success

    def answer(method: str) -> Any:
        if method in REFUSALS:
            return lambda *_, **__: Error(code=-32000, message=REFUSALS[method])
        return lambda *_, **__: Success(ANSWERS[method])

    return {method: answer(method) for method in (*ANSWERS, *REFUSALS)}


def answer_tool_call(line: bytes, output_of: Callable[[str], dict[str, Any] | None]) -> bytes | None:
    """The reply to `item/tool/call`, where the output of that call is known."""
    message = orjson.loads(line)
    call_id = message["params"].get("callId")
    result = output_of(call_id) if isinstance(call_id, str) else None
    return None if result is None else orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})


def answer_request(line: bytes) -> bytes:
    """The reply line (without newline) to one request of the child's.

    jsonrpcserver's synchronous dispatch does the work, with a validator that lets everything pass: the default one
    insists on a `jsonrpc` member, which Codex leaves out. (Its asynchronous dispatch needs asyncio.)
    """
    from jsonrpcserver import dispatch_to_serializable

    reply = dispatch_to_serializable(line, methods=_methods(), deserializer=orjson.loads, validator=lambda _: None)
    return orjson.dumps(reply)
