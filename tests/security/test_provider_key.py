"""The key that a request brings for its provider (X-Provider-Key): used for it alone, and seen by nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from fault.providers import HELLO, KINDS, CodexServer, Providers, labelled, marked, providers_in_thread
from fault.rig import CODEX_MODEL, FORMS, Rig, rigged
from harness import KEY
from server.prompted import wait_for
from server.talk import talking
from upstream.anthropic_server import KEY as ANTHROPIC_KEY
from upstream.connection import Request
from websockets.sync.client import connect

OWN = "own-canary-key-0123456789"
"""The key of a request; the scripted providers take every key that begins with `own-`."""
ODD = 'own-"canary"\\key/0123456789'
"""One that JSON writes in another way."""
SHORT = "ell"
"""A key of an operator whose server takes any."""
KEYED = {"x-provider-key": OWN}
SAID = "".join(HELLO)
KEYLESS = ("responses", "anthropic", "openai")
KIND = pytest.mark.parametrize("kind", KINDS)


def keyless(providers: Providers) -> str:
    """Backends that nobody has configured a key for, and one whose key is short."""
    urls = {
        "responses": f"{providers.responses.url}/v1",
        "anthropic": providers.anthropic.url,
        "openai": f"{providers.openai.url}/v1",
    }
    tables = [
        f'[backends."{kind}.keyless"]\ntype = "{kind}"\nbase_url = "{url}"\nkey_env = "NOBODY_SETS_THIS"\n'
        f'discovery = true\nmodels = ["keyless-{kind}"]\n'
        for kind, url in urls.items()
    ]
    short = (
        f'[backends.short]\ntype = "openai"\nbase_url = "{urls["openai"]}"\nkey = "{SHORT}"\nmodels = ["to-short"]\n'
    )
    return "".join(tables) + short


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("provider-key")
    with providers_in_thread(directory) as providers:
        providers.codex.logins.keys |= {OWN, ODD}
        with rigged(directory, providers, more=keyless(providers)) as ready:
            yield ready


def key_of(request: Request) -> str:
    """The key that a provider got."""
    (key,) = [
        value.removeprefix("Bearer ") for name, value in request.header_list if name in ("authorization", "x-api-key")
    ]
    return key


def keys_of(rig: Rig, kind: str, label: str) -> list[str]:
    return [key_of(request) for request in labelled(rig.providers.of(kind), label)]


def configured(rig: Rig, kind: str) -> set[str]:
    """What the operator gave for this provider."""
    if kind == "codex":
        return rig.providers.codex.logins.access
    keys = {"anthropic": ANTHROPIC_KEY, "responses": rig.providers.responses.key, "openai": rig.providers.openai.key}
    return {str(keys[kind])}


# Whose key is used


@KIND
def test_the_key_of_a_request_is_used_for_that_request(rig: Rig, kind: str) -> None:
    """In every form; the next one without it uses what is configured."""
    for endpoint, stream in FORMS:
        label = f"used.{endpoint}.{stream}"
        for headers in (KEYED, None, KEYED, None):
            outcome = rig.ask(f"to-{kind}", marked("hello", label), endpoint=endpoint, stream=stream, headers=headers)
            assert (outcome.status, outcome.text) == (200, SAID), outcome.raw
        got = keys_of(rig, kind, label)
        assert [key == OWN for key in got] == [True, False, True, False]
        assert {got[1], got[3]} <= configured(rig, kind)
    rig.providers.assert_well_asked()


@KIND
def test_it_is_used_wherever_a_model_is_asked(rig: Rig, kind: str) -> None:
    """For several choices, in the background, to compact, over a WebSocket; and not by what continues from there."""
    model = f"to-{kind}"
    assert rig.ask(model, marked("hello", "n"), endpoint="chat", n=2, headers=KEYED).status == 200
    assert keys_of(rig, kind, "n") == [OWN, OWN]
    made = rig.ask(model, marked("hello", "behind"), background=True, headers=KEYED).body["id"]
    wait_for(lambda: rig.send("GET", f"/v1/responses/{made}").body["status"] == "completed", "completed")
    assert keys_of(rig, kind, "behind") == [OWN]
    rig.ask(model, marked("hello", "after"), previous_response_id=made)
    assert keys_of(rig, kind, "after")[0] in configured(rig, kind)
    compacted = {"model": model, "input": marked("hello", "compact")}
    assert rig.send("POST", "/v1/responses/compact", compacted, headers=KEYED).status == 200
    assert keys_of(rig, kind, "compact") == [OWN]
    headers = {"Authorization": f"Bearer {KEY}", "X-Provider-Key": OWN}
    url = f"ws://127.0.0.1:{rig.bridge.port}/v1/responses"
    with connect(url, additional_headers=headers, proxy=None) as socket, talking(rig.bridge) as talk:
        socket.send(json.dumps({"type": "response.create", "model": model, "input": marked("hello", "socket")}))
        while json.loads(socket.recv(10))["type"] != "response.completed":
            pass
        assert keys_of(rig, kind, "socket") == [OWN]
        talk.ask({"model": model, "input": marked("hello", "other-socket")})
        assert keys_of(rig, kind, "other-socket")[0] in configured(rig, kind)


@pytest.mark.parametrize("kind", KEYLESS)
def test_a_backend_without_a_key_serves_those_who_bring_one(rig: Rig, kind: str) -> None:
    """And refuses the next one who does not, before the provider hears of it."""
    for number in range(2):
        refused = rig.ask(f"keyless-{kind}", marked("hello", f"off.{number}"))
        assert (refused.status, refused.code) == (400, "model_not_found")
        assert "NOBODY_SETS_THIS" in refused.raw
        assert labelled(rig.providers.of(kind), f"off.{number}") == []
        served = rig.ask(f"keyless-{kind}", marked("hello", f"on.{number}"), headers=KEYED)
        assert (served.status, served.text) == (200, SAID)
        assert keys_of(rig, kind, f"on.{number}") == [OWN]


def test_a_list_of_models_is_never_asked_for_with_it(rig: Rig) -> None:
    """What one client may see is not what all may."""
    for kind in KEYLESS:
        rig.ask(f"keyless-{kind}", headers=KEYED)
    listed = rig.send("GET", "/v1/models", headers=KEYED)
    assert listed.status == 200
    assert not [model for model in listed.body["data"] if "keyless" in model["id"]]
    for kind in ("responses", "anthropic", "openai"):
        server = rig.providers.of(kind)
        assert not isinstance(server, CodexServer)
        assert not [request for request in server.listings if OWN in str(request.header_list)]


# Who gets to see it


@KIND
@pytest.mark.parametrize("play", ["hello", "echo", "echo-refusal", "401", "403", "html", "html-502", "truncated"])
def test_it_is_told_to_nobody(rig: Rig, kind: str, play: str) -> None:
    """Whatever the provider makes of it: not to the client, not to the log, not to the store."""
    for endpoint, stream in FORMS:
        outcome = rig.ask(f"to-{kind}", marked(play, f"told.{play}"), endpoint=endpoint, stream=stream, headers=KEYED)
        assert "canary" not in outcome.raw + str(outcome.headers), outcome.raw
        if endpoint == "responses" and outcome.status == 200:
            response = outcome.body[-1]["response"] if stream else outcome.body
            stored = rig.send("GET", f"/v1/responses/{response['id']}")
            assert stored.status == 200
            assert "canary" not in stored.raw
    assert set(keys_of(rig, kind, f"told.{play}")) == {OWN}


def test_the_child_does_not_get_it(rig: Rig) -> None:
    """Neither Codex nor the stand-in has any use for it; the event log has every line that they were sent."""
    for model in (CODEX_MODEL, "mock-echo"):
        outcome = rig.ask(model, headers=KEYED)
        assert outcome.status == 200
        wait_for(partial(rig.log.turn_end, outcome.request_id), "turn_end")
        assert rig.log.calls(outcome.request_id)
        assert "canary" not in outcome.raw + json.dumps(
            [record for record in rig.log.records() if record["req_id"] == outcome.request_id]
        )


def test_the_other_providers_do_not_get_it(rig: Rig) -> None:
    """A key for one of them is sent to that one."""
    for kind in KINDS:
        key = f"own-canary-for-{kind}"
        rig.providers.codex.logins.keys.add(key)
        assert rig.ask(f"to-{kind}", headers={"x-provider-key": key}).status == 200
    for kind in KINDS:
        seen = {key_of(request) for request in rig.providers.of(kind).requests}
        assert {key for key in seen if key.startswith("own-canary-for-")} == {f"own-canary-for-{kind}"}


@KIND
def test_a_key_that_json_writes_in_another_way_is_told_to_nobody(rig: Rig, kind: str) -> None:
    for play in ("echo", "echo-refusal", "403"):
        outcome = rig.ask(f"to-{kind}", marked(play, "odd"), headers={"x-provider-key": ODD})
        assert "canary" not in outcome.raw


def test_a_short_key_does_not_change_what_a_model_says(rig: Rig) -> None:
    """Servers that take any key are given `x`, `none` or `ollama`, and models say such words."""
    rig.providers.openai.key, before = SHORT, rig.providers.openai.key
    try:
        assert rig.ask("to-short", marked("hello", "short")).text == SAID
    finally:
        rig.providers.openai.key = before


# Values that cannot be sent on

INVALID = {
    "empty": "",
    "space": "own canary",
    "tab": "own\tcanary",
    "latin": "own-canary-\xe9",
}
BAD = pytest.mark.parametrize("value", INVALID.values(), ids=INVALID)


@BAD
def test_a_value_that_cannot_be_a_key_is_refused(rig: Rig, value: str) -> None:
    """With 400, without repeating it, whatever the model."""
    for model in ("to-openai", "to-anthropic", CODEX_MODEL, "mock-echo"):
        for endpoint, stream in FORMS:
            refused = rig.ask(
                model, marked("hello", "invalid"), endpoint=endpoint, stream=stream, headers={"x-provider-key": value}
            )
            assert (refused.status, refused.code) == (400, "invalid_provider_key"), refused.raw
            assert "canary" not in refused.raw
    assert labelled(rig.providers.openai, "invalid") == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/responses/input_tokens"),
        ("GET", "/v1/models"),
        ("GET", "/healthz"),
    ],
)
def test_so_it_is_everywhere_else(rig: Rig, method: str, path: str) -> None:
    """Or nobody looks at it, where it has no meaning; but nothing fails for it."""
    body = {"model": "to-openai", "input": "hi"} if method == "POST" else None
    answered = rig.send(method, path, body, headers={"x-provider-key": "own canary"})
    assert answered.status == 400 or (method == "GET" and answered.status == 200)
    assert answered.body
    assert "canary" not in answered.raw


def test_a_websocket_with_such_a_value_is_told(rig: Rig) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "X-Provider-Key": "own canary"}
    url = f"ws://127.0.0.1:{rig.bridge.port}/v1/responses"
    with connect(url, additional_headers=headers, proxy=None) as socket:
        socket.send(json.dumps({"type": "response.create", "model": "to-openai", "input": "hi"}))
        refused = json.loads(socket.recv(10))
    assert (refused["type"], refused["status"]) == ("error", 400)
    assert refused["error"]["code"] == "invalid_provider_key"
    assert "canary" not in json.dumps(refused)


# At the end


def test_it_is_in_no_file(rig: Rig) -> None:
    """Neither in the event log nor in the store, on stderr or anywhere else; nor is it part of what is counted."""
    assert "canary" not in rig.send("GET", "/v1/usage", headers=KEYED).raw
    for path in rig.directory.rglob("*"):
        if path.is_file() and path.name not in ("auth.json", "config.toml"):
            content = path.read_bytes()
            assert OWN.encode() not in content, path.name
            assert b"canary-for-" not in content, path.name
