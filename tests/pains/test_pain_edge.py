"""Logins, counts, secrets and who is let in: pains 4, 18, 19 and 20."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPResponse
from pathlib import Path

import pytest
from harness import KEY, ROOT, RunningBridge, running_bridge, scripted_codex, turns
from real.provider import Json
from real.rig import CHAT, RESPONSES, Rig
from server.prompted import MODEL, ask, ask_chat, children_of, prompted_codex, raw_request, request_headers, wait_for

# 4. Several processes that race for one refresh token


def login(directory: Path) -> Path:
    """A CODEX_HOME that somebody is logged in to."""
    home = directory / "codex-home"
    home.mkdir()
    (home / "auth.json").write_text(json.dumps({"tokens": {"access_token": "a", "refresh_token": "r"}}))
    return home


def test_pain_04_one_codex_per_login(codex: Rig) -> None:
    """However many requests come at once, one child serves them: only one process can refresh the login."""
    codex.ask(CHAT, {"do": "text"})
    child = codex.child()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda number: codex.ask((RESPONSES, CHAT)[number % 2], {"do": "text"}), range(12)))
        assert codex.child() == child
    assert {answer.status for answer in answers} == {200}
    assert "share one login" not in codex.bridge.stderr.read_text()


def test_pain_04_several_on_one_login_are_warned_of(tmp_path: Path) -> None:
    """More children are to be had, with a warning; and the bridge itself leaves the login alone."""
    home = login(tmp_path)
    before = (home / "auth.json").stat()
    program = str(scripted_codex(tmp_path, turns([{"text": "hi"}])))
    settings = {"CODEX_BIN": program, "CODEX_HOME": str(home), "PROXY_MODELS": "m", "PROXY_WORKERS": "2"}
    with running_bridge(tmp_path, **settings) as bridge:
        assert bridge.post("/responses", {"model": "m", "input": "hi"}).status_code == 200
        wait_for(lambda: len(children_of(bridge.process.pid)) == 2, "both children")
        assert "2 children share one login" in bridge.stderr.read_text()
    assert (home / "auth.json").stat() == before
    assert [path.name for path in home.iterdir()] == ["auth.json"]


# 18. Usage that nobody counts, or that is gone after a restart


def test_pain_18_usage_survives(tmp_path: Path) -> None:
    """What was used is counted by model and day, and is still there after a stop and after a kill."""
    program = str(prompted_codex(tmp_path))
    used = {"usage": {"input": 7, "output": 3, "cached": 2, "reasoning": 1}}
    settings = {"CODEX_BIN": program, "PROXY_MODELS": MODEL}

    def usage(bridge: RunningBridge) -> Json:
        with bridge.client() as client:
            total: Json = client.get("usage").json()["total"]
        return total

    expected = {
        "requests": 3,
        "failed": 1,
        "input_tokens": 14,
        "cached_tokens": 4,
        "output_tokens": 6,
        "reasoning_tokens": 2,
        "total_tokens": 20,
        "cost": None,
    }
    with running_bridge(tmp_path, **settings) as bridge:
        bridge.post("/responses", ask({"text": "hi"}, used))
        bridge.post("/chat/completions", ask_chat({"text": "hi"}, used))
        bridge.post("/responses", ask({"error": {"message": "boom"}}))
        assert usage(bridge) == expected
    with running_bridge(tmp_path, **settings) as bridge:
        assert usage(bridge) == expected
        with bridge.client() as client:
            (row,) = client.get("usage").json()["data"]
            assert (row["model"], row["total_tokens"]) == (MODEL, 20)
            client.post("responses", json=ask({"text": "hi"}, used))
        database = next(bridge.state.rglob("bridge.sqlite3"))
        wait_for(lambda: requests_in(database) == 4, "the count to be written")
        bridge.stop(signal.SIGKILL)
    with running_bridge(tmp_path, **settings) as bridge:
        assert usage(bridge) == expected | {
            "requests": 4,
            "input_tokens": 21,
            "cached_tokens": 6,
            "output_tokens": 9,
            "reasoning_tokens": 3,
            "total_tokens": 30,
        }


def requests_in(database: Path) -> int:
    """How many requests have been written down."""
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT SUM(requests) FROM usage").fetchone()[0])


def test_pain_18_every_answer_tells_its_usage(codex: Rig) -> None:
    """Input, cached, output and reasoning tokens are in each answer, and in the last chunk of a stream if asked for."""
    action = {"do": "text", "usage": {"input": 1000, "cached": 900, "output": 50, "reasoning": 20}}
    for api in (RESPONSES, CHAT):
        assert codex.ask(api, action).usage == (1000, 900, 50, 20)
        more = {"stream_options": {"include_usage": True}} if api is CHAT else {}
        assert codex.ask(api, action, stream=True, **more).usage == (1000, 900, 50, 20)


# 19. Secrets in logs

SECRETS = {
    "key": "first-key-of-the-bridge-0123456789",
    "second key": "cb-second-key-0123456789abcdefghij",
    "wrong key": "wrong-key-that-somebody-sent-98765",
    "key in a URL": "url-key-0123456789abcdef",
    "environment": "sk-proj-environment0123456789",
    "login": "eyJhbGciOiJub25l.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl",
    "upstream": "sk-upstream0123456789abcdef",
    "stderr": "sk-stderr0123456789abcdef",
    "noise": "ghp_noise0123456789abcdefghij",
    "prompt": "sk-prompt0123456789abcdef",
    "password": "correct-horse-battery-staple",
    "tool output": "key-without-any-shape",
}


def test_pain_19_no_secret_is_written_down(tmp_path: Path) -> None:
    """After a session with secrets wherever they can be, none is in the log, on stderr, or in an error's body."""
    secret = SECRETS
    log, home = tmp_path / "events.ndjson", login(tmp_path)
    (home / "auth.json").write_text(json.dumps({"tokens": {"access_token": secret["login"]}}))
    keys = f"{secret['key']}, {secret['second key']}"
    settings = {
        "CODEX_BIN": str(prompted_codex(tmp_path)),
        "CODEX_HOME": str(home),
        "PROXY_API_KEY": keys,
        "OPENAI_API_KEY": secret["environment"],
        "PROXY_MODELS": MODEL,
        "PROXY_LOG_EVENTS": str(log),
    }
    arguments = json.dumps({"q": "tea", "password": secret["password"]})
    history = [
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": json.dumps({"api_key": secret["tool output"]})},
        {"role": "user", "content": json.dumps([{"text": "hi"}])},
    ]
    refusal = {"error": {"message": f"Incorrect API key provided: {secret['upstream']}."}}
    noise = [
        {"stderr": f"ERROR: Authorization: Bearer {secret['stderr']}"},
        {"garbage": f"token={secret['noise']}"},
        {"text": "hi"},
    ]
    shown: list[str] = []
    with running_bridge(tmp_path, **settings) as bridge:
        for key in (secret["key"], secret["second key"]):
            with bridge.client(key=key) as client:
                assert client.post("responses", json=ask(*noise)).status_code == 200
                prompt = ask({"text": f"you said {secret['prompt']}"}, user=key)
                assert client.post("responses", json=prompt).status_code == 200
                assert client.post("responses", json={"model": MODEL, "input": history}).status_code == 200
                assert client.post("responses", json=ask(refusal)).status_code == 502
                failed = client.post("responses", json={"input": key})
                assert failed.status_code == 400
                shown.append(failed.text)
                shown += [client.get(f"{bridge.root}{path}").text for path in ("/healthz", "/readyz", "/v1/usage")]
        with bridge.client(key=secret["wrong key"]) as client:
            shown.append(client.post("responses", json=ask({"text": "x"})).text)
            shown.append(client.get("models", params={"api_key": secret["key in a URL"]}).text)
        # The child dies with a secret on its lips.
        with bridge.client(key=secret["key"]) as client:
            shown.append(client.post("responses", json=ask(*noise[:1], {"exit": 1})).text)
    shown.append(bridge.stderr.read_text())
    assert log.read_text().count("client_request") == 11
    assert leaks_in(log.read_text()) == []
    assert leaks_in("\n".join(shown)) == []


