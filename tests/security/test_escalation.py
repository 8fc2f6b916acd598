"""What a client may not decide: sandbox, approvals, directory, configuration, instructions, profile, MCP servers.

The child writes down every line that it is sent. A body with such members, at any level and under any of their names,
gives the lines that it gives without them, or it is refused and gives none.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from harness import KEY, RunningBridge, running_bridge
from protocols.cap.samples import request_body
from security.noting import STARTS, Notes
from server.prompted import LOOK, MODEL
from server.talk import talking

Json = dict[str, Any]

EVIL: Json = {
    "approvalPolicy": "on-request",
    "approval_policy": "on-request",
    "sandbox": "danger-full-access",
    "sandboxMode": "danger-full-access",
    "sandbox_mode": "danger-full-access",
    "sandboxPolicy": {"type": "danger-full-access", "writable_roots": ["/evil"]},
    "sandbox_policy": {"type": "dangerFullAccess", "network_access": True},
    "permissions": {"sandbox": "danger-full-access"},
    "cwd": "/evil",
    "workdir": "/evil",
    "config": {"sandbox_mode": "danger-full-access", "mcp_servers": {"evil": {"command": "/evil"}}},
    "baseInstructions": "evil words",
    "base_instructions": "evil words",
    "developerInstructions": "evil words",
    "developer_instructions": "evil words",
    "compactPrompt": "evil words",
    "profile": "evil",
    "configProfile": "evil",
    "includeApplyPatchTool": True,
    "include_apply_patch_tool": True,
    "includePlanTool": True,
    "mcpServers": {"evil": {"command": "/evil"}},
    "mcp_servers": {"evil": {"command": "/evil"}},
    "modelProvider": "evil",
    "model_provider": "evil",
    "env": {"EVIL": "evil"},
    "ephemeral": False,
    "threadId": "evil",
    "conversationId": "evil",
    "rolloutPath": "/evil",
    "path": "/evil",
    "jsonrpc": "2.0",
    "method": "evil/method",
    "params": {"sandbox": "danger-full-access"},
}

STEPS = json.dumps([{"text": "hi"}])
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"q":"x"}'}

BODIES: dict[str, tuple[str, Json]] = {
    "responses": (
        "/v1/responses",
        {
            "model": MODEL,
            "instructions": "be brief",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "first"}]},
                CALL,
                {"type": "function_call_output", "call_id": "c1", "output": "seen"},
                {"role": "user", "content": STEPS},
            ],
            "tools": [LOOK],
            "tool_choice": {"type": "function", "name": "look"},
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "text"}},
            "metadata": {"a": "b"},
        },
    ),
    "chat": (
        "/v1/chat/completions",
        {
            "model": MODEL,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "first"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q":"x"}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "seen"},
                {"role": "user", "content": STEPS},
            ],
            "tools": [{"type": "function", "function": {"name": "look", "parameters": LOOK["parameters"]}}],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "stream_options": {},
            "response_format": {"type": "text"},
            "metadata": {"a": "b"},
        },
    ),
    "assist": ("/v1/assist", request_body(query=STEPS, meta={"model": MODEL, "codex": {"reasoning_effort": "low"}})),
}
DIALECTS = ("current", "legacy")
SHOWN = ("developerInstructions", "tools")
"""Where the client's own tools are shown to the model: their schemas are data, of any content."""


@dataclass
class Watched:
    """A bridge whose child writes down what it is sent."""

    bridge: RunningBridge
    client: httpx2.Client
    notes: Notes
    golden: dict[str, list[Json]] = field(default_factory=dict)

    def send(self, path: str, body: Json, headers: dict[str, str] | None = None) -> list[Json] | None:
        """The calls that the child got for a body, without ids; None when it was refused, and then there are none."""
        body = fresh(body)
        answer = self.client.post(f"{self.bridge.root}{path}", json=body, headers=headers)
        if answer.status_code != 200:
            assert answer.status_code in (400, 403), answer.text
            assert not [call for call in self.notes.new() if call.get("method") in STARTS]
            return None
        return self.calls()

    def calls(self) -> list[Json]:
        """The calls of the request that was just answered."""
        kinds = (*STARTS, "thread/inject_items", "turn/start", "sendUserTurn", "sendUserMessage")
        return [
            json.loads(re.sub(r'"(sub-)?0000[0-9a-f-]+"', '"ID"', json.dumps(call["params"])))
            for call in self.notes.of_turn()
            if call.get("method") in kinds
        ]


def fresh(body: Json) -> Json:
    """A request of CAP is one of its kind."""
    if "request_id" not in body:
        return body
    return {**body, "request_id": f"{next(_numbers):08x}-0000-4000-8000-000000000000"}


