"""A bridge in front of scripted providers of every kind, and clients that tell how their requests ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from fault.providers import HELLO, KINDS, Providers, labels_in, providers_in_thread
from harness import KEY, RunningBridge, read_sse, running_bridge, scripted_codex, turns
from server.prompted import EventLog, wait_for
from upstream.answers import Gate
from upstream.anthropic_server import KEY as ANTHROPIC_KEY

Json = dict[str, Any]

ENDPOINTS = ("responses", "chat")
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}
FORMS = [(endpoint, streamed) for endpoint in ENDPOINTS for streamed in (False, True)]
"""(endpoint, whether it is streamed): every way to ask."""

LIMIT = 1.5
"""Seconds of silence that the backends `to-KIND.hasty` allow."""
CODEX_MODEL = "to-the-child"


@dataclass
class Outcome:
    """How a request ended, in one form for both endpoints."""

    status: int
    headers: dict[str, str]
    body: Any
    """What was answered, or the events of it."""
    raw: str
    seconds: float

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def error(self) -> Json | None:
        """The error object, of an HTTP status or of a stream's end."""
        if isinstance(self.body, dict):
            return self.body.get("error")
        last = self.body[-1]
        found: Json | None = last["response"]["error"] if "response" in last else last.get("error")
        return found

    @property
    def code(self) -> str | None:
        """The error's code."""
        error = self.error
        return None if error is None else str(error.get("bridge_code", error["code"]))

    @property
    def text(self) -> str:
        """All that the model said."""
        if isinstance(self.body, list):
            pieces = [event.get("delta") for event in self.body if event.get("type") == "response.output_text.delta"]
            chat = [choice["delta"].get("content") for event in self.body for choice in event.get("choices", ())]
            return "".join(piece or "" for piece in pieces + chat)
        if "choices" in self.body:
            return str(self.body["choices"][0]["message"]["content"])
        return "".join(part["text"] for item in self.body.get("output", ()) for part in item.get("content", ()))


def body_of(endpoint: str, model: str, prompt: str, **members: Any) -> Json:
    """A request of this endpoint."""
    if endpoint == "responses":
        return {"model": model, "input": prompt, **members}
    return {"model": model, "messages": [{"role": "user", "content": prompt}], **members}


@dataclass
class Rig:
    """A bridge, the providers behind it, and its event log. The model `to-KIND` leads to that provider."""

    bridge: RunningBridge
    providers: Providers
    directory: Path
    log: EventLog
    _ids: dict[tuple[str | None, str], str] = field(default_factory=dict)
    _looked_at: int = 0

    def ask(
        self,
        model: str,
        prompt: str = "hi",
        *,
        endpoint: str = "responses",
        stream: bool = False,
        key: str = KEY,
        headers: dict[str, str] | None = None,
        **members: Any,
    ) -> Outcome:
        """One request, to its end."""
        body = body_of(endpoint, model, prompt, stream=stream, **members)
        return self.send("POST", PATHS[endpoint], body, key=key, headers=headers)

    def send(
        self, method: str, path: str, body: Any = None, *, key: str = KEY, headers: dict[str, str] | None = None
    ) -> Outcome:
        """One request on a connection of its own, to its end."""
        outcome = self.send_raw(method, path, body, key=key, headers=headers)
        streamed = "event-stream" in outcome.headers.get("content-type", "")
        said = list(read_sse(iter(outcome.raw.split("\n")))) if streamed else json.loads(outcome.raw or "{}")
        return replace(outcome, body=said)

    def send_text(self, path: str) -> str:
        """The body of a GET, whatever it is."""
        return self.send_raw("GET", path).raw

    def send_raw(
        self, method: str, path: str, body: Any = None, *, key: str = KEY, headers: dict[str, str] | None = None
    ) -> Outcome:
        """The same, with a body that is not parsed."""
        started = time.monotonic()
        connection = HTTPConnection("127.0.0.1", self.bridge.port, timeout=30)
        wanted = {"authorization": f"Bearer {key}", "content-type": "application/json", **(headers or {})}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), wanted)
            response = connection.getresponse()
            raw = response.read().decode()
        finally:
            connection.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Outcome(response.status, found, None, raw, time.monotonic() - started)

    def kept_waiting(self, kind: str, label: str) -> Gate:
        """The gate of a label, once a request has come to it."""
        server = self.providers.of(kind)
        gate = server.plays.gates[label]
        server.wait_for(lambda: gate.held)
        return gate

    def request_of(self, model: str, label: str) -> str | None:
        """The id of the request to this model with this label."""
        records = self.log.records()
        for record in records[self._looked_at :]:
            if record["kind"] == "client_request":
                body = record["payload"].get("body") or {}
                for each in labels_in(json.dumps(body)):
                    self._ids[body.get("model"), each] = record["req_id"]
        self._looked_at = len(records)
        return self._ids.get((model, label))

    def begun(self, model: str, label: str) -> None:
        """Wait until the stream of this request has begun."""

        def has_begun() -> bool:
            req_id = self.request_of(model, label)
            return req_id is not None and bool(self.log.of(req_id, "client_sse"))

        wait_for(has_begun, f"the stream of {label} begins")

    def assert_well(self) -> None:
        """Every backend answers, the child too; nothing went wrong inside the bridge."""
        for kind in KINDS:
            outcome = self.ask(f"to-{kind}")
            assert (outcome.status, outcome.text) == (200, "".join(HELLO)), (kind, outcome.raw)
        assert self.ask(CODEX_MODEL).text == "from the child"
        assert self.send("GET", "/readyz").status == 200
        assert "Traceback" not in self.bridge.stderr.read_text()
        self.providers.assert_well_asked()

    def secrets(self) -> set[str]:
        """Every secret that the providers know."""
        logins = self.providers.codex.logins
        return {
            ANTHROPIC_KEY,
            str(self.providers.responses.key),
            str(self.providers.openai.key),
            *logins.access,
            *logins.states,
        }