def leaks_in(text: str) -> list[str]:
    """Which secrets a text holds."""
    return [name for name, value in SECRETS.items() if value in text]


@pytest.mark.parametrize("status", [400, 401])
def test_pain_19_a_providers_message_tells_no_key(codex: Rig, status: int) -> None:
    """The key of the provider is the operator's: a client that reads why it was refused does not learn it."""
    action = {"do": "error", "status": status, "message": f"Incorrect API key provided: {SECRETS['upstream']}."}
    answer = codex.ask(CHAT, action)
    assert "Incorrect API key provided" in answer.error["message"]
    assert leaks_in(answer.error["message"]) == []


def test_pain_19_what_a_dying_child_says_is_shown_without_its_secrets(tmp_path: Path) -> None:
    """A child that cannot start tells why; the reason reaches the client, the token does not."""
    token = SECRETS["stderr"]
    program = scripted_codex(tmp_path, turns([], startup=[{"stderr": f"bad login: token {token}"}, {"exit": 1}]))
    with running_bridge(tmp_path, CODEX_BIN=str(program), PROXY_MODELS="m") as bridge:
        body = wait_for(lambda: refusal_of(bridge), "a refusal")
    assert "bad login" in body
    assert token not in body + bridge.stderr.read_text()


def refusal_of(bridge: RunningBridge) -> str | None:
    """The body of the next answer, once it tells what the child said."""
    body = bridge.post("/responses", {"model": "m", "input": "hi"}).text
    return body if "bad login" in body else None


