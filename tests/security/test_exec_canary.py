"""No secret leaves by any door: tokens and keys are canaries, and a backend that repeats them wherever it can.

Each run may write to stdout, stderr, its logs and its home; afterwards no canary is anywhere but in auth.json.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cli.direct import HI, Direct, directly
from cli.exec.command import Ran, Word, finish
from upstream.answers import RESET, Answer, Gate, Plain, Stream, html, plain_json, refusal
from upstream.chatgpt import ChatGPT
from upstream.connection import Request
from upstream.events import NOTHING, answer, call, error, failed, incomplete, reasoning, search, text
from upstream.tokens import SAID
from warm import run_warm

BRIDGE_KEY = "cb-canary-bridge-key-0123456789"
PROVIDER_KEY = "canary-provider-key-0123456789"
ADD: tuple[Word, ...] = ("--tool", 'add:inline={"type":"object"}')


def assert_clean(direct: Direct, *ran: Ran) -> None:
    """Neither what was said nor what was left behind holds a canary, in this case or another."""
    seen = {"stdout": b"".join(each.stdout for each in ran), "stderr": "".join(each.stderr for each in ran).encode()}
    for path in direct.directory.rglob("*"):
        if path.is_file() and path.name != "auth.json":
            seen[str(path)] = path.read_bytes()
    for where, content in seen.items():
        assert b"canary" not in content.lower(), (where, content)
        assert b"eyJ" not in content, (where, content)
        assert SAID.encode() not in content, (where, content)
    assert b"Traceback" not in seen["stderr"], seen["stderr"].decode()


# A backend that repeats what it is sent


def heard(request: Request) -> str:
    """Everything that came with a request, as a careless server prints it."""
    return f"you sent {json.dumps(request.headers)}, that is {request.headers['authorization']}"


def streamed(**end: Any) -> Callable[[Request], Answer]:
    """Repeated in every part of an answer that a model, or its provider, fills."""

    def reply(request: Request) -> Answer:
        said = heard(request)
        token = request.headers["authorization"].removeprefix("Bearer ")
        items = [
            reasoning(said, raw=said, encrypted=token),
            search(said),
            text("you sent ", said),
            call("add", json.dumps({"said": said})),
        ]
        return Stream(answer(*items, **end), headers={"x-echo": token, "set-cookie": f"token={token}"})

    return reply


def ending(make: Callable[..., Any], *arguments: Any, **more: Any) -> Callable[[Request], Answer]:
    """The same, with the words in the end as well."""
    return lambda request: streamed(end=make(*arguments, heard(request), **more))(request)


def refusing(status: int, **headers: str) -> Callable[[Request], Answer]:
    return lambda request: refusal(status, "x", heard(request), **headers)


def saying(status: int, kind: str) -> Callable[[Request], Answer]:
    """Not in JSON."""
    return lambda request: Plain(status, heard(request).encode() * 20, {"content-type": kind})


def broken(request: Request) -> Answer:
    event = b"data: {" + heard(request).encode() + b"\n\n"
    return Stream([*answer(text("a"))[:5], event])


def elsewhere(request: Request) -> Answer:
    return Plain(302, heard(request).encode(), {"location": f"/?{request.headers['authorization']}"})


@dataclass(frozen=True)
class Case:
    """What the backend answers, what is typed, and the exit code."""

    replies: tuple[Any, ...] = ()
    code: int = 1
    arguments: tuple[Word, ...] = ()
    form: str = "chatgpt"
    prepare: Callable[[ChatGPT], None] | None = None
    variables: dict[str, str] = field(default_factory=dict)


def expired(state: Any = "fresh", *, oauth: bool = False) -> Callable[[ChatGPT], None]:
    """The access token is over; the refresh token is in this state."""

    def prepare(chatgpt: ChatGPT) -> None:
        chatgpt.logins.expire_access()
        chatgpt.logins.oauth_form = oauth
        for token in chatgpt.logins.states:
            chatgpt.logins.states[token] = state

    return prepare


def troubled(reply: Answer) -> Callable[[ChatGPT], None]:
    """The access token is over, and the token endpoint answers this."""

    def prepare(chatgpt: ChatGPT) -> None:
        chatgpt.logins.expire_access()
        chatgpt.token_script.append(reply)

    return prepare


ECHOED = "canary rt_canary-refresh-1 " + SAID
CASES = {
    # Answers
    "text": Case((streamed(),), 0),
    "calls": Case((streamed(), streamed()), 0, (*ADD, "--auto-tools", "--tool-output", "add=$args")),
    "trace": Case((streamed(),), 0, ("--trace",)),
    "refreshed": Case((streamed(),), 0, ("--trace",), prepare=expired()),
    "api key": Case((streamed(),), 0, ("--trace",), "apikey"),
    "provider key": Case((streamed(),), 0, ("--trace", "--provider-key", PROVIDER_KEY)),
    # Streams that end badly
    "failed": Case((ending(failed, "server_error"),), 1, ("--trace",)),
    "error": Case((ending(error, "x"),), 1, ("--trace",)),
    "nested error": Case((ending(error, "x", nested=True),), 1, ("--trace",)),
    "incomplete": Case((streamed(end=incomplete()),), 1, ("--trace",)),
    "odd reason": Case((lambda request: streamed(end=incomplete(heard(request)))(request),), 1),
    "truncated": Case((streamed(end=NOTHING),), 1, ("--trace",)),
    "broken": Case((broken,), 1, ("--trace",)),
    # Refusals
    **{str(status): Case((refusing(status),)) for status in (400, 403)},
    "401 again": Case((refusing(401), refusing(401))),
    "429": Case((refusing(429, retry_after="99"),)),
    "500": Case((refusing(500, retry_after_ms="1"),) * 4),
    "plain": Case((saying(400, "text/plain"),)),
    "html": Case((saying(403, "text/html"),)),
    "html 200": Case((saying(200, "text/html"),)),
    "redirect": Case((elsewhere,)),
    "no connection": Case((RESET, refusing(400))),
    # Logins
    "wrong key": Case((), 1, (), "apikey", lambda chatgpt: chatgpt.logins.keys.clear()),
    "wrong provider key": Case((), 1, ("--provider-key", "canary-wrong-key")),
    "odd provider key": Case((), 2, ("--provider-key", "canary wrong key")),
    "unknown flag": Case((), 2, ("--provider-key", PROVIDER_KEY, "--provider-kye", "x")),
    **{
        f"refresh {state}": Case((), 1, (), "chatgpt", expired(state, oauth=oauth))
        for state, oauth in (("expired", False), ("used", True), ("revoked", False))
    },
    "refresh 500": Case((), 1, (), "chatgpt", troubled(refusal(500, "x", ECHOED))),
    "refresh html": Case((), 1, (), "chatgpt", troubled(html(403, ECHOED))),
    "refresh nonsense": Case((), 1, (), "chatgpt", troubled(plain_json(200, {"said": ECHOED}))),
    "refresh redirect": Case((), 1, (), "chatgpt", troubled(Plain(307, ECHOED.encode(), {"location": "/canary"}))),
}


@pytest.mark.parametrize("name", CASES)
def test_no_secret_is_told(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    with directly(tmp_path, case.form) as direct:
        direct.chatgpt.logins.keys.add(PROVIDER_KEY)
        if case.prepare is not None:
            case.prepare(direct.chatgpt)
        direct.chatgpt.will(*case.replies)
        logs = ("--log-requests", tmp_path / "requests.jsonl", "--log-responses", tmp_path / "responses.jsonl")
        ran = direct.run(*HI, *case.arguments, *logs, "--json", PROXY_API_KEY=BRIDGE_KEY)
        assert ran.code == case.code, ran
        assert ran.events[-1]["type"] == ("error" if case.code else "response.completed")
        assert_clean(direct, ran)
        assert not direct.chatgpt.script
        sent = [request.headers["authorization"] for request in direct.chatgpt.requests]
        assert all("canary" in authorization for authorization in sent)
        assert bool(sent) == (case.code != 2)


def test_no_secret_is_told_in_text_mode(tmp_path: Path) -> None:
    with directly(tmp_path) as direct:
        direct.chatgpt.will(streamed(), streamed(), ending(failed, "x"), refusing(400))
        runs = [direct.run(*HI), direct.run(*HI, "--trace"), direct.run(*HI), direct.run(*HI)]
        assert [ran.code for ran in runs] == [0, 0, 1, 1]
        assert "that is Bearer [redacted]" in runs[0].stdout.decode()
        assert_clean(direct, *runs)


def test_no_secret_is_told_when_a_run_is_interrupted(tmp_path: Path) -> None:
    """With Python's own warnings on: what is left over may be told, but not what it holds."""
    with directly(tmp_path) as direct:
        gate = Gate()
        direct.chatgpt.will(lambda request: Stream([*answer(text(heard(request)))[:5], gate]))
        variables = {"PROXY_API_KEY": BRIDGE_KEY, "PYTHONDEVMODE": "1"}
        with direct.command.start(*HI, "--json", "--trace", **variables) as process:
            direct.chatgpt.wait_for(lambda: gate.held)
            process.send_signal(signal.SIGINT)
            ran = finish(process)
        assert ran.code == 130
        assert_clean(direct, ran)


