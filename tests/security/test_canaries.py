"""Secrets of every shape through every input, and then every output is looked through: none is in any of them.

The inputs: headers, query, bodies of each protocol, WebSocket, what the child says (text, errors, stderr, noise). The
outputs: event log, stderr, error replies, open pages, and everything that is made of the log. What `exec` tells is in
test_exec_canary, what becomes of a provider's key in test_provider_key. What a client itself said is given back to it,
and kept for it in the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest
from harness import KEY, RunningBridge, running_bridge
from protocols.cap.samples import request_body
from server.prompted import LOOK, MODEL, EventLog, ask, ask_chat, prompted_codex, wait_for
from server.talk import talking
from warm import run_warm

from bridge.redact import Redactor

TAIL = "Canary0123456789abcdefghijklmnopqrs"
SHAPES = {
    "openai": f"sk-{TAIL}",
    "openai_project": f"sk-proj-{TAIL}_-{TAIL}",
    "anthropic": f"sk-ant-api03-{TAIL}",
    "ours": f"cb-{TAIL}",
    "jwt": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI{TAIL}.{TAIL}",
    "jwt_long": f"eyJ{'hbGciOiJIUzI1NiJ9' * 40}.eyJzdWIiOiI{TAIL}.{TAIL}",
    "groq": f"gsk_{TAIL}",
    "github": f"ghp_{TAIL}",
    "github_pat": f"github_pat_{TAIL}",
    "google": f"AIza{TAIL}",
    "slack": f"xoxb-{TAIL}",
    "bearer": f"Bearer {TAIL}/+==",
    "userinfo": f"https://user:{TAIL}@example.org/",
    "query_key": f"https://example.org/v1?alt=1&key={TAIL}",
    "query_token": f"https://example.org/v1?access_token={TAIL}#x",
    "near_token": f"the token: {TAIL}",
    "near_password": f"PASSWORD={TAIL}",
    "near_passphrase": f"passphrase: {TAIL}",
    "in_a_url": f"next=https%3A%2F%2Fexample.org%3Fq%3Dsk-{TAIL}",
}


@dataclass
class Watched:
    """A bridge, its event log, and the answers that are not the client's own words given back."""

    bridge: RunningBridge
    directory: Path
    told: list[str] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.directory / "events.ndjson"


