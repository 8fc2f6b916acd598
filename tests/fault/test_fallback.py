"""Models that answer instead of others: from every kind of backend to every other, in every protocol."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from fault.providers import HELLO, KINDS, Providers, labelled, marked, providers_in_thread
from fault.rig import CODEX_MODEL, ENDPOINTS, FORMS, Outcome, Rig, rigged
from harness import scripted_codex, turns
from server.talk import talking
from warm import WarmProcess

pytestmark = pytest.mark.deep

SAID = "".join(HELLO)
CHILD = "from the child"
CHAINS = f"""
[routing.fallback]
"to-openai.hasty" = ["{CODEX_MODEL}"]
{"".join(f'"to-{kind}" = ["to-{kind}.refused", "{CODEX_MODEL}"]' + chr(10) for kind in KINDS)}
"{CODEX_MODEL}" = ["to-anthropic"]
"""
ANSWERED_BY = "x-bridge-answered-by"
ENDPOINT = pytest.mark.parametrize("endpoint", ENDPOINTS)


@pytest.fixture(scope="module")
def providers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Providers]:
    with providers_in_thread(tmp_path_factory.mktemp("certificate")) as ready:
        yield ready


@pytest.fixture
def rig(providers: Providers, tmp_path: Path) -> Iterator[Rig]:
    with rigged(tmp_path, providers, more=CHAINS) as ready:
        yield ready


def check(outcome: Outcome, by: str, text: str) -> None:
    assert (outcome.status, outcome.text) == (200, text), outcome.raw
    if outcome.seconds < 1.9:  # after two seconds a stream begins, and with it its headers are sent
        assert outcome.headers[ANSWERED_BY] == by


def fallbacks_of(rig: Rig, outcome: Outcome) -> list[tuple[str, str, str]]:
    records = [each["payload"] for each in rig.log.of(outcome.request_id, "turn_fallback")]
    return [(each["model"], each["to"], each["error"]["code"]) for each in records]


@ENDPOINT
@pytest.mark.parametrize("kind", KINDS)
def test_an_overloaded_provider_is_replaced_by_the_next_that_answers(rig: Rig, kind: str, endpoint: str) -> None:
    """The second cannot be reached, the third is the child. The client sees one answer under the name that it sent."""
    with ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(rig.ask, f"to-{kind}", marked("503", "over"), endpoint=endpoint, stream=stream)
            for stream in (False, True)
        ]
    for each in asked:
        outcome = each.result()
        check(outcome, CODEX_MODEL, CHILD)
        assert fallbacks_of(rig, outcome) == [
            (f"to-{kind}", f"to-{kind}.refused", "overloaded"),
            (f"to-{kind}.refused", CODEX_MODEL, "upstream_unreachable"),
        ]
        starts = [each["payload"]["backend"] for each in rig.log.of(outcome.request_id, "turn_start")]
        assert (starts[0], starts[-1]) == (kind, "app-server")
        if isinstance(outcome.body, dict):
            assert outcome.body["model"] == f"to-{kind}"
    metrics = rig.send_text("/metrics")
    assert f'turnbridge_fallbacks_total{{from="to-{kind}.refused",reason="upstream_unreachable",' in metrics
    verified = WarmProcess(["replay", str(rig.log.path), "--verify"], stdout=subprocess.PIPE, text=True)
    out, _ = verified.communicate(timeout=60)
    assert verified.returncode == 0, out


@pytest.mark.parametrize("play", ["429-later", "503", "500", "html-502", "reset-at-once", "half-an-event"])
def test_what_is_worth_a_fallback(rig: Rig, play: str) -> None:
    check(rig.ask("to-anthropic", marked(play, "worth")), CODEX_MODEL, CHILD)


@pytest.mark.parametrize("play", ["401", "403", "echo-refusal"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_is_not_worth_one(rig: Rig, play: str, kind: str) -> None:
    outcome = rig.ask(f"to-{kind}", marked(play, "refused"))
    assert outcome.status in (400, 401, 403)
    assert ANSWERED_BY not in outcome.headers
    assert fallbacks_of(rig, outcome) == []


@pytest.mark.parametrize("play", ["reset", "truncated", "no-end"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_tried_again_after_the_first_event(rig: Rig, play: str, kind: str) -> None:
    for endpoint, stream in FORMS:
        label = f"once.{play}.{kind}.{endpoint}.{stream}"
        outcome = rig.ask(f"to-{kind}", marked(play, label), endpoint=endpoint, stream=stream)
        assert outcome.code == "stream_truncated"
        assert fallbacks_of(rig, outcome) == []
        assert len(labelled(rig.providers.of(kind), label)) == 1


@ENDPOINT
def test_silence_before_the_first_token_is_worth_one(rig: Rig, endpoint: str) -> None:
    """Its stream may have begun by then, and continues."""
    with ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(rig.ask, "to-openai.hasty", marked("silent", "mute"), endpoint=endpoint, stream=stream)
            for stream in (False, True)
        ]
    for each in asked:
        outcome = each.result()
        check(outcome, CODEX_MODEL, CHILD)
        assert fallbacks_of(rig, outcome) == [("to-openai.hasty", CODEX_MODEL, "backend_timeout")]


def test_every_protocol_falls_back(rig: Rig) -> None:
    said = marked("503", "protocols")
    message = {"role": "user", "content": said}
    assist = {
        "request_id": str(uuid4()),
        "context": {"session_id": str(uuid4()), "user": {"id": "user-1", "name": "Ada"}},
        "payload": {"query": said, "meta": {"model": "to-anthropic"}},
    }
    contents = {"contents": [{"parts": [{"text": said}]}]}
    messages = {"model": "to-anthropic", "max_tokens": 100, "messages": [message]}
    for path, body in [
        ("/v1/messages", messages),
        ("/v1/messages", messages | {"stream": True}),
        ("/v1beta/models/to-anthropic:generateContent", contents),
        ("/v1beta/models/to-anthropic:streamGenerateContent", contents),
        ("/v1/assist", assist),
    ]:
        outcome = rig.send_raw("POST", path, body)
        assert outcome.status == 200, outcome.raw
        assert CHILD in outcome.raw
        if outcome.seconds < 1.9:
            assert outcome.headers[ANSWERED_BY] == CODEX_MODEL
    with talking(rig.bridge) as talk:
        assert talk.ask({"model": "to-anthropic", "input": said})["status"] == "completed"


@pytest.mark.parametrize("step", ["rateLimitExceeded", "usageLimitExceeded", "serverOverloaded"])
def test_the_child_falls_back_to_a_provider(providers: Providers, tmp_path: Path, step: str) -> None:
    child = scripted_codex(tmp_path, turns([{"error": {"message": "no more", "info": step}}]), name="failing")
    with rigged(tmp_path, providers, more=CHAINS, CODEX_BIN=str(child)) as rig:
        for endpoint, stream in FORMS:
            outcome = rig.ask(CODEX_MODEL, endpoint=endpoint, stream=stream)
            check(outcome, "to-anthropic", SAID)


def test_a_child_that_says_something_first_is_not_replaced(providers: Providers, tmp_path: Path) -> None:
    steps = [{"text": "half"}, {"error": {"message": "no more", "info": "serverOverloaded"}}]
    child = scripted_codex(tmp_path, turns(steps), name="failing")
    with rigged(tmp_path, providers, more=CHAINS, CODEX_BIN=str(child)) as rig:
        for endpoint, stream in FORMS:
            outcome = rig.ask(CODEX_MODEL, endpoint=endpoint, stream=stream)
            assert outcome.code == "overloaded"
            assert fallbacks_of(rig, outcome) == []


def test_a_client_with_a_key_of_its_own_stays_with_its_provider(rig: Rig) -> None:
    """The key is for that provider, and what another one costs is not this client's choice."""
    outcome = rig.ask("to-anthropic", marked("503", "own"), headers={"x-provider-key": "sk-of-the-client"})
    assert outcome.status in (401, 503)
    assert ANSWERED_BY not in outcome.headers


