"""GET /metrics, read as Prometheus reads it, from bridges to which things happen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from harness import KEY, ROOT, RunningBridge, running_bridge
from prometheus_client.parser import text_string_to_metric_families
from server.prompted import LOOK, MODEL, ask, ask_chat, open_response, prompted_codex, send_request, wait_for
from server.talk import talking
from warm import run_warm

from bridge.app.metrics import Sources
from bridge.app.prometheus import Exposition
from bridge.server.gate import label_of
from bridge.telemetry import Counts, side_of

PREFIX = "turnbridge_"
SECRET = "sk-" + "s3cr3t" * 8


@dataclass
class Numbers:
    """One look at the metrics."""

    text: str
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def __call__(self, name: str, **labels: str) -> float:
        """The value of a sample; 0 where there is none yet."""
        return self.samples.get((PREFIX + name, tuple(sorted(labels.items()))), 0)


def look(bridge: RunningBridge) -> Numbers:
    """The metrics as they are now."""
    with bridge.client() as client:
        answer = client.get(f"{bridge.root}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(answer.text))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    assert sum(len(family.samples) for family in families) == len(samples), "a sample stands there twice"
    return Numbers(answer.text, samples)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge to which nothing happens but what these tests do."""
    directory = tmp_path_factory.mktemp("counting")
    environment = {"CODEX_BIN": str(prompted_codex(directory)), "PROXY_MODELS": MODEL, "PROXY_KEEPALIVE": "0.2"}
    with running_bridge(directory, **environment) as bridge:
        yield bridge


@pytest.fixture
def before(counting: RunningBridge) -> Numbers:
    """Its metrics before the test."""
    return look(counting)


def grown(bridge: RunningBridge, before: Numbers, name: str, **labels: str) -> float:
    """By how much a number has grown."""
    return look(bridge)(name, **labels) - before(name, **labels)


def documented() -> set[str]:
    """The names in the table of docs/operations.md."""
    section = (ROOT / "docs/operations.md").read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (?:counter|gauge|histogram) \|", section, re.MULTILINE)
    return {PREFIX + name for row in rows for name in re.findall("`(.+?)`", row)}


def test_what_is_served_is_what_is_documented(counting: RunningBridge) -> None:
    """Each name of the docs is there, and no other of ours; the process's own are."""
    counting.post("/responses", ask({"text": "hi"}))
    text = look(counting).text
    told = {name for name in re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE) if name.startswith(PREFIX)}
    only_with_shared_limits = {name for name in documented() if name.startswith(f"{PREFIX}shared_")}
    assert told == documented() - only_with_shared_limits
    for name in ("process_resident_memory_bytes", "process_open_fds"):
        assert re.search(rf"^{name} [1-9]", text, re.MULTILINE)


def test_it_needs_the_key(counting: RunningBridge, before: Numbers) -> None:
    """Like every page; each refusal is counted by its code, and none under what was sent."""
    bridge = counting
    page = f"{bridge.root}/metrics"
    codes = {"invalid_api_key": {}, "host_not_allowed": {"host": "evil.example"}}
    codes["origin_not_allowed"] = {"origin": "https://evil.example", "authorization": f"Bearer {KEY}"}
    for code, headers in codes.items():
        answer = httpx2.get(page, headers=headers, trust_env=False)
        assert answer.status_code in (401, 403)
        assert "turnbridge_" not in answer.text
        assert grown(bridge, before, "refusals_total", code=code) == 1
    assert "evil" not in look(bridge).text


def test_turns_are_counted_by_protocol_model_and_outcome(counting: RunningBridge, before: Numbers) -> None:
    """With their tokens, by key, over HTTP and a WebSocket; the time to the first event is measured."""
    bridge = counting
    used = {"usage": {"input": 7, "output": 3, "cached": 2, "reasoning": 1}}
    assert bridge.post("/responses", ask({"text": "hi"}, used, temperature=0.5, top_k=3)).status_code == 200
    assert bridge.post("/chat/completions", ask_chat({"text": "hi"}, used)).status_code == 200
    with talking(bridge) as talk:
        assert look(bridge)("websockets_open") == 1
        talk.ask(ask({"text": "hi"}, used))
    done = {"model": MODEL, "outcome": "completed"}
    by_key = {"key": label_of(KEY), "outcome": "completed"}
    # A turn is counted when its end has been told.
    wait_for(lambda: grown(bridge, before, "key_turns_total", **by_key) >= 3, "all are counted")
    after = look(bridge)
    assert after("turns_total", protocol="responses", **done) - before("turns_total", protocol="responses", **done) == 2
    assert after("turns_total", protocol="chat", **done) - before("turns_total", protocol="chat", **done) == 1
    assert after("key_turns_total", **by_key) - before("key_turns_total", **by_key) == 3
    for kind, tokens in {"input": 21, "cached": 6, "output": 9, "reasoning": 3}.items():
        assert grown(bridge, before, "tokens_total", model=MODEL, kind=kind) == tokens
    assert grown(bridge, before, "ignored_fields_total") == 2
    assert after("events_total") > before("events_total")
    (backend,) = {dict(labels)["backend"] for name, labels in after.samples if name.endswith("first_event_seconds_sum")}
    assert grown(bridge, before, "first_event_seconds_count", backend=backend) == 3
    assert grown(bridge, before, "rpc_seconds_count", backend=backend, method="turn/start") == 3
    posted = {"method": "POST", "route": "/v1/responses", "status": "200"}
    assert grown(bridge, before, "http_requests_total", **posted) == 1
    assert after("turns_waiting") == 0
    wait_for(lambda: not look(bridge)("turns_in_flight", backend=backend), "the child has freed all")
    assert after("children", backend=backend, state="handshake_complete") == 1
    assert after("ready") == 1


