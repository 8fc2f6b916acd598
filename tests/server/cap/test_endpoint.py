"""CAP over HTTP: forms of the answer, headers, paths, health, and the close codes of a WebSocket."""

from __future__ import annotations

import json
import re
from uuid import UUID

import pytest
import trio
from play import JSON, NDJSON, SSE
from protocols.cap.samples import request_body
from server.cap.desk import REQUEST_ID, open_desk, request
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge import __version__
from bridge.cap.endpoint import choose_form
from bridge.errors import Overloaded, UpstreamError
from bridge.protocols.cap import CapOptions

CLOSE = {"op": "close", "p": None}
STREAM = "application/vnd.coreason.stream+json"
ERROR = "application/vnd.coreason.error+json"


# Accept


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (JSON, JSON),
        ("APPLICATION/JSON", JSON),
        (f"{JSON}; charset=utf-8", JSON),
        (SSE, f"{SSE}; charset=utf-8"),
        ("text/*", f"{SSE}; charset=utf-8"),
        (NDJSON, NDJSON),
        ("application/jsonl", "application/jsonl"),
        (STREAM, STREAM),
        (f"{SSE}, */*", f"{SSE}; charset=utf-8"),
        (f"{JSON}, {SSE}", JSON),
        (f"{JSON};q=0.5, {SSE};q=0.9", f"{SSE}; charset=utf-8"),
        (f"{SSE};q=0.1, {NDJSON}", NDJSON),
        (f"text/html, {SSE}", f"{SSE}; charset=utf-8"),
        (f"{JSON};q=0, */*", f"{SSE}; charset=utf-8"),
        (f"{ERROR}, {SSE}", f"{SSE}; charset=utf-8"),
    ],
)
async def test_the_form_is_what_is_accepted(autojump_clock: MockClock, accept: str | None, kind: str) -> None:
    async with open_desk() as desk:
        call = desk.ask(request(), accept)
        play = await desk.model.play()
        play.say("a")
        play.finish()
        await call.whole()
        assert (call.status, call.headers["content-type"]) == (200, kind)
        assert (call.json["output"]["text"] if kind == JSON else call.text) == "a"


@pytest.mark.parametrize(
    ("accept", "streams", "form"),
    [
        ("*/*", False, "ndjson"),
        (f"{JSON}, {NDJSON}", False, "ndjson"),
        (f"{JSON}, application/jsonl", False, "json"),
        (f"{NDJSON};q=0, */*", False, "json"),
        (f"{NDJSON};q=0, */*", True, "sse"),
    ],
)
def test_only_the_usual_type_of_the_default_form_precedes_its_equals(accept: str, streams: bool, form: str) -> None:
    assert choose_form(accept.encode(), streams=streams, default="ndjson")[0] == form


@pytest.mark.parametrize("accept", ["text/html", "image/*", f"{JSON};q=0", "nonsense", f"{SSE};q=2", ERROR, ", ;"])
async def test_unsupported_types_are_not_acceptable(autojump_clock: MockClock, accept: str) -> None:
    async with open_desk() as desk:
        call = await desk.ask(request(), accept).whole()
        assert call.error == (406, "not_acceptable")
        assert desk.model.plays == []


async def test_the_default_can_be_a_stream(autojump_clock: MockClock) -> None:
    """As in the first version of the protocol."""
    async with open_desk(options=CapOptions(streams_by_default=True)) as desk:
        for number, accept in enumerate([None, "*/*", JSON], 1):
            call = desk.ask(request(number=number), accept)
            play = await desk.model.play(number)
            play.say("a")
            play.finish()
            await call.whole()
            assert call.headers["content-type"] == (JSON if accept == JSON else f"{SSE}; charset=utf-8")


async def test_only_streams_are_resumed(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        call = desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        play.finish()
        await call.whole()
        for accept, kind in [("*/*", f"{SSE}; charset=utf-8"), (NDJSON, NDJSON), (SSE, f"{SSE}; charset=utf-8")]:
            assert (await desk.get(accept=accept).whole()).headers["content-type"] == kind
        assert (await desk.get(accept=JSON).whole()).error == (406, "not_acceptable")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [(None, JSON), ("*/*", JSON), (f"{ERROR}, {SSE}", ERROR), ("application/*", ERROR), (f"{SSE}", JSON)],
)
async def test_errors_have_their_own_type_if_accepted(autojump_clock: MockClock, accept: str | None, kind: str) -> None:
    async with open_desk() as desk:
        call = await desk.ask({}, accept).whole()
        assert call.error == (422, "invalid_request")
        assert call.headers["content-type"] == kind
        assert call.headers["cache-control"] == "no-store"


