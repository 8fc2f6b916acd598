"""What every version of Codex is tried with: a bridge over the real binary, in front of a scripted provider.

A check is a function; it fails by an AssertionError whose text says what was seen. Both client endpoints are used.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real.provider import DEFAULT_TEXT, offered_tools
from real.rig import CHAT, LOOK, RESPONSES, Answer, Api, Rig, Target, said, start_rig

Json = dict[str, Any]
Check = Callable[[Rig, Api], None]
CALL = {"name": "look", "arguments": '{"q": "tea"}'}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
    "RU5ErkJggg=="
)


@dataclass
class Result:
    """What was seen of one version."""

    version: str
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by the name of the check."""
    passed: int = 0
    figures: dict[str, Any] = field(default_factory=dict)


def expect(answer: Answer, **wanted: Any) -> None:
    for name, value in wanted.items():
        seen = getattr(answer, name)
        assert seen == value, f"{name} is {seen!r} instead of {value!r}; the answer: {answer}"


def conversation(api: Api, *items: Json, **more: Any) -> Json:
    return api.body("", **more) | {"messages" if api is CHAT else "input": list(items)}


def check_text(rig: Rig, api: Api) -> None:
    expect(rig.ask(api, "hello"), status=200, text=DEFAULT_TEXT, end=api.done)


def check_stream(rig: Rig, api: Api) -> None:
    action = {"do": "text", "pieces": ["one ", "two ", "three"]}
    expect(rig.ask(api, action, stream=True), status=200, text="one two three", end=api.done)


def check_one_model_call_per_request(rig: Rig, api: Api) -> None:
    before = len(rig.provider.requests)
    rig.ask(api, "hello")
    count = len(rig.provider.requests) - before
    assert count == 1, f"the provider received {count} requests for one"


