"""A provider's refusals as our errors: every status, every form of an error object, every Retry-After."""

from __future__ import annotations

import datetime
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import BridgeError
from bridge.protocols.upstream import MAX_SAID, error_from_object, error_from_status, retry_after

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def refused(status: int, body: Any, headers: dict[str, str] | None = None) -> BridgeError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return error_from_status(status, headers or {}, content, NOW)


def said(code: str | None = None, kind: str | None = None, message: str = "words") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


GOOGLE = {
    "code": 400,
    "message": "API key not valid. Please pass a valid API key.",
    "status": "INVALID_ARGUMENT",
    "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
}
"""What Gemini says of a wrong key, in a list."""


@pytest.mark.parametrize(
    ("status", "body", "code", "http_status", "severity"),
    [
        (400, said("invalid_prompt"), "invalid_prompt", 400, "fatal"),
        (400, said(None, "invalid_request_error"), "invalid_request_error", 400, "fatal"),
        (400, said(), "upstream_rejected", 400, "fatal"),
        (401, said("token_expired"), "upstream_unauthorized", 401, "fatal"),
        (400, [{"error": GOOGLE}], "upstream_unauthorized", 401, "fatal"),
        (400, [{"error": GOOGLE | {"details": ["x"]}}], "upstream_rejected", 400, "fatal"),
        (402, said(), "insufficient_quota", 429, "fatal"),
        (403, said("x"), "upstream_forbidden", 403, "fatal"),
        (404, said("model_not_found"), "model_not_found", 404, "fatal"),
        (413, said(), "request_too_large", 413, "fatal"),
        (429, said("rate_limit_exceeded"), "rate_limit_exceeded", 429, "transient"),
        (429, said(), "rate_limit_exceeded", 429, "transient"),
        (429, b"", "rate_limit_exceeded", 429, "transient"),
        (429, said("insufficient_quota"), "insufficient_quota", 429, "fatal"),
        (429, said(None, "usage_limit_reached"), "insufficient_quota", 429, "fatal"),
        (429, said("billing_hard_limit_reached"), "insufficient_quota", 429, "fatal"),
        (500, said(), "upstream_error", 502, "transient"),
        (501, said(), "upstream_error", 502, "transient"),
        (502, b"<html>", "upstream_error", 502, "transient"),
        (503, said(), "overloaded", 503, "transient"),
        (504, b"", "upstream_error", 502, "transient"),
        (529, said(None, "overloaded_error"), "overloaded", 503, "transient"),
        (500, said("slow_down"), "overloaded", 503, "transient"),
        (599, b"", "upstream_error", 502, "transient"),
        (302, b"", "upstream_error", 502, "fatal"),
        (304, b"", "upstream_error", 502, "fatal"),
        (204, b"", "upstream_rejected", 400, "fatal"),
    ],
)
def test_each_status(status: int, body: Any, code: str, http_status: int, severity: str) -> None:
    error = refused(status, body)
    assert (error.code, error.http_status, error.severity) == (code, http_status, severity)
    assert error.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "nested"}}, "nested"),
        ({"error": "bare"}, "bare"),
        ({"error": "invalid_grant", "error_description": "described"}, "described"),
        ({"detail": "fastapi"}, "fastapi"),
        ({"detail": {"message": "inner"}}, "inner"),
        ({"message": "flat", "code": "x"}, "flat"),
        ({"error": None}, 'The provider answers 400: {"error": null}'),
        ({"error": {"message": 7}}, 'The provider answers 400: {"error": {"message": 7}}'),
        ([1], "The provider answers 400: [1]"),
        ("text", 'The provider answers 400: "text"'),
        (b"", "The provider answers 400."),
        (b"  two\n words\t", "The provider answers 400: two words"),
        (b"\xff\xfe", "The provider answers 400: \ufffd\ufffd"),
        (b" <!DOCTYPE html>", "The provider answers 400 with a web page; check the base URL and any proxy in between."),
        (b"[" * 50_000, "The provider answers 400: " + "[" * 200),
    ],
    ids=range(15),
)
def test_the_words_of_a_refusal(body: Any, message: str) -> None:
    assert refused(400, body).message == message


def test_long_words_are_cut() -> None:
    assert len(refused(400, said(message="x" * 10_000)).message) == MAX_SAID
    assert len(refused(400, b"x" * 10_000).message) < 300


def test_a_code_that_is_none_is_not_passed_on() -> None:
    """Programs compare it, and people read it in tables."""
    for code in ("x" * 10_000, "two words", "line\nbreak", "\x1b[31m"):
        assert refused(400, said(code)).code == "upstream_rejected"