def test_a_full_backend_is_worth_one(providers: Providers, tmp_path: Path) -> None:
    """The slot of the request is one of the backend that answers."""
    with (
        rigged(tmp_path, providers, more=CHAINS, PROXY_MAX_TURNS="1", PROXY_MAX_QUEUE="0") as rig,
        ThreadPoolExecutor() as pool,
    ):
        held = pool.submit(rig.ask, "to-anthropic", marked("held", "full"), stream=True)
        gate = rig.kept_waiting("anthropic", "full")
        check(rig.ask("to-anthropic"), CODEX_MODEL, CHILD)
        gate.open()
        assert held.result().text == SAID
        assert ANSWERED_BY not in rig.ask("to-anthropic").headers


def test_a_backend_that_keeps_failing_is_skipped(rig: Rig) -> None:
    for _ in range(3):
        assert rig.ask("to-openai", marked("503", "count")).text == CHILD
    asked = len(labelled(rig.providers.openai, "count"))
    outcome = rig.ask("to-openai", marked("503", "count"))
    assert outcome.text == CHILD
    assert fallbacks_of(rig, outcome)[0][::2] == ("to-openai", "circuit_open")
    assert len(labelled(rig.providers.openai, "count")) == asked
    assert 'turnbridge_backend_resting{backend="openai"} 1.0' in rig.send_text("/metrics")
