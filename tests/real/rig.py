"""A real Codex behind a bridge, in front of the scripted provider; and how an answer of either endpoint is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import KEY, RunningBridge, read_sse, running_bridge
from protocols.open_responses import check_response
from real import codex_binaries
from real.provider import Json, Provider, Request, codex_home, script

HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
HOUSE_MODEL = "house-model"
"""The model that every rig's config.toml names: no Codex lists it and no alias leads to it."""

LOOK: Json = {
    "name": "look",
    "description": "Looks something up",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
"""A function of the client's."""


@dataclass(frozen=True)
class Target:
    """A pinned binary and the dialect that it is spoken to in."""

    version: str
    dialect: str
    injects: bool
    """The history goes to the provider item by item; else as one labelled text."""

    def __str__(self) -> str:
        return f"{self.version}-{self.dialect}"


CURRENT = Target(codex_binaries.CURRENT, "auto", injects=True)
NEWEST = Target(codex_binaries.NEWEST, "auto", injects=True)
LEGACY = Target(codex_binaries.LEGACY, "legacy", injects=False)
TEXT_HISTORY = Target(codex_binaries.LEGACY, "auto", injects=False)
"""Speaks the current dialect, but without thread/inject_items."""


def said(action: Json) -> str:
    """A script for a prompt, without a live `<`: what the bridge does to tags in a prompt leaves it alone."""
    return script(action).replace("<", r"\u003c")


# The two endpoints


@dataclass(frozen=True)
class Answer:
    """What a client makes of an answer, streamed or not. `end` is the API's own word."""

    status: int
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    end: str | None = None
    usage: tuple[int, int, int, int] | None = None
    error: Json = field(default_factory=dict)
    call_ids: tuple[str, ...] = field(default=(), compare=False)
    raw: Json = field(default_factory=dict, compare=False, repr=False)
    headers: httpx2.Headers = field(default_factory=httpx2.Headers, compare=False, repr=False)


class Responses:
    """POST /v1/responses."""

    path = "responses"
    done = called = "completed"
    cut = "incomplete"

    def __str__(self) -> str:
        return self.path

    def body(self, prompt: str, *, tools: list[Json] | None = None, **more: Any) -> Json:
        offered = {"tools": [{"type": "function", **tool} for tool in tools]} if tools else {}
        return {"model": "gpt-5.2", "input": prompt, **offered, **more}

    def read(self, response: Json) -> Json:
        """The members of an Answer in a response object, which has the specification's form."""
        check_response(response)
        output, usage = response["output"], response["usage"]
        calls = [item for item in output if item["type"] in ("function_call", "custom_tool_call")]
        thoughts = [item for item in output if item["type"] == "reasoning"]
        return {
            "text": "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"]),
            "calls": tuple((call["name"], call.get("arguments", call.get("input"))) for call in calls),
            "call_ids": tuple(call["call_id"] for call in calls),
            "reasoning": "".join(part["text"] for item in thoughts for part in item["summary"]),
            "end": response["status"],
            "usage": usage
            and (
                usage["input_tokens"],
                usage["input_tokens_details"]["cached_tokens"],
                usage["output_tokens"],
                usage["output_tokens_details"]["reasoning_tokens"],
            ),
            "error": response["error"] or {},
            "raw": response,
        }

    def read_stream(self, text: str) -> Json:
        """The same in a stream: its last event has the response object, and its deltas must add up to that."""
        events = list(read_sse(iter(_lines(text))))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
        ends = ("response.completed", "response.incomplete", "response.failed")
        assert [event for event in events if event["type"] in ends] == events[-1:]
        answer = self.read(events[-1]["response"])
        assert answer["text"] == _deltas(events, "output_text")
        assert answer["reasoning"] == _deltas(events, "reasoning_summary_text")
        given = _deltas(events, "function_call_arguments", "custom_tool_call_input")
        assert "".join(arguments for _, arguments in answer["calls"]) == given
        return answer


class Chat:
    """POST /v1/chat/completions."""

    path = "chat/completions"
    done, called, cut = "stop", "tool_calls", "length"

    def __str__(self) -> str:
        return "chat"

    def body(self, prompt: str, *, tools: list[Json] | None = None, **more: Any) -> Json:
        offered = {"tools": [{"type": "function", "function": tool} for tool in tools]} if tools else {}
        return {"model": "gpt-5.2", "messages": [{"role": "user", "content": prompt}], **offered, **more}

    def read(self, completion: Json) -> Json:
        """The members of an Answer in a completion."""
        (choice,) = completion["choices"]
        message, calls = choice["message"], choice["message"].get("tool_calls", [])
        return {
            "text": message["content"] or "",
            "calls": tuple(map(_called, calls)),
            "call_ids": tuple(call["id"] for call in calls),
            "reasoning": message.get("reasoning_content", ""),
            "end": choice["finish_reason"],
            "usage": _chat_usage(completion["usage"]),
            "raw": completion,
        }

    def read_stream(self, text: str) -> Json:
        """The same from chunks, put together as clients do."""
        assert text.endswith("\n\ndata: [DONE]\n\n")
        said: dict[str, str] = {"content": "", "reasoning_content": ""}
        calls: list[Json] = []
        answer: Json = {"error": {}, "end": None, "usage": None}
        for chunk in read_sse(iter(_lines(text))):
            assert not answer["error"], "nothing may follow an error"
            if "error" in chunk:
                answer["error"] = chunk["error"]
                continue
            answer["usage"] = _chat_usage(chunk.get("usage"))
            for choice in chunk["choices"]:
                assert answer["end"] is None, "nothing may follow the finish_reason"
                answer["end"] = choice["finish_reason"]
                for name in said:
                    said[name] += choice["delta"].get(name, "")
                for call in choice["delta"].get("tool_calls", ()):
                    function = call.get("function") or call["custom"]
                    if call["index"] == len(calls):
                        calls.append({"id": call["id"], "name": function["name"], "arguments": ""})
                    calls[call["index"]]["arguments"] += function.get("arguments", function.get("input"))
        return answer | {
            "text": said["content"],
            "reasoning": said["reasoning_content"],
            "calls": tuple((call["name"], call["arguments"]) for call in calls),
            "call_ids": tuple(call["id"] for call in calls),
        }