def check_system_prompt(rig: Rig, api: Api) -> None:
    body = rig.prompt_of(
        api, conversation(api, {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"})
    )
    assert "Be brief." in json.dumps(body), "the developer's text did not reach the provider"


def check_history(rig: Rig, api: Api) -> None:
    turns = [("user", "find tea"), ("assistant", "Which kind?"), ("user", "green")]
    body = rig.prompt_of(api, conversation(api, *({"role": role, "content": text} for role, text in turns)))
    sent = json.dumps(body["input"])
    positions = [sent.find(text) for _, text in turns]
    assert -1 not in positions, "a message of the history did not reach the provider"
    assert positions == sorted(positions), "the history reached the provider in another order"


def check_reasoning(rig: Rig, api: Api) -> None:
    action = {"do": "reasoning", "summary": ["thinking hard"], "pieces": ["done"]}
    answer = rig.ask(api, action, stream=True)
    expect(answer, status=200, text="done")
    assert "thinking hard" in answer.reasoning, f"the reasoning is {answer.reasoning!r}"


def check_usage(rig: Rig, api: Api) -> None:
    action = {"do": "text", "pieces": ["x"], "usage": {"input": 40, "cached": 30, "output": 9, "reasoning": 4}}
    expect(rig.ask(api, action), usage=(40, 30, 9, 4))


def check_tool_call(rig: Rig, api: Api) -> None:
    expect(rig.ask(api, {"do": "calls", "calls": [CALL]}, tools=[LOOK]), status=200)
    answer = rig.ask(api, {"do": "calls", "calls": [CALL]}, tools=[LOOK], stream=True)
    assert [name for name, _ in answer.calls] == ["look"], f"the calls are {answer.calls}"
    assert json.loads(answer.calls[0][1]) == {"q": "tea"}, f"the calls are {answer.calls}"


def check_parallel_tool_calls(rig: Rig, api: Api) -> None:
    second = {"name": "look", "arguments": '{"q": "coffee"}'}
    answer = rig.ask(api, {"do": "calls", "calls": [CALL, second]}, tools=[LOOK])
    wanted = [{"q": "tea"}, {"q": "coffee"}]
    assert [json.loads(arguments) for _, arguments in answer.calls] == wanted, f"the calls are {answer.calls}"


def check_tool_output(rig: Rig, api: Api) -> None:
    prompt = said({"do": "calls", "calls": [CALL]})
    if api is CHAT:
        function = {"id": "call_1", "type": "function", "function": CALL}
        items: list[Json] = [
            {"role": "user", "content": prompt},
            {"role": "assistant", "tool_calls": [function]},
            {"role": "tool", "tool_call_id": "call_1", "content": "green"},
        ]
    else:
        items = [
            {"role": "user", "content": prompt},
            {"type": "function_call", "call_id": "call_1", **CALL},
            {"type": "function_call_output", "call_id": "call_1", "output": "green"},
        ]
    answer = rig.send(api, conversation(api, *items, tools=[LOOK]))
    expect(answer, status=200)
    assert "green" in json.dumps(rig.provider.requests[-1].body["input"]), "the output did not reach the provider"


def check_large_tool_output(rig: Rig, api: Api) -> None:
    """Codex cuts the outputs of tools unless the bridge prevents it."""
    text = "".join(f"{number:07d}\n" for number in range(12_000))
    items: list[Json] = [
        {"role": "user", "content": "read it"},
        {"type": "function_call", "call_id": "call_1", **CALL},
        {"type": "function_call_output", "call_id": "call_1", "output": text},
        {"role": "user", "content": "and now?"},
    ]
    body = rig.prompt_of(RESPONSES, conversation(RESPONSES, *items))
    arrived = json.dumps(body["input"]).count("\\n")
    assert arrived >= 12_000, f"of 12,000 lines of a tool's output, {arrived} reached the provider"


def check_image(rig: Rig, api: Api) -> None:
    if api is CHAT:
        parts: list[Json] = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    else:
        parts = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": PIXEL}]
    body = rig.prompt_of(api, conversation(api, {"role": "user", "content": parts}))
    assert "input_image" in json.dumps(body), "the image did not reach the provider"


def check_incomplete(rig: Rig, api: Api) -> None:
    expect(rig.ask(api, {"do": "incomplete", "pieces": ["cut"]}), status=200, end=api.cut)


def _status(action: Json, status: int, code: str | None = None) -> Check:
    def check(rig: Rig, api: Api) -> None:
        answer = rig.ask(api, action)
        assert answer.status == status, f"the status is {answer.status} instead of {status}: {answer.error}"
        if code is not None:
            assert answer.error.get("code") == code, f"the code is {answer.error.get('code')!r} instead of {code!r}"

    return check


def check_client_leaves(rig: Rig, api: Api) -> None:
    with rig.calling(api, {"do": "slow", "n": 400, "seconds": 20}):
        pass
    rig.provider.wait_gone(1, timeout=15)


TEXT_CHECKS: dict[str, Check] = {
    "text": check_text,
    "stream": check_stream,
    "one model call per request": check_one_model_call_per_request,
    "system prompt": check_system_prompt,
    "history": check_history,
    "reasoning": check_reasoning,
    "usage": check_usage,
    "tool call": check_tool_call,
    "parallel tool calls": check_parallel_tool_calls,
    "tool output": check_tool_output,
    "large tool output": check_large_tool_output,
    "image": check_image,
    "incomplete answer": check_incomplete,
    "error 400": _status({"do": "error", "status": 400, "message": "bad"}, 400),
    "error 401": _status({"do": "error", "status": 401}, 401),
    "error 429": _status({"do": "error", "status": 429, "code": "rate_limit_exceeded"}, 429),
    "error quota": _status({"do": "error", "status": 429, "code": "insufficient_quota"}, 429),
    "error 503": _status({"do": "error", "status": 503}, 503),
    "error context length": _status(
        {"do": "failed", "code": "context_length_exceeded", "message": "too long"}, 400, "context_length_exceeded"
    ),
    "unknown model": _status(
        {"do": "error", "status": 404, "code": "model_not_found", "message": "The model does not exist"}, 404
    ),
    "a client leaves": check_client_leaves,
}
NATIVE_CHECKS: dict[str, Check] = {
    f"native: {name}": TEXT_CHECKS[name]
    for name in ("text", "stream", "tool call", "parallel tool calls", "tool output")
}


def try_version(version: str, *, native: bool) -> Result:
    """Run all checks and measure the overhead. `native` adds those with Codex's dynamic tools."""
    result = Result(version)
    target = Target(version, "auto", injects=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        began = time.monotonic()
        with start_rig(Path(folder), target) as rig:
            if not _attempt(result, "starts and answers", check_text, rig, RESPONSES):
                return result
            result.figures["first answer, s"] = round(time.monotonic() - began, 1)
            for name, check in TEXT_CHECKS.items():
                for api in (RESPONSES, CHAT):
                    _attempt(result, f"{name}, {api}", check, rig, api)
            _measure(result, rig, "text")
            _attempt(result, "the cache key of a conversation is stable", _check_cache_key, rig, RESPONSES)
            began = time.monotonic()
        result.figures["stop, s"] = round(time.monotonic() - began, 1)
    if native:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            start_rig(Path(folder), target, PROXY_TOOL_MODE="native") as rig,
        ):
            for name, check in NATIVE_CHECKS.items():
                for api in (RESPONSES, CHAT):
                    _attempt(result, f"{name}, {api}", check, rig, api)
            _measure(result, rig, "native")
    return result


def _attempt(result: Result, name: str, check: Check, rig: Rig, api: Api) -> bool:
    try:
        check(rig, api)
    except Exception as error:  # whatever goes wrong with this version is a finding
        result.failed[name] = " ".join(f"{error or type(error).__name__}".split())[:300]
        return False
    result.passed += 1
    return True


def _measure(result: Result, rig: Rig, mode: str) -> None:
    """The bytes and tools that reach the provider besides the client's."""
    try:
        plain = rig.prompt_of(RESPONSES, RESPONSES.body("x"))
        tooled = rig.prompt_of(RESPONSES, RESPONSES.body("x", tools=[LOOK]))
    except Exception as error:
        result.failed[f"overhead, {mode}"] = str(error)[:300]
        return
    if mode == "text":
        result.figures["bytes, plain"] = len(json.dumps(plain))
        result.figures["tools of its own"] = sorted(offered_tools(plain))
    result.figures[f"bytes, one tool, {mode}"] = len(json.dumps(tooled))


def _check_cache_key(rig: Rig, api: Api) -> None:
    first = rig.send(api, api.body("tea?"))
    expect(first, status=200)
    again = rig.send(api, api.body("and coffee?", previous_response_id=first.raw["id"]))
    expect(again, status=200)
    keys = [request.body.get("prompt_cache_key") for request in rig.provider.requests[-2:]]
    assert keys[0] is not None, "the provider received no cache key"
    assert keys[0] == keys[1], f"the keys are {keys}"
