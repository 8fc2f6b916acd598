"""Event logs of a real Codex: what is removed from a copy, what is replayed, what a crash leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cli.running import run_command
from real.rig import CHAT, CURRENT, LEGACY, RESPONSES, Rig, Target, said, start_rig

Json = dict[str, Any]
SECRET = "correct-horse-battery-staple"


def assist(prompt: str, **payload: Any) -> Json:
    """A ServiceRequest."""
    context = {"session_id": "s", "user": {"id": str(uuid4()), "name": "u"}}
    return {"request_id": str(uuid4()), "context": context, "payload": {"query": prompt, **payload}}


def ask_in_every_protocol(codex: Rig, action: Json) -> None:
    """The same of Responses, chat and CAP, as events and as lines."""
    for api in (RESPONSES, CHAT):
        assert codex.ask(api, action, stream=True).status == 200
    for form in ("text/event-stream", "application/x-ndjson"):
        body = assist(said(action), meta={"codex": {"model": "gpt-5.2"}})
        answer = codex.client.post("assist", json=body, headers={"accept": form})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("target", [CURRENT, LEGACY], ids=str)
def test_a_copy_without_a_spelled_secret_still_verifies(target: Target, tmp_path: Path) -> None:
    """A secret that came two characters at a time leaves pieces without text, in every protocol."""
    log, copy = tmp_path / "log.ndjson", tmp_path / "copy.ndjson"
    with start_rig(tmp_path, target, PROXY_LOG_EVENTS=str(log)) as codex:
        text = f"The words are {SECRET}, as agreed."
        ask_in_every_protocol(codex, {"do": "reasoning", "summary": [text], "pieces": [text], "chunk": 2})
        assert codex.bridge.stop() == 0
    assert run_command("replay", log, "--verify").returncode == 0
    assert run_command("log", "redact", log, "--secret", SECRET, "--output", copy).returncode == 0
    assert SECRET not in copy.read_text()
    assert '{\\"op\\":\\"delta\\",\\"p\\":\\"\\"}' in copy.read_text()
    verified = run_command("replay", copy, "--verify")
    assert (verified.returncode, verified.stdout) == (0, "4 request(s): 4 the same, 0 different, 0 not played\n")