def configuration(providers: Providers) -> str:
    """A configuration file with backends for each provider; the model `to-NAME` leads to the backend NAME."""
    ends = {"codex": "/backend-api/codex", "responses": "/v1", "anthropic": "", "openai": "/v1"}
    keys = {
        "codex": f'token_url = "{providers.codex.token_url}"',
        "responses": f'key = "{providers.responses.key}"',
        "anthropic": f'key = "{ANTHROPIC_KEY}"',
        "openai": 'key_env = "CHAT_KEY"',
    }
    tables: dict[str, list[str]] = {}
    for kind in KINDS:
        places = {
            kind: (providers.of(kind).url, 30),
            f"{kind}.hasty": (providers.of(kind).url, LIMIT),
            f"{kind}.tls": (providers.self_signed.url, 5),
            f"{kind}.refused": (providers.unbound.url, 5),
            f"{kind}.dns": ("https://provider.invalid", 5),
        }
        for name, (url, limit) in places.items():
            tables[name] = [
                f'type = "{kind}"',
                f'base_url = "{url}{ends[kind]}"',
                f"timeout = {limit}",
                keys[kind],
            ]
    listed = "\n".join("\n".join([f'[backends."{name}"]', *lines]) for name, lines in tables.items())
    patterns = "\n".join(f'"{name}" = ["to-{name}"]' for name in tables)
    return f"{listed}\n[routing.patterns]\n{patterns}\n"


@contextmanager
def rigged(directory: Path, providers: Providers | None = None, *, more: str = "", **environment: str) -> Iterator[Rig]:
    """A bridge with every backend, and a child that says `from the child`. `more` ends the configuration file."""
    if providers is None:
        with providers_in_thread(directory) as own, rigged(directory, own, more=more, **environment) as rig:
            yield rig
        return
    config, log = directory / "config.toml", directory / "events.ndjson"
    config.write_text(configuration(providers) + more)
    child = scripted_codex(directory, turns([{"text": "from the child"}]))
    settings = {
        **providers.codex.environment(providers.codex.home(directory)),
        "CODEX_BIN": str(child),
        "PROXY_MODELS": CODEX_MODEL,
        "CHAT_KEY": str(providers.openai.key),
        "PROXY_KEEPALIVE": "0.2",
        **environment,
    }
    with running_bridge(directory, f"--config={config}", f"--log-events={log}", **settings) as bridge:
        yield Rig(bridge, providers, directory, EventLog(log))
