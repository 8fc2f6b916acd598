"""What the bridge does itself, over every backend, and what its event log has of a turn that goes over HTTP."""

from __future__ import annotations

import json

import pytest
from fault.providers import HELLO, KINDS, labelled, marked
from fault.rig import Rig
from server.prompted import wait_for

pytestmark = pytest.mark.deep

SAID = "".join(HELLO)
KIND = pytest.mark.parametrize("kind", KINDS)


def sent(rig: Rig, kind: str, label: str) -> str:
    """What the provider was sent last with this label."""
    return labelled(rig.providers.of(kind), label)[-1].raw.decode()


@KIND
def test_a_background_response_is_answered(rig: Rig, kind: str) -> None:
    made = rig.ask(f"to-{kind}", marked("held", "background"), background=True)
    assert made.body["status"] in ("queued", "in_progress")
    path = f"/v1/responses/{made.body['id']}"
    gate = rig.kept_waiting(kind, "background")
    assert rig.send("GET", path).body["status"] == "in_progress"
    gate.open()
    wait_for(lambda: rig.send("GET", path).body["status"] == "completed", "the response is complete")
    assert rig.send("GET", path).text == SAID


@KIND
def test_several_choices_are_several_turns(rig: Rig, kind: str) -> None:
    outcome = rig.ask(f"to-{kind}", marked("hello", "n"), endpoint="chat", n=3)
    assert [choice["message"]["content"] for choice in outcome.body["choices"]] == [SAID] * 3
    assert len(labelled(rig.providers.of(kind), "n")) == 3


@KIND
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_ends_the_answer_and_the_turn(rig: Rig, kind: str, stream: bool) -> None:
    """The rest, which the provider has not written yet, is not waited for."""
    label = f"stop.{stream}"
    outcome = rig.ask(f"to-{kind}", marked("held", label), endpoint="chat", stream=stream, stop="l")
    assert (outcome.text, outcome.code) == ("he", None)
    (request,) = labelled(rig.providers.of(kind), label)
    rig.providers.of(kind).wait_for(lambda: request.left_at)


@KIND
def test_a_response_is_continued(rig: Rig, kind: str) -> None:
    """By its id, or in a conversation: the provider is sent all that was said."""
    first = rig.ask(f"to-{kind}", "the beginning " + marked("hello", "first"))
    second = rig.ask(f"to-{kind}", marked("hello", "second"), previous_response_id=first.body["id"])
    assert second.text == SAID
    assert "the beginning" in sent(rig, kind, "second")
    assert SAID in sent(rig, kind, "second")
    conversation = rig.send("POST", "/v1/conversations", {}).body["id"]
    rig.ask(f"to-{kind}", "the other beginning " + marked("hello", "third"), conversation=conversation)
    rig.ask(f"to-{kind}", marked("hello", "fourth"), conversation=conversation)
    assert "the other beginning" in sent(rig, kind, "fourth")
    items = rig.send("GET", f"/v1/conversations/{conversation}/items?order=asc").body["data"]
    assert [item["role"] for item in items] == ["user", "assistant"] * 2


@KIND
def test_a_conversation_that_failed_is_not_extended(rig: Rig, kind: str) -> None:
    """Half an answer is nobody's past; a failed response is stored as that where it was streamed."""
    conversation = rig.send("POST", "/v1/conversations", {}).body["id"]
    failed = rig.ask(f"to-{kind}", marked("reset", "broken"), conversation=conversation, stream=True)
    assert failed.code == "stream_truncated"
    assert rig.send("GET", f"/v1/conversations/{conversation}/items").body["data"] == []
    stored = rig.send("GET", f"/v1/responses/{failed.body[-1]['response']['id']}")
    assert stored.body["status"] == "failed"


@KIND
def test_a_history_is_compacted(rig: Rig, kind: str) -> None:
    """The model's summary stands for it, and can be continued from."""
    history = [
        {"role": "user", "content": "the first question " + marked("hello", "compact")},
        {"role": "assistant", "content": "the first answer"},
    ]
    made = rig.send("POST", "/v1/responses/compact", {"model": f"to-{kind}", "input": history})
    assert made.status == 200, made.raw
    assert made.body["object"] == "response.compaction"
    assert "the first answer" in sent(rig, kind, "compact")
    goes_on = [*made.body["output"], {"role": "user", "content": marked("hello", "compacted")}]
    assert rig.send("POST", "/v1/responses", {"model": f"to-{kind}", "input": goes_on}).text == SAID
    assert SAID in sent(rig, kind, "compacted")
    assert "the first answer" not in sent(rig, kind, "compacted")


@KIND
def test_the_event_log_has_what_went_to_the_provider_and_what_came(rig: Rig, kind: str) -> None:
    """Under the request's id, in order, without a secret; a provider that repeats its key changes nothing."""
    outcome = rig.ask(f"to-{kind}", marked("echo", "logged"), stream=True)
    assert outcome.text == "you sent [redacted]"
    req_id = outcome.request_id
    wait_for(lambda: rig.log.turn_end(req_id), "turn_end")
    (request,) = rig.log.of(req_id, "upstream_request")
    assert marked("echo", "logged") in json.dumps(request["payload"])
    assert request["payload"] == labelled(rig.providers.of(kind), "logged")[0].body
    events = rig.log.of(req_id, "upstream_event")
    assert "you sent " in json.dumps([event["payload"] for event in events])
    kinds = [record["kind"] for record in rig.log.records() if record["req_id"] == req_id]
    wanted = ["client_request", "turn_start", "upstream_request", "upstream_event", "client_sse", "turn_end"]
    assert [kinds.index(each) for each in wanted] == sorted(kinds.index(each) for each in wanted)


def test_no_secret_is_anywhere(rig: Rig) -> None:
    """Not in the log, on stderr, or in the store."""
    kept = [path for path in rig.directory.rglob("*") if path.is_file()]
    for path in kept:
        if path.name not in ("auth.json", "config.toml", "key.pem"):
            content = path.read_bytes()
            for secret in rig.secrets():
                assert secret.encode() not in content, path.name
