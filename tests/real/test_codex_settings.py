"""A real Codex takes every documented value of every setting that reaches it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from real.provider import DEFAULT_TEXT
from real.rig import CHAT, LEGACY, LOOK, NEWEST, RESPONSES, TEXT_HISTORY, Api, Target, start_rig

from bridge.appserver.turn import ChildSettings
from bridge.settings import SETTINGS

VALUES = {
    "PROXY_APPROVAL_POLICY": ["untrusted", "on-failure", "on-request", "never"],
    "PROXY_SANDBOX_MODE": ["read-only", "workspace-write", "danger-full-access"],
    "PROXY_WEB_SEARCH": ["off", "cached", "live"],
    "PROXY_TOOL_MODE": ["auto", "text", "native"],
    "PROXY_LEGACY_CALLS": ["auto", "turn", "message", "both"],
    "PROXY_NATIVE_TOOLS": ["false", "true"],
    "PROXY_INCLUDE_APPLY_PATCH_TOOL": ["true", "false"],
    "PROXY_RESPONSES_SKIP_TURN": ["true", "false"],
    "PROXY_RESPONSES_OMIT_TOOL_MANIFEST": ["true", "false"],
    "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT": ["", "false", "true"],
    "PROXY_KEPT_THREADS": ["0", "1", "32"],
    "PROXY_WARM_THREADS": ["0", "1", "4"],
    "PROXY_ENFORCE_MAX_TOKENS": ["true", "false"],
    "PROXY_STREAM_DEFAULT": ["false", "true"],
    "PROXY_CODEX_WORKDIR": ["{tmp}/work", "{tmp}/work dir"],
    "PROXY_WORKERS": ["1", "2"],
    "PROXY_CHILD_CA": ["small", "system"],
}
DIALECTS = {LEGACY: ["legacy"], TEXT_HISTORY: ["auto", "current"], NEWEST: ["auto", "current"]}

RENAMED = {
    "skip_turn": "responses_skip_turn",
    "omit_tool_manifest": "responses_omit_tool_manifest",
    "ignore_system_prompt": "ignore_client_system_prompt",
}
"""Settings of the child whose settings of the program have other names."""


def body_of(api: Api) -> dict[str, Any]:
    """A request that makes use of as many settings as it can."""
    body = api.body("hello", tools=[LOOK])
    body["tools"].append({"type": "web_search"})
    if api is CHAT:
        body["messages"].insert(0, {"role": "system", "content": "Be kind."})
        return body | {"reasoning_effort": "low", "max_tokens": 1000}
    return body | {"instructions": "Be kind.", "reasoning": {"effort": "low"}, "max_output_tokens": 1000}


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("target", DIALECTS, ids=str)
def test_every_value_of_every_setting(tmp_path: Path, target: Target, number: int) -> None:
    """Several settings at a time, so that each value has its turn in four starts."""
    values = {**VALUES, "PROXY_DIALECT": DIALECTS[target]}
    chosen: dict[str, Any] = {name: each[number % len(each)].format(tmp=tmp_path) for name, each in values.items()}
    with start_rig(tmp_path, target, **chosen) as rig:
        for api in (RESPONSES, CHAT):
            response = rig.client.post(api.path, json=body_of(api))
            assert response.status_code == 200, (chosen, response.text)
            streamed = response.headers["content-type"].startswith("text/event-stream")
            assert streamed == (chosen["PROXY_STREAM_DEFAULT"] == "true")
            text = api.read_stream(response.text)["text"] if streamed else api.read(response.json())["text"]
            # To a real Codex both legacy calls are two prompts, of which the second may be answered as well.
            answers = (DEFAULT_TEXT, 2 * DEFAULT_TEXT) if chosen["PROXY_LEGACY_CALLS"] == "both" else (DEFAULT_TEXT,)
            assert text in answers, (chosen, text)


def test_no_setting_and_no_value_is_forgotten() -> None:
    """Whatever reaches the child is in the table above, with all the values that it may have."""
    variables = {setting.variable: setting.field for setting in SETTINGS.values()}
    for field in fields(ChildSettings):
        assert SETTINGS[RENAMED.get(field.name, field.name)].variable in VALUES, field.name
    for name, values in VALUES.items():
        kind: Any = variables[name].annotation
        words = {bool: ("true", "false"), bool | None: ("true", "false", "")}.get(kind, get_args(kind))
        assert set(words) <= set(values), name
        assert len(values) <= 4, f"{name}: four starts are too few"
    tried = {dialect for dialects in DIALECTS.values() for dialect in dialects}
    assert tried == set(get_args(variables["PROXY_DIALECT"].annotation))
