"""What we answer when the child asks: at once, and always no.

A request that nobody answers stalls its turn for ever, so every one gets a reply: approvals are declined, questions
to the user stay empty, everything unknown is an error (which Codex takes as a refusal and goes on).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from jsonrpcserver import Error, Result, Success, dispatch_to_serializable

Answer = Callable[..., Result]


def _always(result: dict[str, Any]) -> Answer:
    def answer(*_: Any, **__: Any) -> Result:
        return Success(result)

    return answer


def _refuse(message: str) -> Answer:
    def answer(*_: Any, **__: Any) -> Result:
        return Error(code=-32000, message=message)

    return answer


TOOL_CALL = "item/tool/call"

METHODS: dict[str, Answer] = {
    # the current dialect
    "item/commandExecution/requestApproval": _always({"decision": "decline"}),
    "item/fileChange/requestApproval": _always({"decision": "decline"}),
    "item/permissions/requestApproval": _refuse("permissions are not granted through the bridge"),
    "item/tool/requestUserInput": _always({"answers": {}}),
    "mcpServer/elicitation/request": _always({"action": "decline"}),
    TOOL_CALL: _always(
        {
            "contentItems": [{"type": "inputText", "text": "this tool is not available"}],
            "success": False,
        }
    ),
    # the legacy dialect
    "execCommandApproval": _always({"decision": "denied"}),
    "applyPatchApproval": _always({"decision": "denied"}),
}


def answer_request(line: bytes) -> bytes:
    """The reply line (without newline) to one request of the child's.

    jsonrpcserver's synchronous dispatch does the work, with a validator that lets everything pass: the default one
    insists on a `jsonrpc` member, which Codex leaves out. (Its asynchronous dispatch needs asyncio.)
    """
    reply = dispatch_to_serializable(line, methods=METHODS, deserializer=orjson.loads, validator=lambda _: None)
    return orjson.dumps(reply)