_numbers = iter(range(1, 1 << 30))


@pytest.fixture(scope="module", params=DIALECTS)
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("watched")
    notes = Notes(directory, request.param)
    settings = {"CODEX_BIN": str(notes.program), "PROXY_MODELS": MODEL, "PROXY_LEGACY_CALLS": "both"}
    settings["PROXY_WARM_THREADS"] = "0"  # a thread that was started ahead is not in the notes of its turn
    with running_bridge(directory, **settings) as bridge, bridge.client() as client:
        ready = Watched(bridge, client, notes)
        for name, (path, body) in BODIES.items():
            golden = ready.send(path, body)
            assert golden is not None
            ready.golden[name] = golden
        yield ready


def places(body: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every object in a body."""
    if isinstance(body, dict):
        yield here
        for name, member in body.items():
            yield from places(member, (*here, name))
    elif isinstance(body, list):
        for number, member in enumerate(body):
            yield from places(member, (*here, number))


def with_members(body: Json, place: tuple[Any, ...], members: Json) -> Json:
    """The body with these members in one of its objects; none of its own is replaced."""
    changed = copy.deepcopy(body)
    node: Any = changed
    for step in place:
        node = node[step]
    for name, value in members.items():
        node.setdefault(name, value)
    return changed


def unshown(calls: list[Json]) -> list[Json]:
    return [{name: value for name, value in call.items() if name not in SHOWN} for call in calls]


@pytest.mark.parametrize("name", BODIES)
def test_no_member_of_a_body_changes_what_the_child_is_told(watched: Watched, name: str) -> None:
    """All of them in one object after the other, from the top to the schema of a tool."""
    path, body = BODIES[name]
    found = list(places(body))
    assert len(found) > 4
    served = 0
    for place in found:
        calls = watched.send(path, with_members(body, place, EVIL))
        if calls is None:
            continue
        served += 1
        if "parameters" in place:
            assert unshown(calls) == unshown(watched.golden[name]), place
        else:
            assert calls == watched.golden[name], place
    assert served > 3


@pytest.mark.deep
@pytest.mark.parametrize("name", BODIES)
def test_nor_does_one_alone(watched: Watched, name: str) -> None:
    """Each at the top, as those that know Codex would try it, and in its usual wrappings."""
    path, body = BODIES[name]
    for member, value in EVIL.items():
        for members in ({member: value}, {"extra_body": {member: value}, "codex": {member: value}}):
            calls = watched.send(path, with_members(body, (), members))
            assert calls in (None, watched.golden[name]), member


def test_nor_does_a_header_or_a_query(watched: Watched) -> None:
    path, body = BODIES["responses"]
    headers = {f"x-codex-{name.replace('_', '-')}": "danger-full-access" for name in EVIL}
    headers |= {name.replace("_", "-"): "/evil" for name in ("cwd", "sandbox", "profile", "config")}
    query = "&".join(f"{name}=danger-full-access" for name in EVIL)
    assert watched.send(f"{path}?{query}", body, headers) == watched.golden["responses"]


def test_nor_does_a_message_on_a_websocket(watched: Watched) -> None:
    body = BODIES["responses"][1]
    with talking(watched.bridge) as talk:
        talk.ask(body)
        golden = watched.calls()
        for place in places(body):
            talk.send(with_members(body, place, EVIL))
            if talk.rest()[-1]["type"] == "response.completed":
                assert unshown(watched.calls()) == unshown(golden)


@pytest.mark.parametrize(
    "word",
    [
        {"sandbox": "danger-full-access"},
        {"sandbox": "workspace-write"},
        {"approval_policy": "on-request"},
        {"approval_policy": "untrusted"},
        {"cwd": "/"},
        {"cwd": "../.."},
        {"cwd": "/tmp"},
    ],
    ids=str,
)
@pytest.mark.parametrize("place", [("payload", "meta"), ("payload", "meta", "codex")], ids=["meta", "codex"])
def test_cap_may_narrow_and_never_widen(watched: Watched, word: Json, place: tuple[str, ...]) -> None:
    """Refused with 403, and the child hears nothing."""
    path, body = BODIES["assist"]
    assert watched.send(path, with_members(body, place, word)) is None


def test_the_child_is_started_with_the_operators_settings_alone(watched: Watched) -> None:
    """What the golden calls hold is what the settings say."""
    for calls in watched.golden.values():
        told = json.dumps(calls)
        assert "read-only" in told
        assert '"approvalPolicy": "never"' in told
        assert "evil" not in told
        assert KEY not in told