@pytest.mark.parametrize(
    "secret",
    ["sk-" + "canary" * 5, "Bearer canary-0123456789", "eyJhbGciOiAiUlMyNTYi.eyJqdGkiOiAiY2FuYXJ5In0.canary"],
)
def test_keys_that_are_repeated_are_taken_out(secret: str) -> None:
    for error in (
        refused(400, said(message=f"Incorrect key: {secret}, sorry")),
        refused(400, f"Incorrect key: {secret}, sorry".encode()),
        error_from_object({"message": f"Incorrect key: {secret}, sorry"}),
    ):
        assert "canary" not in error.message
        assert error.message.endswith(", sorry")


@pytest.mark.parametrize(
    ("event", "code", "http_status", "severity"),
    [
        ({"code": "server_error"}, "upstream_error", 502, "transient"),
        ({"code": None, "type": "server_error"}, "upstream_error", 502, "transient"),
        ({"code": "rate_limit_exceeded"}, "rate_limit_exceeded", 429, "transient"),
        ({"type": "rate_limit_error"}, "rate_limit_exceeded", 429, "transient"),
        ({"code": "insufficient_quota"}, "insufficient_quota", 429, "fatal"),
        ({"type": "usage_limit_reached"}, "insufficient_quota", 429, "fatal"),
        ({"code": "server_is_overloaded"}, "overloaded", 503, "transient"),
        ({"code": "context_length_exceeded"}, "context_length_exceeded", 400, "fatal"),
        ({"code": "invalid_prompt"}, "invalid_prompt", 400, "fatal"),
        ({"code": "odd", "type": "invalid_request_error"}, "odd", 400, "fatal"),
        ({}, "upstream_error", 502, "transient"),
        ({"code": 7, "message": ["x"]}, "upstream_error", 502, "transient"),
    ],
)
def test_each_error_within_a_stream(event: dict[str, Any], code: str, http_status: int, severity: str) -> None:
    error = error_from_object(event)
    assert (error.code, error.http_status, error.severity) == (code, http_status, severity)
    assert error.message == event.get("message", "") or "without saying why" in error.message


# Retry-After


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "5"}, 5),
        ({"retry-after": " 5 "}, 5),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "86400"}, 86400),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9),
        ({"retry-after": "Tue, 01 Jan 2030 00:00:30 GMT"}, 30),
        ({"retry-after": "Tue, 01 Jan 2030 01:00:30 +0100"}, 30),
        ({"retry-after": "Tue, 01 Jan 2030 00:00:30"}, 30),
        ({"retry-after": "Mon, 31 Dec 2029 23:59:00 GMT"}, 0),
        ({"retry-after": "Tue, 99 Jan 2030 00:00:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "9" * 400}, None),
    ],
)
def test_each_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    "date",
    [
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999",
        "99999999999999999999 Jan 2020 00:00:00 GMT",
        "01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2024 99999999999999999999:00:00 GMT",
    ],
)
def test_a_date_that_is_none_is_nothing(date: str) -> None:
    assert retry_after({"retry-after": date}, NOW) is None


DATES = st.from_regex(r"[A-Z][a-z]{2}, \d{1,3} (Jan|Feb|Foo) \d{1,5} \d{1,3}:\d{1,2}:\d{1,3} [+-]\d{1,6}")


@given(st.text(max_size=12) | DATES)
def test_any_retry_after_is_a_pause_or_none(text: str) -> None:
    pause = retry_after({"retry-after": text}, NOW)
    assert pause is None or 0 <= pause < float("inf")


def test_the_reset_of_a_quota_is_told() -> None:
    body = {"error": {"type": "usage_limit_reached", "message": "used up", "resets_in_seconds": 3600}}
    assert refused(429, body).retry_after == 3600
    assert refused(429, body, {"retry-after": "5"}).retry_after == 5
    body["error"]["resets_in_seconds"] = "soon"
    assert refused(429, body).retry_after is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "detail", "message", "code", "type", "param", "x"]), inner, max_size=4
        )
    ),
)


@given(st.integers(200, 599).filter(lambda status: status != 200), JSON, st.text(max_size=20))
def test_any_refusal_is_an_error_that_says_something(status: int, body: Any, content_type: str) -> None:
    error = refused(status, body, {"content-type": content_type})
    assert error.message
    assert error.code
    assert json.dumps(error.body())


@given(st.dictionaries(st.sampled_from(["message", "code", "type", "param"]), JSON, max_size=4))
def test_any_error_object_is_an_error_that_says_something(event: dict[str, Any]) -> None:
    error = error_from_object(event)
    assert error.message
    assert error.code


@pytest.mark.parametrize(
    "pattern",
    [
        "x",
        "/a:b",
        "Bearer ",
        " url: ",
        "sk-",
        "eyJ.",
        pytest.param("-eyJaaaaaaaa"),
    ],
)
def test_long_words_cost_linear_time(pattern: str) -> None:
    """Somebody else's words decide nothing about our time: an event may have 64 MiB."""
    begun = time.process_time()
    error_from_object({"message": pattern * (70_000 // len(pattern))})
    assert time.process_time() - begun < 1