def push(watched: Watched, secret: str) -> None:
    """A secret, or many at once, through every input."""
    bridge, told = watched.bridge, watched.told
    say = {"text": "hi"}
    arguments = json.dumps({"q": secret})
    past = [
        {"role": "system", "content": secret},
        {"role": "user", "content": [{"type": "input_text", "text": f"this is {secret} it"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": json.dumps({"page": f"\n{secret}\n"})},
        {"role": "user", "content": json.dumps([say])},
    ]
    tool = {**LOOK, "description": f"uses {secret}"}
    with bridge.client() as client:
        for method, url in (("GET", "/v1/models"), ("GET", "/v1/nothing"), ("POST", "/v1/responses")):
            header = secret.removeprefix("Bearer ")
            for headers in (
                {"authorization": f"Bearer {header}"},
                {"authorization": f"Basic {header}"},
                {"x-api-key": header, "authorization": ""},
                {"x-unknown": secret, "cookie": f"token={secret}", "referer": secret, "user-agent": secret},
                {"x-request-id": header, "x-client-request-id": header, "idempotency-key": header},
            ):
                answer = client.request(method, bridge.root + url, params={"api_key": secret}, headers=headers)
                told.append(answer.text + str(answer.headers))
        for body in (
            {"model": MODEL, "input": past, "instructions": secret, "tools": [tool], "metadata": {"a": secret}},
            ask(say, user=secret, prompt_cache_key=secret, safety_identifier=secret),
            ask(say) | {f"x-{SHAPES['openai']}": 1, "api_key": secret, "unknown": {"nested": [secret]}},
        ):
            assert client.post("/responses", json=body).status_code == 200
        assert client.post("/chat/completions", json=ask_chat(say, user=secret)).status_code == 200
        asked = request_body(query=json.dumps([say]), meta={"model": MODEL, "note": secret})
        assert client.post("/assist", json={**asked, "request_id": str(uuid4())}).status_code == 200
        # What the child says. Its text is the model's: it goes to the client as it is.
        for stream in (False, True):
            client.post("/responses", json=ask({"text": f"so {secret} it is", "chunk": 7}, stream=stream))
            client.post("/chat/completions", json=ask_chat({"text": f"so {secret} it is", "chunk": 7}, stream=stream))
            client.post("/responses", json=ask({"reasoning": [secret]}, say, stream=stream))
            for path, failing in (("/responses", ask), ("/chat/completions", ask_chat)):
                for info in ("other", "badRequest", "unauthorized", "rateLimitExceeded"):
                    step = {"error": {"message": f"Incorrect key: {secret} was refused", "info": info}}
                    told.append(client.post(path, json=failing(step, stream=stream)).text)
        client.post("/responses", json=ask({"stderr": f"ERROR {secret} failed"}, {"garbage": f"noise {secret}"}, say))
        asking = {"request": {"method": "item/tool/call", "params": {"tool": "x", "arguments": {"q": secret}}}}
        client.post("/responses", json=ask(asking, say))
        for path in ("/healthz", "/readyz", "/health", "/openapi.json", "/v1/models", "/v1/rate-limits", "/metrics"):
            told.append(client.get(bridge.root + path).text)
        told.append(client.post("/responses", content=f'{{"model": {secret}'.encode()).text)
    with talking(bridge) as talk:
        talk.ask(ask(say, instructions=secret))
        told.append(json.dumps(talk.refused({"model": MODEL, "input": 5, "instructions": secret})))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """After all of it."""
    directory = tmp_path_factory.mktemp("canaries")
    codex = str(prompted_codex(directory))
    arguments = [f"--log-events={directory / 'events.ndjson'}"]
    secrets = {name.upper(): secret for name, secret in SHAPES.items()}
    with running_bridge(directory, *arguments, CODEX_BIN=codex, PROXY_MODELS=MODEL, **secrets) as bridge:
        ready = Watched(bridge, directory)
        push(ready, "; ".join(SHAPES.values()))
        last = bridge.post("/responses", ask({"text": "the last"})).headers["x-request-id"]
        log = EventLog(ready.log)
        wait_for(lambda: log.turn_end(last), "everything is written")
        yield ready


def assert_clean(where: str, text: str) -> None:
    """No canary, as it is or as JSON or a URL writes it; nor the key of the bridge itself."""
    place = text.find("Canary0123")
    assert place < 0, f"{where}: …{text[max(0, place - 200) : place + 50]}…"
    assert KEY not in text, where


def test_the_event_log_holds_none(watched: Watched) -> None:
    """Whole texts and pieces of a stream alike."""
    records = watched.log.read_text().split("\n")
    assert len(records) > 200
    for record in records:
        if '"deltas"' not in record and "output_text.delta" not in record and "agentMessage/delta" not in record:
            assert_clean("event log", record)
    assert "[redacted:" in watched.log.read_text()


def test_a_log_of_pieces_is_cleaned_by_redact(watched: Watched, tmp_path: Path) -> None:
    """A secret that a model spells out piece by piece is not known before its end; `log redact` finds it."""
    copy, secrets = tmp_path / "copy.ndjson", tmp_path / "secrets"
    secrets.write_text("\n".join([*SHAPES.values(), TAIL]))
    environment = {"PATH": "/usr/bin", "HOME": str(tmp_path)}
    options = ("--output", copy, "--secret-file", secrets)
    done = run_warm("log", "redact", watched.log, *options, env=environment, text=True)
    assert done.returncode == 0, done.stderr
    assert_clean("redacted", copy.read_text())


def test_keys_that_nobody_names_are_removed_from_the_pieces(watched: Watched, tmp_path: Path) -> None:
    """Their shape is enough, and what is made of the copy then holds none."""
    copy, environment = tmp_path / "copy.ndjson", {"PATH": "/usr/bin", "HOME": str(tmp_path)}
    options = ("--output", copy, "--secret", "something else")
    done = run_warm("log", "redact", watched.log, *options, env=environment, text=True)
    assert done.returncode == 0, done.stderr
    for form in ("text", "chat", "responses"):
        assert_clean(form, run_warm("replay", copy, "--as", form, env=environment, text=True).stdout)


def test_stderr_and_stdout_hold_none(watched: Watched) -> None:
    assert_clean("stderr", watched.bridge.stderr.read_text())
    assert "Traceback" not in watched.bridge.stderr.read_text()


def test_no_answer_tells_one(watched: Watched) -> None:
    """Not of a key that was wrong, nor of what a provider or a child has repeated of it."""
    assert len(watched.told) > 30
    for answer in watched.told:
        assert_clean("answer", answer)


@pytest.mark.parametrize("form", ["html", "har", "jsonl"])
def test_nothing_that_is_made_of_the_log_holds_one(watched: Watched, tmp_path: Path, form: str) -> None:
    """Pages, archives and rows."""
    place = tmp_path / f"out.{form}"
    environment = {"PATH": "/usr/bin", "HOME": str(tmp_path)}
    done = run_warm("log", "export", watched.log, f"--{form}", place, env=environment, text=True)
    assert done.returncode == 0, done.stderr
    assert_clean(form, place.read_text())
    assert_clean("stderr", done.stderr)


@pytest.mark.parametrize("command", [["ls"], ["ls", "--json"], ["stats"], ["stats", "--json"], ["tail"]], ids=" ".join)
def test_nothing_that_is_shown_of_the_log_holds_one(watched: Watched, tmp_path: Path, command: list[str]) -> None:
    environment = {"PATH": "/usr/bin", "HOME": str(tmp_path), "COLUMNS": "300"}
    done = run_warm("log", command[0], watched.log, *command[1:], env=environment, text=True)
    assert done.returncode == 0, done.stderr
    assert_clean("log", done.stdout + done.stderr)


@pytest.mark.parametrize("secret", SHAPES.values(), ids=SHAPES)
def test_every_shape_goes_in_every_spelling(secret: str) -> None:
    """Alone, in a sentence, in JSON, in JSON within JSON, in a header, on a line of its own, within a URL."""
    redactor = Redactor()
    once = json.dumps({"text": f"see {secret} there", "list": [secret]})
    texts = [secret, f"see {secret} there", f"\n{secret}\n", f"'{secret}'", once, json.dumps({"arguments": once})]
    if "@" not in secret:  # a URL within a URL tells nobody which is the password
        within = quote(f"to={secret} there", safe="")
        texts += [
            within,
            f"https://example.org/?next={within}",
            quote(within, safe="") if secret.startswith("sk-") else within,
        ]
    for text in texts:
        assert TAIL not in redactor.text(text.encode()).decode(), text
        assert TAIL not in redactor.json(json.dumps({"x": text}).encode()).decode(), text