Api = Responses | Chat
RESPONSES, CHAT = Responses(), Chat()


def _lines(text: str) -> list[str]:
    """The lines of an event stream. Python sees further line ends, which a JSON string may hold."""
    return text.split("\n")


def _deltas(events: list[Json], *kinds: str) -> str:
    types = [f"response.{kind}.delta" for kind in kinds]
    return "".join(event["delta"] for event in events if event["type"] in types)


def _called(call: Json) -> tuple[str, str]:
    """The name and the arguments of a chat call; of a custom tool, its text."""
    function = call.get("function") or call["custom"]
    return function["name"], function.get("arguments", function.get("input"))


def _chat_usage(usage: Json | None) -> tuple[int, int, int, int] | None:
    if usage is None:
        return None
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], cached, usage["completion_tokens"], thought


# The rig


class PatientProvider(Provider):
    """A provider that can be told to wait for a crowd."""

    crowd = 0
    "No answer begins before so many requests have arrived."

    def action_for(self, body: Json) -> Json:
        self.wait_requests(self.crowd, timeout=30)
        return super().action_for(body)


@dataclass
class Rig:
    """A running bridge with its Codex and its provider."""

    target: Target
    bridge: RunningBridge
    provider: PatientProvider
    client: httpx2.Client
    since: int = 0

    @property
    def posts(self) -> list[Request]:
        """The model calls since the test began."""
        return self.provider.requests[self.since :]

    def ask(self, api: Api, prompt: str | Json, *, stream: bool = False, **more: Any) -> Answer:
        """One request with a prompt, or with the script of what the provider is to do."""
        return self.send(api, api.body(prompt if isinstance(prompt, str) else said(prompt), **more), stream=stream)

    def send(self, api: Api, body: Json, *, stream: bool = False) -> Answer:
        """One request with this body."""
        response = self.client.post(api.path, json=body | ({"stream": True} if stream else {}))
        if response.status_code != 200:
            return Answer(response.status_code, error=response.json()["error"], headers=response.headers)
        members = api.read_stream(response.text) if stream else api.read(response.json())
        return Answer(200, **members, headers=response.headers)

    def prompt_of(self, api: Api, body: Json) -> Json:
        """What the provider was sent for a request that is answered."""
        before = len(self.provider.requests)
        answer = self.send(api, body)
        assert answer.status == 200, answer
        (post,) = self.provider.requests[before:]
        return post.body

    @contextmanager
    def calling(self, api: Api, action: Json, *, stream: bool = True, **more: Any) -> Iterator[HTTPConnection]:
        """A request whose model call has arrived at the provider; leaving the block hangs up."""
        connection = HTTPConnection("127.0.0.1", self.bridge.port, timeout=20)
        try:
            body = json.dumps(api.body(said(action), stream=stream, **more))
            seen = len(self.provider.requests)
            connection.request("POST", f"/v1/{api.path}", body, HEADERS)
            self.provider.wait_requests(seen + 1)
            yield connection
        finally:
            connection.close()

    def child(self) -> int:
        """The process id of the one Codex (the mock models may have started a child of their own)."""
        children = [pid for pid, parent, _ in processes() if parent == self.bridge.process.pid]
        (codex,) = [pid for pid in children if b"-m\0bridge" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return codex


@contextmanager
def start_rig(
    directory: Path,
    target: Target,
    *,
    retries: int = 0,
    extra: str = "",
    fill_home: Callable[[Path], object] = lambda home: None,
    **environment: str,
) -> Iterator[Rig]:
    """A rig of one's own, with `extra` in its config.toml; skips the test when there is no such binary.

    `fill_home` may add to its CODEX_HOME.
    """
    binary = codex_binaries.find(target.version)
    if isinstance(binary, str):
        pytest.skip(binary)
    with PatientProvider() as provider:
        home = codex_home(directory / "home", provider, model=HOUSE_MODEL, retries=retries, extra=extra)
        fill_home(home)
        settings = {
            "CODEX_BIN": str(binary),
            "CODEX_HOME": str(home),
            "PROXY_DIALECT": target.dialect,
            "PROXY_MODELS": "guest-model",
            "PROXY_STATUS_HOLD": "20",  # a busy machine may take seconds until a failure is an HTTP status
            **environment,
        }
        with running_bridge(directory, **settings) as bridge, bridge.client() as client:
            yield Rig(target, bridge, provider, client)


UseRig = Callable[..., Rig]
"""Gives the shared rig for a target and settings: the arguments of `start_rig` without the directory."""


def processes() -> Iterator[tuple[int, int, int]]:
    """(process, parent, session) of every process that is not dead."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if state != "Z":
                yield int(entry.name), int(parent), int(session)
