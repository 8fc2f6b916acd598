"""Traces, as a collector on loopback gets them from a bridge that runs as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import KEY, ROOT, RunningBridge, running_bridge
from server.collector import Collector, Span, collecting
from server.prompted import MODEL, ask, ask_chat, open_response, prompted_codex, wait_for
from server.talk import talking

SECRET = "sk-" + "s3cr3t" * 8
SAID = "what-was-said"
SERVER, CLIENT = 2, 3
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
"""Milliseconds until a batch is sent."""


@dataclass
class Traced:
    """A bridge, and where its traces go."""

    bridge: RunningBridge
    collector: Collector

    def spans(self, request_id: str) -> tuple[Span, Span]:
        """The spans of a request and of its turn, once they have come."""

        def found() -> list[Span]:
            mine = self.collector.of(request_id)
            return mine if len(mine) == 2 else []

        turn, request = sorted(wait_for(found, "its spans have come", 20), key=lambda span: span.kind, reverse=True)
        assert (request.kind, turn.kind) == (SERVER, CLIENT)
        return request, turn

    def parts(self, turn: Span) -> list[Span]:
        """What stands below a turn, in order."""
        return sorted((span for span in self.collector.spans if span.parent == turn.id), key=lambda span: span.start)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """A bridge that sends traces."""
    directory = tmp_path_factory.mktemp("traced")
    environment = {
        "CODEX_BIN": str(prompted_codex(directory)),
        "PROXY_MODELS": MODEL,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=me",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        **QUICK,
    }
    with (
        collecting() as collector,
        running_bridge(directory, OTEL_EXPORTER_OTLP_ENDPOINT=f"{collector.address}/", **environment) as bridge,
    ):
        yield Traced(bridge, collector)


def test_a_request_its_turn_and_what_it_waited_for(traced: Traced) -> None:
    """One below the other, with times that fit, in the words of the conventions; nothing of what was said."""
    used = {"usage": {"input": 7, "output": 3, "cached": 2, "reasoning": 1}}
    parent, trace = "00f067aa0ba902b7", "4bf92f3577b34da6a3ce929d0e0e4736"
    with traced.bridge.client() as client:
        answer = client.post(
            "/responses",
            json=ask({"text": f"{SAID} {SECRET}"}, used),
            headers={"traceparent": f"00-{trace}-{parent}-01", "x-client-request-id": "job-1"},
        )
    request, turn = traced.spans(answer.headers["x-request-id"])
    assert (request.name, request.trace, request.parent) == ("POST /v1/responses", trace, parent)
    assert request.attributes | {"turnbridge.request_id": "x"} == {
        "http.request.method": "POST",
        "http.route": "/v1/responses",
        "http.response.status_code": 200,
        "url.path": "/v1/responses",
        "url.scheme": "http",
        "turnbridge.request_id": "x",
        "turnbridge.client_request_id": "job-1",
    }
    assert (turn.name, turn.trace, turn.parent, turn.failed) == (f"chat {MODEL}", trace, request.id, False)
    told = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": ["completed"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 1,
        "turnbridge.protocol": "responses",
    }
    assert {name: turn.attributes.get(name) for name in told} == told
    queue, first, rest = traced.parts(turn)
    assert [span.name for span in (queue, first, rest)] == ["queue", "first event", "answer"]
    assert turn.start == queue.start <= queue.end == first.start <= first.end == rest.start <= rest.end == turn.end
    assert request.start <= turn.end <= request.end
    for path, body, headers in traced.collector.bodies:
        assert path == "/v1/traces"
        assert headers["x-tenant"] == "me"
        assert SECRET.encode() not in body
        assert SAID.encode() not in body
    sender = traced.collector.messages[0].resource_spans[0].resource
    resource = {each.key: each.value.string_value for each in sender.attributes}
    assert resource["service.name"] == "turnbridge"
    assert resource["deployment.environment.name"] == "test"


def test_what_a_client_writes_into_a_head_is_shown_with_care(traced: Traced) -> None:
    """Names that look like a key, methods of any length, states of other tracers."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4737"
    headers = {
        "traceparent": f"00-{trace}-00f067aa0ba902b7-01",
        "tracestate": f"vendor={SECRET}",
        "x-client-request-id": SECRET,
    }
    with traced.bridge.client() as client:
        answer = client.request("METHOD" * 100, "/models", headers=headers)
        assert answer.status_code == 405
        client.get("/models", headers=headers | {"tracestate": "vendor=harmless"})

    def found() -> list[Span]:
        mine = [span for span in traced.collector.spans if span.trace == trace]
        return mine if len(mine) == 2 else []

    spans = wait_for(found, "the spans have come", 20)
    assert sorted(span.attributes["http.request.method"] for span in spans) == ["GET", "other"]
    assert all("[redacted:" in span.attributes["turnbridge.client_request_id"] for span in spans)
    bodies = b"".join(body for _, body, _ in traced.collector.bodies)
    assert SECRET.encode() not in bodies
    assert b"METHODMETHOD" not in bodies
    assert b"vendor=harmless" in bodies