def test_a_failure_has_a_code_and_a_side(counting: RunningBridge, before: Numbers) -> None:
    """The client's, and the backend's; a code that the provider makes up is no name."""
    bridge = counting
    invented = json.dumps({"error": {"message": "no", "code": f"<{SECRET}>"}})
    bridge.post("/responses", {"model": f"{SECRET}-unknown", "input": "hi"})
    bridge.post("/responses", ask({"error": {"message": "slow down", "info": "rateLimitExceeded"}}))
    bridge.post("/responses", ask({"error": {"message": invented, "info": "badRequest"}}))
    after = look(bridge)
    for code, side in (("model_not_found", "client"), ("rate_limit_exceeded", "backend"), ("other", "client")):
        labels = {"code": code, "side": side}
        assert after("failures_total", **labels) - before("failures_total", **labels) == 1, code
    assert SECRET not in after.text


def test_turns_that_run_and_clients_that_leave(counting: RunningBridge, before: Numbers) -> None:
    """A turn in flight is seen, its keepalives are counted, and that its client left."""
    bridge = counting
    connection, response = open_response(bridge, "/v1/responses", ask({"text": "hi"}, {"hang": True}, stream=True))
    with closing(connection), closing(response):
        assert response.status == 200
        wait_for(lambda: grown(bridge, before, "keepalives_total") >= 1, "a keepalive")
        now = look(bridge)
        assert sum(value for (name, _), value in now.samples.items() if name == f"{PREFIX}turns_in_flight") >= 1
        wait_for(lambda: look(bridge)("http_requests_open") == 2, "this one and that for the metrics")
    gone = {"code": "client_gone", "side": "client"}
    wait_for(lambda: grown(bridge, before, "failures_total", **gone) == 1, "it is counted")
    cancelled = {"protocol": "responses", "model": MODEL, "outcome": "cancelled"}
    assert grown(bridge, before, "turns_total", **cancelled) == 1
    wait_for(lambda: look(bridge)("http_requests_open") == 1, "it is over")


def test_what_a_child_does_wrong(tmp_path: Path) -> None:
    """Garbage, approvals, calls in a bad form, a death: counted over the lives of the child; secrets removed, too."""
    log = tmp_path / "events.ndjson"
    program = str(prompted_codex(tmp_path))
    with running_bridge(tmp_path, f"--log-events={log}", CODEX_BIN=program, PROXY_MODELS=MODEL) as bridge:
        fence = '<tool_call>\n```json\n{"name": "look", "arguments": {"q": "x"}}\n```\n</tool_call>'
        unknown = '<tool_call>{"name": "other_tool", "arguments": {}}</tool_call>'
        approval = {"request": {"method": "item/commandExecution/requestApproval", "params": {}}}
        strange = {"request": {"method": f"x/{SECRET}", "params": {}}}
        for steps in (
            [{"garbage": "no"}, {"garbage": f"key {SECRET}"}, {"text": "hi"}],
            [approval, strange, {"text": "hi"}],
            [{"text": fence + unknown}],
        ):
            assert bridge.post("/responses", ask(*steps, tools=[LOOK])).status_code == 200
        assert bridge.post("/responses", ask({"exit": 3})).status_code == 502
        wait_for(lambda: httpx2.get(f"{bridge.root}/readyz", trust_env=False).status_code == 200, "it is back")
        now = look(bridge)
        (backend,) = {
            dict(labels)["backend"] for name, labels in now.samples if name.endswith("first_event_seconds_sum")
        }
        assert now("child_garbage_lines_total", backend=backend) == 2
        assert now("child_restarts_total", backend=backend) == 1
        asked = "item/commandExecution/requestApproval"
        assert now("child_requests_total", backend=backend, method=asked) == 1
        assert now("child_requests_total", backend=backend, method="other") == 1
        assert now("tool_call_repairs_total", repair="code_fence") == 1
        assert now("tool_call_rejections_total", reason="unknown_tool") == 1
        assert now("failures_total", code="backend_crashed", side="backend") == 1
        assert now("redactions_total") >= 2
        assert now("log_records_dropped_total") == 0
        assert SECRET not in now.text


