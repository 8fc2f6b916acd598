"""What is no request gets its status and a StreamError: no traceback, no exception's text, nothing of what was sent."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from harness import KEY
from play import JSON, SSE
from server.cap.desk import CapCall, open_desk, request
from trio.testing import MockClock

from bridge.errors import (
    BackendCrashed,
    BackendTimeout,
    BridgeError,
    InvalidRequest,
    NotReady,
    Overloaded,
    UpstreamError,
)
from bridge.protocols.cap.stream import StreamError

CANARY = "canary-7f3a"
MAX_BODY = 256 * 1024


def text(*, drop: str | None = None, **members: Any) -> bytes:
    """A request with these members of its payload, or without one of its own."""
    body = request(CANARY)
    body["payload"] |= members
    if drop is not None:
        *way, last = drop.split(".")
        place = body
        for step in way:
            place = place[step]
        del place[last]
    return json.dumps(body).encode()


def raw(**members: str) -> bytes:
    """A request whose members have these JSON texts."""
    body = text().decode()
    given = ",".join(f'"{name}":{value}' for name, value in members.items())
    return (body[:-1] + "," + given + "}").encode()


def swapped(old: str, new: str) -> bytes:
    """A request in which one text stands for another."""
    body = text().decode()
    assert old in body
    return body.replace(old, new).encode()


DEEP = '{"a":' * 10_000 + "1" + "}" * 10_000

NOT_JSON: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "null": b"null",
    "array": b"[]",
    "number": b"42",
    "string": f'"{CANARY}"'.encode(),
    "words": CANARY.encode(),
    "bom": b"\xef\xbb\xbf" + text(),
    "utf-16": text().decode().encode("utf-16"),
    "bad UTF-8": text().replace(b"canary", b"\xff\xfecanary"),
    "lone surrogate": swapped(CANARY, "\\ud800"),
    "NaN": raw(x="NaN"),
    "Infinity": raw(x="-Infinity"),
    "1e400": raw(x="1e400"),
    "trailing bytes": text() + b"x",
    "two": text() + text(),
    "trailing comma": text()[:-1] + b",}",
    "cut": text()[:-5],
    "control character": swapped(CANARY, f"{CANARY}\n"),
    "single quotes": text().replace(b'"', b"'"),
    "deep": raw(x=DEEP),
    "deep meta": swapped('"query"', f'"meta": {DEEP}, "query"'),
}

INVALID: dict[str, tuple[bytes, str, list[Any]]] = {
    "nothing": (b"{}", "invalid_request", ["request_id"]),
    "no id": (text(drop="request_id"), "invalid_request", ["request_id"]),
    "no context": (text(drop="context"), "invalid_request", ["context"]),
    "no user": (text(drop="context.user"), "invalid_request", ["context", "user"]),
    "no user's id": (text(drop="context.user.id"), "invalid_request", ["context", "user", "id"]),
    "no session": (text(drop="context.session_id"), "invalid_request", ["context", "session_id"]),
    "no payload": (text(drop="payload"), "invalid_request", ["payload"]),
    "no query": (text(drop="payload.query"), "invalid_request", ["payload", "query"]),
    "bad UUID": (swapped("550e8400", CANARY), "invalid_request", ["request_id"]),
    "null id": (raw(request_id="null"), "invalid_request", ["request_id"]),
    "number as id": (raw(request_id="5" * 20), "invalid_request", ["request_id"]),
    "id beyond 64 bits": (raw(request_id=str(2**70)), "invalid_request", ["request_id"]),
    "query is a number": (text(query=7), "invalid_request", ["payload", "query"]),
    "query is null": (text(query=None), "invalid_request", ["payload", "query"]),
    "query is a list": (text(query=[CANARY]), "invalid_request", ["payload", "query"]),
    "files is null": (text(files=None), "invalid_request", ["payload", "files"]),
    "files holds numbers": (text(files=[1]), "invalid_request", ["payload", "files", 0]),
    "meta is null": (text(meta=None), "invalid_request", ["payload", "meta"]),
    "meta is a list": (text(meta=[CANARY]), "invalid_request", ["payload", "meta"]),
    "a parent without a root": (
        text(parent_request_id="123e4567-e89b-12d3-a456-426614174000"),
        "invalid_request",
        ["payload"],
    ),
}

UNFIT: dict[str, tuple[dict[str, Any], int, str]] = {
    "blank query": ({"query": " \n"}, 422, "empty_query"),
    "another session": ({"session_id": CANARY}, 422, "session_mismatch"),
    "conversation with a space": ({"conversation_id": f"{CANARY} x"}, 422, "invalid_conversation_id"),
    "conversation with a line": ({"conversation_id": f"{CANARY}\r\nx: y"}, 422, "invalid_conversation_id"),
    "conversation too long": ({"conversation_id": CANARY * 30}, 422, "invalid_conversation_id"),
    "file of this machine": ({"files": [f"file:///etc/{CANARY}"]}, 422, "unsupported_file"),
    "path": ({"files": [f"/etc/{CANARY}"]}, 422, "unsupported_file"),
    "script": ({"files": [f"javascript:{CANARY}"]}, 422, "unsupported_file"),
    "text as data": ({"files": [f"data:text/html,{CANARY}"]}, 422, "unsupported_file"),
    "address with a user": ({"files": [f"http://{CANARY}@localhost/a.png"]}, 422, "unsupported_file"),
    "wrong address": ({"files": [f"http://[{CANARY}/a.png"]}, 422, "unsupported_file"),
    "many files": ({"files": [f"https://example.org/{CANARY}.png"] * 33}, 422, "too_many_files"),
    "timeout of 0": ({"meta": {"timeout_ms": 0}}, 422, "invalid_request"),
    "timeout as text": ({"meta": {"timeout_ms": CANARY}}, 422, "invalid_request"),
    "timeout is true": ({"meta": {"timeout_ms": True}}, 422, "invalid_request"),
    "effort": ({"meta": {"effort": CANARY}}, 422, "invalid_request"),
    "events": ({"meta": {"events": CANARY}}, 422, "invalid_request"),
    "schema": ({"meta": {"output_schema": [CANARY]}}, 422, "invalid_request"),
    "time zone": ({"meta": {"timezone": f"{CANARY}\n"}}, 422, "invalid_request"),
    "locale": ({"meta": {"locale": f"{CANARY}!"}}, 422, "invalid_request"),
    "model": ({"meta": {"model": f"{CANARY} x"}}, 422, "invalid_request"),
    "codex": ({"meta": {"codex": CANARY}}, 422, "invalid_request"),
    "wider sandbox": ({"meta": {"sandbox": "danger-full-access"}}, 403, "forbidden"),
    "wider approval": ({"meta": {"codex": {"approval_policy": "on-request"}}}, 403, "forbidden"),
    "another directory": ({"meta": {"cwd": f"/{CANARY}"}}, 403, "forbidden"),
    "directory above": ({"meta": {"cwd": "../.."}}, 403, "forbidden"),
    "unknown model": ({"meta": {"model": CANARY}}, 404, "model_not_found"),
}


def check(call: CapCall, status: int, code: str) -> StreamError:
    """The answer is this error, a valid one, and tells nothing of what was sent."""
    assert call.error == (status, code), call.body
    error = StreamError.model_validate_json(call.body)
    told = call.body.decode() + str(call.headers)
    for secret in (CANARY, KEY, "Traceback", "pydantic", "orjson", "Error:", "line 1", "char "):
        assert secret not in told
    assert error.details is not None
    assert error.details["domain"] in ("client", "security", "system", "llm")
    return error


WHY = {"NaN": "expected a JSON value", "1e400": "number is infinity", "deep": "depth", "deep meta": "depth"}


@pytest.mark.parametrize("name", NOT_JSON)
async def test_bodies_that_are_not_json(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, name: str) -> None:
    async with open_desk(max_body=MAX_BODY) as desk:
        error = check(await desk.ask(NOT_JSON[name]).whole(), 400, "invalid_json")
        assert error.severity == "fatal"
        assert WHY.get(name, "") in error.message
        assert desk.model.plays == []
        assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


@pytest.mark.parametrize("name", INVALID)
async def test_invalid_requests(autojump_clock: MockClock, name: str) -> None:
    """Locations and kinds of faults are reported."""
    body, code, place = INVALID[name]
    async with open_desk(max_body=MAX_BODY) as desk:
        error = check(await desk.ask(body).whole(), 422, code)
        assert error.details is not None
        assert place in [fault["loc"] for fault in error.details["errors"]]
        assert all(set(fault) == {"loc", "type"} for fault in error.details["errors"])


@pytest.mark.parametrize("accept", [SSE, JSON])
@pytest.mark.parametrize("name", UNFIT)
async def test_what_cannot_be_done(autojump_clock: MockClock, name: str, accept: str) -> None:
    members, status, code = UNFIT[name]
    async with open_desk(max_body=MAX_BODY) as desk:
        error = check(await desk.ask(text(**members), accept).whole(), status, code)
        assert error.details is not None
        assert error.details["request_id"] == request()["request_id"]
        # The fault is the request's: with another body the id is as good as new.
        call = desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        play.finish()
        assert (await call.whole()).text == "a"


MANY: dict[str, Any] = {f"key{number}": number for number in range(5000)}


@pytest.mark.parametrize(
    "body",
    [
        raw(payload=json.dumps({"query": CANARY})),  # a second one wins
        raw(extra=f'["{CANARY}"]', **{"": "1"}),
        text(**MANY),
        raw(big=str(2**70)),
        text(meta={"big": 2**63, "a": {"b": [None, CANARY]}}),
        text(query="\u2028\u0085\x00😀" + CANARY),
        swapped("550e8400-e29b-41d4-a716-446655440000", "urn:uuid:550E8400-E29B-41D4-A716-446655440000"),
        text(files=["https://example.org/a.png", "data:image/png;base64,iVBORw0KGgo="]),
        text(meta={"output_schema": {"type": "object"}, "codex": {"events": ["metrics", "nothing"]}}),
        b" \n" + text() + b"\n",
    ],
    ids=range(10),
)
async def test_odd_but_good(autojump_clock: MockClock, body: bytes) -> None:
    async with open_desk(max_body=MAX_BODY) as desk:
        call = desk.ask(body)
        play = await desk.model.play()
        play.say("a")
        play.finish()
        await call.whole()
        assert (call.status, call.text) == (200, "a")
        assert CANARY in play.history()[0]


async def test_bodies_that_are_too_large(autojump_clock: MockClock) -> None:
    async with open_desk(max_body=MAX_BODY) as desk:
        check(await desk.ask(text(query="x" * MAX_BODY)).whole(), 413, "payload_too_large")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content_type": "text/plain"}, 415, "unsupported_media_type"),
        ({"content_type": ""}, 415, "unsupported_media_type"),
        ({"content_type": "application/xml"}, 415, "unsupported_media_type"),
        ({"content_type": "application/json; charset=latin-1"}, 415, "unsupported_media_type"),
        ({"content_encoding": "gzip"}, 415, "unsupported_encoding"),
        ({"authorization": "Bearer wrong"}, 401, "unauthorized"),
        ({"authorization": f"Basic {KEY}"}, 401, "unauthorized"),
        ({"x_api_key": "twice"}, 401, "unauthorized"),
        ({"host": f"{CANARY}.example.org"}, 403, "host_not_allowed"),
        ({"origin": f"https://{CANARY}.example.org"}, 403, "origin_not_allowed"),
        ({"x_provider_key": f"{CANARY} x"}, 400, "invalid_provider_key"),
    ],
    ids=str,
)
async def test_what_is_wrong_around_the_request(
    autojump_clock: MockClock, headers: dict[str, str], status: int, code: str
) -> None:
    async with open_desk() as desk:
        check(await desk.ask(text(), **headers).whole(), status, code)


@pytest.mark.parametrize(
    ("error", "status", "code", "severity", "wait"),
    [
        (Overloaded("x"), 503, "overloaded", "transient", 1),
        (UpstreamError("x", code="overloaded"), 503, "server_overloaded", "transient", 5),
        (UpstreamError("x", code="rate_limit_exceeded"), 429, "rate_limit_exceeded", "transient", 10),
        (UpstreamError("x", code="rate_limit_exceeded", retry_after=2.2), 429, "rate_limit_exceeded", "transient", 3),
        (UpstreamError("x", code="insufficient_quota"), 429, "usage_limit_exceeded", "fatal", None),
        (
            UpstreamError("x", code="insufficient_quota", retry_after=60),
            429,
            "usage_limit_exceeded",
            "transient",
            60,
        ),
        (
            UpstreamError("x", code="upstream_unreachable", severity="transient"),
            502,
            "upstream_unavailable",
            "transient",
            2,
        ),
        (UpstreamError("x", code="upstream_unauthorized"), 502, "upstream_unauthorized", "fatal", None),
        (UpstreamError("x", code="upstream_rejected"), 400, "upstream_bad_request", "fatal", None),
        (InvalidRequest("x", code="context_length_exceeded"), 422, "context_window_exceeded", "fatal", None),
        (UpstreamError("x", code="cyber_policy"), 403, "policy_violation", "fatal", None),
        (BackendCrashed("x"), 502, "agent_crashed", "transient", 2),
        (BackendTimeout("x"), 504, "deadline_exceeded", "transient", 1),
        (NotReady("x"), 503, "agent_not_ready", "transient", 2),
        (NotReady("x", code="handshake_failed"), 503, "agent_not_ready", "transient", 2),
        (NotReady("x", code="shutdown_initiated"), 503, "shutting_down", "transient", 5),
        (BridgeError(f"{CANARY} of our own"), 500, "internal_error", "fatal", None),
        (ZeroDivisionError(CANARY), 500, "internal_error", "fatal", None),
    ],
    ids=lambda value: str(getattr(value, "code", "")) if isinstance(value, Exception) else "",
)
async def test_what_goes_wrong_later(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    error: Any,
    status: int,
    code: str,
    severity: str,
    wait: int | None,
) -> None:
    """When the turn begins, and as its first event: the same answer in both forms; and after its first words."""
    caplog.set_level(logging.CRITICAL, "bridge.server")
    async with open_desk() as desk:
        desk.model.refuses = error
        for number, accept in enumerate([SSE, JSON]):
            call = await desk.ask(request(number=number), accept).whole()
            told = check(call, status, code)
            assert (told.severity, (told.details or {}).get("retry_after")) == (severity, wait)
            assert call.headers.get("retry-after") == (None if wait is None else str(wait))
        desk.model.refuses = None
        if not isinstance(error, BridgeError):
            return
        for number, accept in enumerate([SSE, JSON], 1):
            call = desk.ask(request(number=number + 1), accept)
            (await desk.model.play(number)).fail(error)
            check(await call.whole(), status, code)
        stream = desk.ask(request(number=4))
        play = await desk.model.play(3)
        play.say("a")
        await stream.until('"a"')
        play.fail(error)
        await stream.whole()
        assert [packet["op"] for packet in stream.packets] == ["delta", "error", "close"]
        assert (stream.packets[1]["p"]["code"], stream.packets[1]["p"]["severity"]) == (code, severity)
        assert CANARY not in stream.body.decode()