def test_a_failure_has_its_code(traced: Traced) -> None:
    """On the turn; the request has failed too where it is the server's fault."""
    answer = traced.bridge.post("/chat/completions", ask_chat({"exit": 3}))
    request, turn = traced.spans(answer.headers["x-request-id"])
    assert answer.status_code == 502
    assert (turn.failed, turn.attributes["error.type"]) == (True, "backend_crashed")
    assert (request.failed, request.attributes["error.type"]) == (True, "502")
    wait_for(lambda: httpx2.get(f"{traced.bridge.root}/readyz", trust_env=False).status_code == 200, "it is back")


def test_a_client_that_leaves(traced: Traced) -> None:
    """Its spans end when it has gone."""
    connection, response = open_response(
        traced.bridge, "/v1/responses", ask({"text": "x"}, {"hang": True}, stream=True)
    )
    with closing(connection), closing(response):
        request_id = response.getheader("x-request-id")
    assert request_id is not None
    _, turn = traced.spans(request_id)
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["client_gone"]


@pytest.mark.parametrize(
    "given",
    ["", "00-0-0-01", f"ff-{'a' * 32}-{'b' * 16}-01", f"00-{'0' * 32}-{'b' * 16}-01", "x" * 5000],
    ids=["empty", "short", "no version", "no trace", "long"],
)
def test_a_parent_that_is_none_begins_a_trace(traced: Traced, given: str) -> None:
    """Whatever a client writes there."""
    with traced.bridge.client() as client:
        answer = client.post("/responses", json=ask({"text": "hi"}), headers={"traceparent": given})
    request, turn = traced.spans(answer.headers["x-request-id"])
    assert request.parent == ""
    assert turn.trace == request.trace


def test_pages_have_a_span_and_probes_have_none(traced: Traced) -> None:
    """A name that may be a secret is not told."""
    with traced.bridge.client() as client:
        for path in ("/healthz", "/livez", "/readyz", "/health", "/metrics"):
            client.get(f"{traced.bridge.root}{path}")
        last = client.get(f"/models/{SECRET}").headers["x-request-id"]
    (page,) = wait_for(lambda: traced.collector.of(last), "the last one has come", 20)
    assert (page.name, page.failed) == ("GET /v1/models/{model:path}", False)
    assert SECRET not in page.attributes["url.path"]
    probes = ("/healthz", "/livez", "/readyz", "/health", "/metrics")
    assert not [span for span in traced.collector.spans if span.attributes.get("url.path") in probes]


def test_the_turns_of_a_socket(traced: Traced) -> None:
    """Each has its own spans, without a request's."""
    before = len(traced.collector.named(f"chat {MODEL}"))
    with talking(traced.bridge) as talk:
        talk.ask(ask({"text": "one"}))
        talk.ask(ask({"text": "two"}))
    wait_for(lambda: len(traced.collector.named(f"chat {MODEL}")) == before + 2, "they have come", 20)


@pytest.mark.deep
def test_a_collector_that_hangs_delays_nobody(tmp_path: Path) -> None:
    """Turns are answered, and the stop does not wait for it."""
    with collecting() as collector:
        collector.stuck.set()
        with running_bridge(tmp_path, "--mock-only", OTEL_EXPORTER_OTLP_ENDPOINT=collector.address, **QUICK) as bridge:
            bridge.post("/responses", {"model": "mock-echo", "input": "hi"})
            wait_for(lambda: collector.bodies, "it has got something")
            for _ in range(3):
                assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
            assert bridge.stop() == 0
        assert "the last traces could not be sent" in bridge.stderr.read_text()


def test_the_last_spans_are_sent_at_a_stop(tmp_path: Path) -> None:
    """Also where the next batch would be due much later."""
    with collecting() as collector:
        address = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
        with running_bridge(tmp_path, "--mock-only", **address) as bridge:
            bridge.post("/responses", {"model": "mock-echo", "input": "hi"})
            assert bridge.stop() == 0
        assert len(collector.named("chat mock-echo")) == 1


WITHOUT = """
import sys

sys.modules["opentelemetry"] = None
from bridge.cli import main

main()
"""


def test_without_the_extra_it_says_so_and_goes_on(tmp_path: Path) -> None:
    """The variable may be meant for another program on the machine."""
    environment: dict[str, Any] = {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "PORT": "0",
        "PROXY_API_KEY": KEY,
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-c", WITHOUT, "serve", "--mock-only"]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"model": "mock-echo", "input": "hi"}
        try:
            answer = httpx2.post(f"{url}/responses", json=body, headers=headers, timeout=30, trust_env=False)
        finally:
            process.terminate()
            _, said = process.communicate(timeout=30)
    assert answer.status_code == 200
    assert "Install turnbridge[otel]" in said
    assert process.returncode == 0