def test_a_bridge_is_asked_with_its_own_key_alone(tmp_path: Path) -> None:
    """It goes where it belongs, and comes back from nowhere."""
    with directly(tmp_path) as direct:
        url = direct.chatgpt.api_base_url
        variables = direct.command.environment | {"PROXY_API_KEY": BRIDGE_KEY}
        ran = replace(direct.command, environment=variables, always=()).run("--url", url, *HI, "--json")
        ran.failed("upstream_unauthorized")
        (request,) = direct.chatgpt.requests
        assert request.headers["authorization"] == f"Bearer {BRIDGE_KEY}"
        assert_clean(direct, ran)
        direct.chatgpt.faults.clear()


def test_auth_tells_no_secret(tmp_path: Path) -> None:
    """Neither a status nor a login that cannot begin. `login` itself is Codex's."""
    with directly(tmp_path) as direct:
        runs = [
            auth(direct, "status"),
            auth(direct, "status", "--json"),
            auth(direct, "login", "--codex-bin", "/no/such"),
        ]
        assert [ran.code for ran in runs] == [0, 0, 2]
        assert_clean(direct, *runs)


def auth(direct: Direct, *words: str) -> Ran:
    env = direct.command.environment | {"PROXY_API_KEY": BRIDGE_KEY, "PATH": os.environ["PATH"]}
    done = run_warm("auth", *words, env=env, timeout=30)
    return Ran(done.returncode, done.stdout, done.stderr.decode())