# 20. Locked out by the browser, or open to every page


def talk(bridge: RunningBridge, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request made by hand."""
    with socket.create_connection(("127.0.0.1", bridge.port), timeout=10) as client:
        client.sendall(request)
        response = HTTPResponse(client)
        response.begin()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


BODY = json.dumps({"model": "mock-text", "input": "hi"}).encode()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:11435", "127.0.0.1.evil.example", "192.168.1.5", ""])
def test_pain_20_no_other_name_leads_here(mock_bridge: RunningBridge, host: str) -> None:
    """A page that has its own name lead to the loopback (DNS rebinding) gets nothing, not even with the key."""
    status, headers, body = talk(mock_bridge, raw_request("POST", "/v1/responses", BODY, request_headers(), host=host))
    assert status in (400, 403)
    assert "access-control-allow-origin" not in headers
    assert b"mock response text" not in body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:11435", "[::1]:80", "LOCALHOST"])
def test_pain_20_the_usual_names_do(mock_bridge: RunningBridge, host: str) -> None:
    """Whoever is on this machine and has the key is served."""
    status, _, body = talk(mock_bridge, raw_request("POST", "/v1/responses", BODY, request_headers(), host=host))
    assert (status, b"mock response text" in body) == (200, True)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:3000", "app://evil"])
def test_pain_20_a_page_that_is_not_on_the_list(mock_bridge: RunningBridge, origin: str) -> None:
    """Any other page is refused, in its preflight and in its request; nothing is ever said to all origins."""
    preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    for request in (
        raw_request("OPTIONS", "/v1/responses", b"", preflight),
        raw_request("POST", "/v1/responses", BODY, request_headers(Origin=origin)),
        raw_request("GET", "/v1/models", b"", request_headers(Origin=origin)),
        raw_request("GET", "/healthz", b"", {"Origin": origin}),
    ):
        status, headers, _ = talk(mock_bridge, request)
        assert status == 403
        assert "access-control-allow-origin" not in headers


def test_pain_20_a_page_that_is(mock_bridge: RunningBridge) -> None:
    """Obsidian's plugins get through: preflight with odd headers, request, refusal that can be read."""
    origin = "app://obsidian.md"
    wanted = "authorization,content-type,x-stainless-lang,dangerously-allow-browser,x-my-own"
    preflight = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": wanted,
    }
    status, headers, _ = talk(mock_bridge, raw_request("OPTIONS", "/v1/chat/completions", b"", preflight))
    assert (status, headers["access-control-allow-origin"]) == (204, origin)
    assert "POST" in headers["access-control-allow-methods"]
    assert set(wanted.split(",")) <= set(re.split(r",\s*", headers["access-control-allow-headers"].lower()))
    good = raw_request("POST", "/v1/responses", BODY, request_headers(Origin=origin))
    keyless = raw_request("POST", "/v1/responses", BODY, {"Origin": origin, "Content-Type": "application/json"})
    for request, expected in ((good, 200), (keyless, 401)):
        status, headers, _ = talk(mock_bridge, request)
        assert (status, headers["access-control-allow-origin"]) == (expected, origin)
        assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize("key", [None, "", "codex-local-secret", KEY + "x", KEY[:-1]])
def test_pain_20_nobody_is_let_in_without_the_key(mock_bridge: RunningBridge, key: str | None) -> None:
    """Being on the same machine is not enough."""
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    for method, path, body in (("POST", "/v1/responses", BODY), ("GET", "/v1/models", b""), ("GET", "/v1/usage", b"")):
        status, _, answer = talk(mock_bridge, raw_request(method, path, body, headers))
        assert status == 401
        assert json.loads(answer)["error"]["code"] == "invalid_api_key"


def test_pain_20_by_default_it_is_not_on_the_network(tmp_path: Path, mock_bridge: RunningBridge) -> None:
    """It listens on the loopback; to listen elsewhere takes a key of one's own."""
    assert mock_bridge.root.startswith("http://127.0.0.1:")
    outside = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert f"0100007F:{mock_bridge.port:04X}" in outside
    assert f"00000000:{mock_bridge.port:04X}" not in outside
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PORT": "0", "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "bridge", "serve", "--mock-only", "--host=0.0.0.0"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode != 0
    assert "PROXY_API_KEY" in done.stderr
