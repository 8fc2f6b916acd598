"""A real Codex takes every documented value of every setting that reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest
from real.provider import DEFAULT_TEXT
from real.rig import CHAT, LEGACY, LOOK, NEWEST, RESPONSES, TEXT_HISTORY, Target, start_rig

VALUES = {
    "PROXY_APPROVAL_POLICY": ["untrusted", "on-failure", "on-request", "never"],
    "PROXY_SANDBOX_MODE": ["read-only", "workspace-write", "danger-full-access"],
    "PROXY_WEB_SEARCH": ["off", "cached", "live"],
    "PROXY_TOOL_MODE": ["auto", "text", "native"],
    "PROXY_LEGACY_CALLS": ["auto", "turn", "message", "both"],
    "PROXY_NATIVE_TOOLS": ["false", "true"],
    "PROXY_INCLUDE_APPLY_PATCH_TOOL": ["true", "false"],
    "PROXY_RESPONSES_SKIP_TURN": ["false", "true"],
    "PROXY_RESPONSES_OMIT_TOOL_MANIFEST": ["true", "false"],
    "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT": ["false", "true"],
    "PROXY_KEPT_THREADS": ["0", "1", "32"],
}


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("target", [LEGACY, TEXT_HISTORY, NEWEST], ids=str)
def test_every_value_of_every_setting(tmp_path: Path, target: Target, number: int) -> None:
    """Several settings at a time, so that each value has its turn in four starts."""
    chosen = {name: values[number % len(values)] for name, values in VALUES.items()}
    search = {"type": "web_search"}
    with start_rig(tmp_path, target, **chosen) as rig:
        for api in (RESPONSES, CHAT):
            body = api.body("hello", tools=[LOOK])
            body["tools"].append(search)
            answer = rig.send(api, body)
            # To a real Codex both legacy calls are two prompts, of which the second may be answered as well.
            answers = (DEFAULT_TEXT, 2 * DEFAULT_TEXT) if chosen["PROXY_LEGACY_CALLS"] == "both" else (DEFAULT_TEXT,)
            assert answer.status == 200, (chosen, answer)
            assert answer.text in answers, (chosen, answer)
