"""Event logs of a real Codex: what is removed from a copy, what is replayed, what a crash leaves."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cli.running import run_command
from log.replayed import recordings_in
from real.rig import CHAT, CURRENT, LEGACY, LOOK, RESPONSES, Rig, Target, said, start_rig

from bridge.log.export import ExportedTurn
from bridge.log.export.html import conversation_block
from bridge.log.recording import Recording, is_crash

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


SLOW: Json = {"do": "slow", "n": 600, "seconds": 60}
"""Ten words a second, for longer than any test waits."""


@pytest.fixture(scope="module", params=[CURRENT, LEGACY], ids=str)
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a Codex that is killed while five answers come: three streams, and two that are wanted whole."""
    directory = tmp_path_factory.mktemp("crashed")
    log = directory / "log.ndjson"
    with start_rig(directory, request.param, PROXY_LOG_EVENTS=str(log)) as rig, ThreadPoolExecutor(3) as pool:
        assert rig.ask(CHAT, {"do": "text"}).status == 200
        waiting: list[Future[Any]] = [pool.submit(rig.ask, api, SLOW) for api in (RESPONSES, CHAT)]
        body = assist(said(SLOW), meta={"codex": {"model": "gpt-5.2"}})
        waiting.append(pool.submit(rig.client.post, "assist", json=body, headers={"accept": "text/event-stream"}))
        rig.provider.wait_requests(4)
        with rig.calling(CHAT, SLOW) as chat, rig.calling(RESPONSES, SLOW) as last:
            streams = chat.getresponse(), last.getresponse()
            # The others have begun before: when this one has so many words, they have some.
            while b"word5" not in (line := streams[1].readline()):
                assert line
            os.kill(rig.child(), signal.SIGKILL)
            for stream in streams:
                stream.read()
        for each in waiting:
            each.result(20)
        assert rig.ask(CHAT, {"do": "text"}).status == 200
        assert rig.bridge.stop() == 0
    return log


def failed_in(log: Path) -> list[Recording]:
    found = [recording for recording in recordings_in(log) if is_crash(recording.end)]
    assert len(found) == 5
    return found


def test_a_crash_is_shown_with_every_turn_that_it_ended(crashed: Path) -> None:
    """Exit code and stderr come later in the log and belong to no request; each of the turns shows them."""
    for recording in failed_in(crashed):
        shown = run_command("log", "show", crashed, recording.id).stdout
        assert "word0" in shown
        assert "The child was killed by SIGKILL. Its last words on stderr:\n    WARNING: proceeding" in shown
        listed = run_command("log", "show", crashed, recording.id, "--frames").stdout
        assert "backend_exit" in listed.splitlines()[-1]
    ended = run_command("log", "show", crashed, recordings_in(crashed)[-1].id).stdout
    assert "SIGKILL" not in ended


def test_a_crash_and_the_text_that_had_arrived_are_on_the_page(crashed: Path) -> None:
    """Also for clients that wanted the answer whole, and got an error alone."""
    for recording in failed_in(crashed):
        block = conversation_block(ExportedTurn(recording))
        assert block["exit"][0] == "was killed by SIGKILL"
        assert block["exit"][1].startswith("WARNING: proceeding")
        (answer,) = block["answers"]
        assert answer["parts"][0][2].startswith("word0 word1 ")
        assert block["source"] == ("client" if recording.streamed else "backend")


def test_arguments_that_are_not_json_are_marked_and_counted(tmp_path: Path) -> None:
    """The client gets them as the model wrote them; the log, its tables and the metrics tell."""
    log = tmp_path / "log.ndjson"
    action = {"do": "calls", "calls": [{"name": "look", "arguments": '{"q": tea'}]}
    with start_rig(tmp_path, CURRENT, PROXY_LOG_EVENTS=str(log), PROXY_TOOL_MODE="native") as codex:
        answer = codex.ask(RESPONSES, action, tools=[LOOK])
        assert answer.calls == (("look", '{"q": tea'),)
        assert codex.ask(RESPONSES, {"do": "text"}).status == 200
        metrics = codex.client.get(f"{codex.bridge.root}/metrics").text
        assert "\nturnbridge_tool_call_invalid_arguments_total 1.0\n" in metrics
        assert codex.bridge.stop() == 0
    listed = run_command("log", "ls", log).stdout.splitlines()
    assert [line.split()[-1] for line in listed] == ["rep", "1!", listed[2].split()[-1]]
    assert "!" not in listed[2]
    (bad, good) = [json.loads(line) for line in run_command("log", "ls", log, "--json").stdout.splitlines()]
    assert (bad["invalid_arguments"], good["invalid_arguments"]) == (["look"], [])
    shown = run_command("log", "show", log, bad["id"]).stdout
    assert '[call: the arguments are not JSON]\n▶ look {"q": tea\n' in shown
    assert "invalid   look: the arguments are not JSON\n" in shown
    stats = run_command("log", "stats", log)
    assert "invalid JSON arguments\nlook" in stats.stdout
    assert json.loads(run_command("log", "stats", log, "--json").stdout)["invalid_arguments"] == {"look": 1}
    assert run_command("replay", log, "--verify").returncode == 0


@pytest.mark.parametrize("mode", ["text", "native"])
def test_turns_in_threads_that_were_started_ahead_are_replayed(mode: str, tmp_path: Path) -> None:
    """The start of such a thread is not among the request's own calls."""
    log = tmp_path / "log.ndjson"
    call = {"do": "calls", "calls": [{"name": "look", "arguments": '{"q":"x"}'}]}
    with start_rig(tmp_path, CURRENT, PROXY_LOG_EVENTS=str(log), PROXY_TOOL_MODE=mode) as codex:
        for action in (call, {"do": "text", "pieces": ["a"]}, call, {"do": "text", "pieces": ["b"]}):
            assert codex.ask(RESPONSES, action, tools=[LOOK]).status == 200
        assert codex.bridge.stop() == 0
    records = [json.loads(line) for line in log.read_text().splitlines()]
    starts = [record["req_id"] for record in records if record.get("method") == "thread/start"]
    assert None in starts
    verified = run_command("replay", log, "--verify")
    assert verified.returncode == 0, verified.stdout