# Streams and headers


async def test_an_event_stream_to_the_byte(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        call = desk.ask(request())
        play = await desk.model.play()
        play.say("Hi", "a\u2028\nb")
        play.finish()
        await call.whole()
        assert call.body.decode() == "".join(
            f"event: stream.packet\nid: {REQUEST_ID}:{number}\ndata: {data}\n\n"
            for number, data in [
                (1, '{"op":"delta","p":"Hi"}'),
                (2, '{"op":"delta","p":"a\\u2028\\nb"}'),
                (3, '{"op":"close","p":null}'),
            ]
        )


@pytest.mark.parametrize("accept", [SSE, NDJSON, JSON])
async def test_headers_of_an_answer(autojump_clock: MockClock, accept: str) -> None:
    async with open_desk() as desk:
        calls = [desk.ask(request(conversation_id="c/1"), accept), desk.ask(request(number=1), accept)]
        for number in (1, 2):
            play = await desk.model.play(number)
            play.say("a")
            play.finish()
        for call, body in zip(calls, (request(), request(number=1)), strict=True):
            await call.whole()
            assert call.headers["x-request-id"] == body["request_id"]
            assert call.headers["x-bridge-request-id"].startswith("req_")
            assert (call.headers["cache-control"], call.headers["x-accel-buffering"]) == ("no-store", "no")
        assert calls[0].headers["x-conversation-id"] == "c/1"
        assert re.fullmatch(r"conv_\d+", calls[1].headers["x-conversation-id"])
        if accept == JSON:
            assert calls[1].json["output"]["conversation_id"] == calls[1].headers["x-conversation-id"]


async def test_ignored_members_are_named(autojump_clock: MockClock) -> None:
    """Names, never values."""
    async with open_desk() as desk:
        body = request(meta={"secret_name": "secret-value", "codex": {"personality": "kind"}}, conversationId="typo")
        call = desk.ask(body)
        play = await desk.model.play()
        play.say("a")
        play.finish()
        await call.whole()
        named = {value for value in call.headers.values() if "secret_name" in value}
        assert named == {"payload.conversationId,meta.secret_name,meta.codex.personality"}
        assert "secret-value" not in str(call.headers)


@pytest.mark.parametrize("path", ["/v1/assist", "/assist", "/cap/v1/assist"])
async def test_all_paths_are_served(autojump_clock: MockClock, path: str) -> None:
    async with open_desk() as desk:
        call = desk.ask(request(), path=path)
        play = await desk.model.play()
        play.say("a")
        play.finish()
        assert (await call.whole()).text == "a"
        assert (await desk.page(path).whole()).error == (405, "method_not_allowed")


async def test_the_last_packet_a_client_names(autojump_clock: MockClock) -> None:
    """Without an id, and with one of another request; upper case is the same id."""
    async with open_desk() as desk:
        call = desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        play.finish()
        await call.whole()
        for last in (None, "", " ", 0, f"{REQUEST_ID.upper()}:0"):
            assert (await desk.get(last=last).whole()).packets == call.packets
        for last in ("1", f"{UUID(int=1)}:1", f"{REQUEST_ID}:", f"{REQUEST_ID}:-1", f"{REQUEST_ID}:x", "é:1", "9" * 99):
            assert (await desk.get(last=last).whole()).error == (422, "invalid_request")
        assert (await desk.get(REQUEST_ID.replace("-", ""), f"{REQUEST_ID}:1").whole()).packets == call.packets[1:]


async def test_a_socket_needs_an_upgrade(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        call = await desk.page("/v1/assist/ws").whole()
        assert (call.error, call.headers["upgrade"]) == ((426, "upgrade_required"), "websocket")
        assert (await desk.page("/v1/assist/ws", "DELETE").whole()).error == (405, "method_not_allowed")


# Health


async def test_health(autojump_clock: MockClock) -> None:
    agent = UUID(int=7)
    async with open_desk(options=CapOptions(agent_id=agent)) as desk:
        for path in ("/health", "/v1/health"):
            page = await desk.page(path).whole()
            assert (page.status, page.headers["cache-control"]) == (200, "no-store")
            assert page.json["uptime_seconds"] >= 0
            told = {name: page.json[name] for name in ("status", "agent_id", "version")}
            assert told == {"status": "ok", "agent_id": str(agent), "version": __version__}
        desk.fault.append("store_failing")
        page = await desk.page("/health").whole()
        assert (page.status, page.json["status"]) == (200, "degraded")


# WebSockets


async def test_a_socket_sends_one_packet_per_message(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        for number, message in enumerate([json.dumps(request()), json.dumps(request(number=1)).encode()], 1):
            socket = desk.socket(message)
            play = await desk.model.play(number)
            play.say("a", "b")
            play.finish()
            await socket.done.wait()
            assert socket.packets == [{"op": "delta", "p": "a"}, {"op": "delta", "p": "b"}, CLOSE]
            assert socket.code == 1000


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", "invalid_json"),
        ("nonsense", "invalid_json"),
        ("[]", "invalid_json"),
        (b"\xff", "invalid_json"),
        (json.dumps({"request_id": REQUEST_ID}), "invalid_request"),
        (json.dumps(request_body(query=" ")), "empty_query"),
        (json.dumps(request_body(query="x" * (1 << 20))), "payload_too_large"),
        (json.dumps(request(agent="nobody")), "unknown_agent"),
    ],
)
async def test_a_bad_request_closes_a_socket(autojump_clock: MockClock, message: str | bytes, code: str) -> None:
    async with open_desk() as desk:
        socket = desk.socket(message)
        await socket.done.wait()
        error, close = socket.packets
        assert (error["op"], error["p"]["code"], error["p"]["severity"]) == ("error", code, "fatal")
        assert (close, socket.code) == (CLOSE, 1008)


async def test_an_overloaded_bridge_closes_a_socket_for_later(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        desk.model.refuses = Overloaded("Too many.", retry_after=3)
        socket = desk.socket(request())
        await socket.done.wait()
        assert [packet["op"] for packet in socket.packets] == ["error", "close"]
        assert (socket.packets[0]["p"]["details"]["retry_after"], socket.code) == (3, 1013)


async def test_a_failure_after_the_first_packet_is_reported_in_packets(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        socket = desk.socket(request())
        play = await desk.model.play()
        play.say("a")
        await socket.until('"a"')
        play.fail(UpstreamError("Broken.", code="stream_truncated", severity="transient"))
        await socket.done.wait()
        assert [packet["op"] for packet in socket.packets] == ["delta", "error", "close"]
        assert socket.code == 1000


async def test_a_second_message_is_an_error(autojump_clock: MockClock) -> None:
    """The turn continues for the grace period, and can be joined."""
    async with open_desk() as desk:
        socket = desk.socket(request())
        play = await desk.model.play()
        play.say("a")
        await socket.until('"a"')
        socket.say(json.dumps(request(number=1)))
        await socket.done.wait()
        assert socket.code == 1008
        assert len(desk.model.plays) == 1
        again = desk.socket(request())
        play.say("b")
        play.finish()
        await again.done.wait()
        assert again.packets == [{"op": "delta", "p": "a"}, {"op": "delta", "p": "b"}, CLOSE]


async def test_a_socket_that_leaves_can_be_joined_or_not(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        socket = desk.socket(request())
        play = await desk.model.play()
        play.say("a")
        await socket.until('"a"')
        socket.leave()
        await socket.done.wait()
        assert socket.code is None
        resumed = desk.get(last=1)
        await resumed.begun()
        resumed.leave()
        left_at = trio.current_time()
        await play.closed.wait()
        assert trio.current_time() - left_at == pytest.approx(30)


async def test_a_socket_without_a_message(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        socket, silent = desk.socket(), desk.socket()
        await wait_all_tasks_blocked()
        socket.leave()
        await socket.done.wait()
        assert socket.messages == []
        await silent.done.wait()
        assert (silent.packets[0]["p"]["code"], silent.code) == ("timeout", 1008)
