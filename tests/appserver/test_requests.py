"""What the child asks is answered at once, and with no."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bridge.appserver import calls as requests
from bridge.appserver.calls import answer_request

ANSWERS: dict[str, Any] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "item/tool/requestUserInput": {"answers": {}},
    "mcpServer/elicitation/request": {"action": "decline"},
    "execCommandApproval": {"decision": "denied"},
    "applyPatchApproval": {"decision": "denied"},
}


def ask(**message: Any) -> dict[str, Any]:
    """The reply to a request of the child's."""
    reply = answer_request(orjson.dumps(message))
    assert b"\n" not in reply
    answer: dict[str, Any] = orjson.loads(reply)
    return answer


@pytest.mark.parametrize(("method", "result"), ANSWERS.items())
def test_approvals_are_declined_and_questions_stay_empty(method: str, result: Any) -> None:
    """Each known question has its safe answer, though the child leaves `jsonrpc` out and adds members."""
    reply = ask(method=method, id=7, params={"threadId": "t", "command": ["rm"]}, emittedAtMs=1)
    assert reply["id"] == 7
    assert reply["result"] == result


def test_a_tool_of_codex_is_not_available() -> None:
    """A dynamic tool call fails with a text for the model."""
    result = ask(method="item/tool/call", id="a", params={"tool": "x", "arguments": {}})["result"]
    assert result["success"] is False
    assert result["contentItems"][0]["type"] == "inputText"


@pytest.mark.parametrize("method", ["item/permissions/requestApproval", "currentTime/read", "no/such", ""])
def test_everything_else_is_an_error(method: str) -> None:
    """Permissions and unknown requests get an error, which Codex takes as a refusal."""
    reply = ask(method=method, id=1, params={})
    assert reply["id"] == 1
    assert "result" not in reply
    assert isinstance(reply["error"]["code"], int)


@pytest.mark.parametrize("method", [*requests.ANSWERS, "no/such"])
@pytest.mark.parametrize("params", [{"a": 1}, {}, [1, 2], None, 5, "x"])
@pytest.mark.parametrize("call_id", [0, "a", -1, None])
def test_a_request_of_any_shape_is_answered_under_its_id(method: str, params: Any, call_id: Any) -> None:
    """No parameters can keep a request from its reply."""
    reply = ask(method=method, params=params, id=call_id)
    assert reply["id"] == call_id
    assert ("result" in reply) != ("error" in reply)


def test_no_answer_grants_anything() -> None:
    """No known answer says yes."""
    words = orjson.dumps([ask(method=method, id=1).get("result") for method in requests.ANSWERS])
    for yes in (b"accept", b"approved", b"true"):
        assert yes not in words