def test_who_waits_for_a_place_is_seen(tmp_path: Path) -> None:
    """One turn runs, one is in the queue. A key that is for some models alone may not look."""
    environment = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL, "PROXY_MAX_TURNS": "1"}
    with running_bridge(tmp_path, **environment) as bridge:
        hanging = ask({"text": "hi"}, {"hang": True}, stream=True)
        connection, response = open_response(bridge, "/v1/responses", hanging)
        with closing(connection), closing(response), closing(send_request(bridge, "/v1/responses", hanging)):
            wait_for(lambda: look(bridge)("turns_queued") == 1, "the second one waits")
            assert look(bridge)("turns_waiting") == 1
        wait_for(lambda: not look(bridge)("turns_queued"), "it has left")
        state = {"XDG_STATE_HOME": str(bridge.state), "HOME": str(tmp_path)}
        made = run_warm("keys", "add", "guest", "--models", MODEL, "--json", env=state, text=True)
        assert made.returncode == 0, made.stderr
        with bridge.client(key=json.loads(made.stdout)["key"]) as guest:
            assert guest.get("/models").status_code == 200
            refused = guest.get(f"{bridge.root}/metrics")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")


def test_records_that_the_log_lost(tmp_path: Path) -> None:
    """A disk that takes nothing."""
    with running_bridge(tmp_path, "--mock-only", "--log-events=/dev/full") as bridge:
        assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
        wait_for(lambda: look(bridge)("log_records_dropped_total") > 0, "records are lost")


def test_no_name_comes_from_a_client(tmp_path: Path) -> None:
    """Dozens of paths, methods, models, keys and fields make a few names, and none of theirs."""
    mark = "zq7"
    with running_bridge(tmp_path, "--mock-only") as bridge, bridge.client() as client:
        client.post("/responses", json={"model": "mock-echo", "input": "hi"})
        first = len(look(bridge).samples)
        for number in range(30):
            name = f"{mark}{number}"
            client.get(f"/{name}")
            client.get(f"/models/{name}")
            client.request(f"X{mark.upper()}{number}", "/models")
            client.post("/responses", json={"model": name, "input": "hi"})
            client.post("/responses", json={"model": "mock-echo", "input": "hi", name: True})
            client.get("/models", headers={"authorization": f"Bearer {name}", "x-request-id": name})
        now = look(bridge)
        assert mark not in now.text.lower()
        assert len(now.samples) < first + 150
        assert now("http_requests_total", method="other", route="/v1/models", status="405") == 30
        assert now("refusals_total", code="invalid_api_key") == 30


def test_two_bridges_in_one_program_do_not_mix() -> None:
    """Each has a registry of its own, and its own numbers."""
    busy, idle = Counts(), Counts()
    busy.keepalives = 3
    texts = [Exposition(Sources(counts)).text().decode() for counts in (busy, idle)]
    assert [re.findall("^turnbridge_keepalives_total (.+)$", text, re.MULTILINE) for text in texts] == [
        ["3.0"],
        ["0.0"],
    ]


def test_a_model_that_nobody_lists_is_another() -> None:
    """A pattern of the operator's lets clients write any name behind it."""
    counts, listed = Counts(), ["gpt-5.5", "claude-x"]
    asked = ["gpt-5.5", "claude-x", f"claude-{SECRET}", "gpt-5.5"]
    assert [counts.known_model(model, lambda: listed) for model in asked] == ["gpt-5.5", "claude-x", "other", "gpt-5.5"]
    listed.clear()
    assert counts.known_model("gpt-5.5", lambda: listed) == "gpt-5.5", "a child that is away takes no name back"


def test_whose_side_an_error_is_on() -> None:
    """Each of our errors is somebody's."""
    from bridge import errors

    sides = {
        "client": [errors.InvalidRequest("x"), errors.PayloadTooLarge("x"), errors.SlowClient("x")],
        "bridge": [errors.BridgeError("x"), errors.Overloaded("x"), errors.NotReady("x", code="shutdown_initiated")],
        "backend": [
            errors.UpstreamError("x", http_status=429),
            errors.BackendCrashed("x"),
            errors.BackendTimeout("x"),
            errors.NotReady("x", code="handshake_failed"),
        ],
    }
    assert {side: [side_of(error) for error in found] for side, found in sides.items()} == {
        side: [side] * len(found) for side, found in sides.items()
    }
