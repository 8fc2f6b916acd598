"""The Gemini API as a client uses it: keys, streams in both forms, models, and what is wrong with a request."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPResponse
from typing import Any

import orjson
import pytest
from harness import KEY, RunningBridge

BETA, STABLE = "/v1beta/models", "/v1/models"
HELLO = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
TOOL = {"functionDeclarations": [{"name": "look", "parameters": {"type": "OBJECT"}}]}


def send(
    bridge: RunningBridge, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[HTTPResponse, bytes]:
    """One exchange with Google's header for the key."""
    given = {"x-goog-api-key": KEY, "content-type": "application/json"} if headers is None else headers
    connection = HTTPConnection("127.0.0.1", bridge.port, timeout=10)
    try:
        connection.request(method, path, b"" if body is None else orjson.dumps(body), given)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def answer(bridge: RunningBridge, path: str, body: Any = HELLO) -> Any:
    response, data = send(bridge, "POST", path, body)
    assert response.status == 200, data
    return orjson.loads(data)


def refused(bridge: RunningBridge, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    """The error of a request; a good one is answered after it."""
    response, data = send(bridge, "POST", path, body)
    error: dict[str, Any] = orjson.loads(data)["error"]
    assert response.status == error["code"] == status, data
    assert set(error) == {"code", "message", "status", "details"}
    assert answer(bridge, f"{BETA}/mock-echo:generateContent")["candidates"]
    return error


@pytest.mark.parametrize("base", [BETA, STABLE])
def test_a_text(mock_bridge: RunningBridge, base: str) -> None:
    """The whole answer, under both versions of the API."""
    found = answer(mock_bridge, f"{base}/mock-echo:generateContent")
    assert found["candidates"] == [
        {"content": {"parts": [{"text": "hello"}], "role": "model"}, "index": 0, "finishReason": "STOP"}
    ]
    assert found["modelVersion"] == "mock-echo"
    assert found["usageMetadata"]["totalTokenCount"] > 0


@pytest.mark.parametrize("base", [BETA, STABLE])
def test_a_stream_has_two_forms(mock_bridge: RunningBridge, base: str) -> None:
    """Server-sent events with `alt=sse`, otherwise a JSON array of the same chunks."""
    path = f"{base}/mock-text:streamGenerateContent"
    response, data = send(mock_bridge, "POST", f"{path}?alt=sse", HELLO)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [orjson.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]
    response, data = send(mock_bridge, "POST", path, HELLO)
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    for chunks in (events, orjson.loads(data)):
        parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
        assert "".join(part["text"] for part in parts) == "mock response text"
        assert [chunk["candidates"][0].get("finishReason") for chunk in chunks][-1] == "STOP"


def test_a_call_and_its_response(mock_bridge: RunningBridge) -> None:
    """Its id may be left out: then the name decides."""
    path = f"{BETA}/mock-tool-loop:generateContent"
    (part,) = answer(mock_bridge, path, {**HELLO, "tools": [TOOL]})["candidates"][0]["content"]["parts"]
    call = part["functionCall"]
    assert (call["name"], call["args"]) == ("look", {})
    response = {"functionResponse": {"name": "look", "response": {"output": "found it"}}}
    del call["id"]
    contents = [*HELLO["contents"], {"role": "model", "parts": [part]}, {"role": "user", "parts": [response]}]
    found = answer(mock_bridge, path, {"contents": contents, "tools": [TOOL]})
    assert "found it" in found["candidates"][0]["content"]["parts"][0]["text"]


def test_several_candidates(mock_bridge: RunningBridge) -> None:
    body = {**HELLO, "generationConfig": {"candidateCount": 2}}
    found = answer(mock_bridge, f"{BETA}/mock-echo:generateContent", body)
    assert [each["index"] for each in found["candidates"]] == [0, 1]
    assert [each["content"]["parts"] for each in found["candidates"]] == [[{"text": "hello"}]] * 2


def test_tokens_are_estimated(mock_bridge: RunningBridge) -> None:
    """Of the contents, or of a whole request."""
    path = f"{BETA}/mock-echo:countTokens"
    plain = answer(mock_bridge, path)
    assert plain["totalTokens"] > 0
    assert answer(mock_bridge, path, {"generateContentRequest": {"model": "models/mock-echo", **HELLO}}) == plain


def test_models(mock_bridge: RunningBridge) -> None:
    """In pages, and one by one; at the stable path for clients that send Google's header."""
    names = []
    token = "0"
    while token:
        _, data = send(mock_bridge, "GET", f"{BETA}?pageSize=3&pageToken={token}")
        page = orjson.loads(data)
        names += [model["name"] for model in page["models"]]
        token = page.get("nextPageToken", "")
    assert "models/mock-echo" in names
    assert [model["name"] for model in orjson.loads(send(mock_bridge, "GET", STABLE)[1])["models"]] == names
    model = orjson.loads(send(mock_bridge, "GET", f"{BETA}/mock-echo")[1])
    assert (model["name"], model["supportedGenerationMethods"][0]) == ("models/mock-echo", "generateContent")
    response, data = send(mock_bridge, "GET", f"{BETA}/absent")
    assert (response.status, orjson.loads(data)["error"]["status"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("base", [BETA, STABLE])
def test_the_key_may_be_in_the_query(mock_bridge: RunningBridge, base: str) -> None:
    """Only where Google's clients send it there, and only if it is right."""
    path, headers = f"{base}/mock-echo:generateContent", {"content-type": "application/json"}
    assert send(mock_bridge, "POST", f"{path}?key={KEY}", HELLO, headers)[0].status == 200
    for query in ("", "?key=wrong", f"?key={KEY}&key={KEY}", f"?api_key={KEY}"):
        response, data = send(mock_bridge, "POST", path + query, HELLO, headers)
        assert (response.status, orjson.loads(data)["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert send(mock_bridge, "POST", f"{base}/mock-echo:countTokens?key={KEY}", HELLO, headers)[0].status == 200
    assert send(mock_bridge, "GET", f"/v1/usage?key={KEY}", None, headers)[0].status == 401


def test_what_is_dropped_is_named(mock_bridge: RunningBridge) -> None:
    body = {
        **HELLO,
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "cached_content": "cachedContents/1",
        "tools": [{"codeExecution": {}}],
        "generationConfig": {"topK": 5, "seed": 1},
    }
    response, _ = send(mock_bridge, "POST", f"{BETA}/mock-echo:generateContent", body)
    dropped = response.headers["x-bridge-dropped"].split(",")
    assert set(dropped) >= {"safetySettings", "cachedContent", "tools:codeExecution", "topK", "seed"}


def content(role: str, *parts: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": "hi"}]}, {"role": role, "parts": list(parts)}]}


PART = "contents[1].parts[0]"
CONFIG = "generationConfig"
CALLING = "toolConfig.functionCallingConfig"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"contents": None}, "contents"),
    ({"contents": []}, "contents"),
    ({"contents": "hi"}, "contents"),
    ({"contents": [5]}, "contents[0]"),
    ({"contents": [{}]}, "contents[0].parts"),
    ({"contents": [{"role": "assistant", "parts": [{"text": "hi"}]}]}, "contents[0].role"),
    ({"contents": [{"parts": "hi"}]}, "contents[0].parts"),
    ({"contents": [{"parts": []}]}, "contents"),
    (content("user", 5), PART),
    (content("user", {}), PART),
    (content("user", {"text": 5}), f"{PART}.text"),
    (content("user", {"video": {}}), PART),
    (content("user", {"functionCall": {"name": "f"}}), PART),
    (content("model", {"functionResponse": {"name": "f"}}), PART),
    (content("user", {"functionResponse": {"name": "f", "response": {}}}), "contents"),
    (content("user", {"functionResponse": {"response": {}}}), f"{PART}.functionResponse.name"),
    (content("user", {"functionResponse": {"name": "f", "response": 5}}), "contents"),
    (content("model", {"functionCall": {}}), f"{PART}.functionCall.name"),
    (content("model", {"functionCall": {"name": "a b"}}), f"{PART}.functionCall.name"),
    (content("model", {"functionCall": {"name": "f", "args": "{}"}}), f"{PART}.functionCall.args"),
    (content("model", {"text": "x", "thoughtSignature": 5}), f"{PART}.thoughtSignature"),
    (content("user", {"inlineData": {"data": "AA=="}}), f"{PART}.inlineData.mimeType"),
    (content("user", {"inlineData": {"mimeType": "image/png"}}), f"{PART}.inlineData.data"),
    (content("user", {"inlineData": {"mimeType": "audio/wav", "data": "AA=="}}), PART),
    (content("user", {"inlineData": {"mimeType": "application/pdf", "data": "A"}}), f"{PART}.inlineData.data"),
    (content("user", {"inline_data": {"mime_type": "text/plain", "data": "/w=="}}), f"{PART}.inlineData.data"),
    (content("user", {"fileData": {"mimeType": "video/mp4", "fileUri": "files/1"}}), PART),
    ({"systemInstruction": {"parts": [{"text": 5}]}}, "systemInstruction.parts.text"),
    ({"systemInstruction": 5}, "systemInstruction"),
    ({"tools": "all"}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"functionDeclarations": 5}]}, "tools[0].functionDeclarations"),
    ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
    (
        {"tools": [{"functionDeclarations": [{"name": "f", "parameters": []}]}]},
        "tools[0].functionDeclarations[0].parameters",
    ),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tools": [{"functionDeclarations": [{"name": f"f{number}"} for number in range(600)]}]}, "tools"),
    ({"toolConfig": 5}, "toolConfig"),
    ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, f"{CALLING}.mode"),
    (
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["absent"]}}},
        f"{CALLING}.allowedFunctionNames",
    ),
    ({CONFIG: 5}, CONFIG),
    ({CONFIG: {"maxOutputTokens": 0}}, f"{CONFIG}.maxOutputTokens"),
    ({CONFIG: {"temperature": 3}}, f"{CONFIG}.temperature"),
    ({CONFIG: {"candidateCount": 9}}, f"{CONFIG}.candidateCount"),
    ({CONFIG: {"stopSequences": ["x"] * 17}}, f"{CONFIG}.stopSequences"),
    ({CONFIG: {"responseMimeType": "text/x.enum"}}, f"{CONFIG}.responseMimeType"),
    ({CONFIG: {"responseSchema": "x"}}, f"{CONFIG}.responseSchema"),
    ({CONFIG: {"thinkingConfig": {"thinkingLevel": "DEEP"}}}, f"{CONFIG}.thinkingConfig.thinkingLevel"),
    ({CONFIG: {"thinkingConfig": {"thinkingBudget": -2}}}, f"{CONFIG}.thinkingConfig.thinkingBudget"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_member_is_named(mock_bridge: RunningBridge, fields: dict[str, Any], param: str) -> None:
    """400 INVALID_ARGUMENT, and the member as it is spelled in the API's documents."""
    error = refused(mock_bridge, f"{BETA}/mock-echo:generateContent", HELLO | fields)
    assert error["status"] == "INVALID_ARGUMENT"
    assert error["details"][0]["metadata"] == {"param": param}


def test_an_unknown_model(mock_bridge: RunningBridge) -> None:
    error = refused(mock_bridge, f"{BETA}/absent:generateContent", HELLO, 404)
    assert (error["status"], error["details"][0]["reason"]) == ("NOT_FOUND", "model_not_found")


def test_an_unknown_method(mock_bridge: RunningBridge) -> None:
    response, data = send(mock_bridge, "POST", f"{BETA}/mock-echo:embedContent", HELLO)
    assert response.status in (404, 405)
    assert orjson.loads(data)["error"]["code"] == response.status
