"""The client against the bridge's own application, over connections that are cut wherever a test wants them to be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from uuid import UUID

import httpx2
import pytest
import trio
from harness import KEY, ROOT, RunningBridge
from play import Model
from server.cap.desk import CapCall, CapDesk, open_desk, request
from trio.testing import MockClock

from bridge.cap.client import AssistFailed, CapClient, NotCap, Unreachable
from bridge.errors import Overloaded, UpstreamError
from bridge.http.head import Head
from bridge.protocols.cap.models import ServiceRequest
from bridge.protocols.cap.stream import ClosePacket, DeltaPacket, PacketReader, StreamPacket

Answer = Callable[[httpx2.Request], httpx2.Response]


class Wire(httpx2.AsyncBaseTransport):
    """Connections to the application. `cuts` are, for each connection in turn, the bytes after which it breaks;
    None lets it be, 0 does not let it come about. `instead` answers in the application's place, once each."""

    def __init__(self, desk: CapDesk) -> None:
        self.desk = desk
        self.cuts: list[int | None] = []
        self.instead: list[Answer] = []
        self.seen: list[httpx2.Request] = []
        self.times: list[float] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(request)
        self.times.append(trio.current_time())
        if self.instead:
            return self.instead.pop(0)(request)
        cut = self.cuts.pop(0) if self.cuts else None
        if cut == 0:
            raise httpx2.ConnectError("refused")
        head = [(name.lower(), value) for name, value in request.headers.raw]
        call = CapCall(Head(request.method, request.url.path, b"", b"1.1", head), await request.aread())
        self.desk.nursery.start_soon(call.run, self.desk.app)
        await call.begun()
        assert call.status is not None
        return httpx2.Response(call.status, headers=call.headers, stream=_Body(call, cut))


class _Body(httpx2.AsyncByteStream):
    def __init__(self, call: CapCall, cut: int | None) -> None:
        self._call = call
        self._cut = cut
        self._sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        call = self._call
        while True:
            async with call._news:
                while len(call.body) == self._sent and not call.done.is_set():
                    await call._news.wait()
            new = call.body[self._sent : self._cut]
            self._sent += len(new)
            if new:
                yield new
            if self._cut is not None and self._sent >= self._cut:
                call.leave()
                raise httpx2.ReadError("cut")
            if call.done.is_set() and self._sent == len(call.body):
                return

    async def aclose(self) -> None:
        self._call.leave()


class _Bytes(httpx2.AsyncByteStream):
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


def events(data: bytes) -> httpx2.Response:
    """A stream of events."""
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=_Bytes(data))


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[CapDesk, Wire, CapClient]]:
    """The application, the way to it, and a client."""
    async with open_desk() as desk:
        wire = Wire(desk)
        async with (
            httpx2.AsyncClient(transport=wire) as http,
            CapClient("http://localhost:1", KEY, http=http, **options) as client,
        ):
            yield desk, wire, client


def question(**more: Any) -> ServiceRequest:
    return ServiceRequest.model_validate(request(**more))


async def speak(model: Model, *pieces: str, number: int = 1) -> None:
    """The model says this, and is done."""
    play = await model.play(number)
    for piece in pieces:
        play.say(piece)
    play.finish()


async def collect(client: CapClient, into: list[StreamPacket], **more: Any) -> None:
    async with client.stream(question(**more)) as stream:
        async for packet in stream:
            into.append(packet)


def text(packets: list[StreamPacket]) -> str:
    assert isinstance(packets[-1], ClosePacket)
    return "".join(packet.p for packet in packets if isinstance(packet, DeltaPacket))


async def test_a_stream(autojump_clock: MockClock) -> None:
    """Typed packets, the close packet last; then nothing."""
    async with connected() as (desk, wire, client):
        desk.nursery.start_soon(speak, desk.model, "a", "b")
        async with client.stream(question(conversation_id="c1")) as stream:
            packets = [packet async for packet in stream]
            assert (text(packets), len(packets)) == ("ab", 3)
            assert [packet async for packet in stream] == []
            assert (stream.conversation_id, stream.last) == ("c1", 3)
        (sent,) = wire.seen
        assert (str(sent.url), sent.headers["accept"]) == ("http://localhost:1/v1/assist", "text/event-stream")
        assert KEY not in repr(client) + repr(stream)


async def test_cut_anywhere_nothing_is_lost_or_doubled(autojump_clock: MockClock) -> None:
    pieces = ["Hello ", "wörld\n", "🌍"]
    async with connected() as (desk, wire, client):
        desk.nursery.start_soon(speak, desk.model, *pieces)
        whole: list[StreamPacket] = []
        await collect(client, whole)
        size = sum(len(piece.encode()) + 120 for piece in pieces) + 120
        for number, cut in enumerate(range(1, size, 3), 2):
            wire.cuts = [cut, 13, None]
            got: list[StreamPacket] = []
            desk.nursery.start_soon(partial(speak, desk.model, *pieces, number=number))
            await collect(client, got, number=number)
            assert got == whole


async def test_a_turn_continues_without_its_client(autojump_clock: MockClock) -> None:
    """The connection breaks and comes back while the model speaks; one turn, and the packets in order."""
    async with connected() as (desk, wire, client):
        wire.cuts = [150, 0, 0, 30, None]
        got: list[StreamPacket] = []
        desk.nursery.start_soon(collect, client, got)
        play = await desk.model.play()
        for number in range(20):
            play.say(f"{number} ")
            await trio.sleep(0.25)
        play.finish()
        await trio.sleep(60)
        assert text(got) == "".join(f"{number} " for number in range(20))
        assert len(desk.model.plays) == 1
        assert [sent.method for sent in wire.seen] == ["POST", "GET", "GET", "GET", "GET"]
        assert wire.seen[1].headers["last-event-id"] == f"{question().request_id}:1"
        pauses = [round(after - before, 3) for before, after in zip(wire.times[1:], wire.times[2:], strict=False)]
        assert pauses == [1, 2, 4]


async def test_a_second_attempt_is_resumed_by_its_own_ids(autojump_clock: MockClock) -> None:
    async with connected() as (desk, wire, client):
        before = desk.ask(request())
        play = await desk.model.play()
        play.say("lost")
        await before.until("lost")
        play.fail(UpstreamError("Broken.", severity="transient"))
        await before.whole()
        wire.cuts = [150, None]
        got: list[StreamPacket] = []
        desk.nursery.start_soon(lambda: speak(desk.model, "a", "b", "c", number=2))
        await collect(client, got)
        assert text(got) == "abc"
        assert wire.seen[1].headers["last-event-id"] == f"{question().request_id}:2:1"


async def test_on_retry_is_called_for_every_pause(autojump_clock: MockClock) -> None:
    reported: list[tuple[str, float]] = []
    async with connected(tries=4, on_retry=lambda why, pause: reported.append((str(why), pause))) as (_, wire, client):
        wire.cuts = [0] * 20
        with pytest.raises(Unreachable):
            await client.assist(question())
        assert [pause for _, pause in reported] == [0.5, 1, 2]
        assert all("cannot be reached" in why for why, _ in reported)


async def test_pauses_double_and_attempts_end(autojump_clock: MockClock) -> None:
    async with connected(tries=9) as (_, wire, client):
        wire.cuts = [0] * 20
        with pytest.raises(Unreachable, match="ConnectError"):
            await collect(client, [])
        pauses = [after - before for before, after in zip(wire.times, wire.times[1:], strict=False)]
        assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30])
        with pytest.raises(Unreachable):
            await client.assist(question())
        assert len(wire.times) == 18


async def test_a_transient_refusal_is_retried(autojump_clock: MockClock) -> None:
    """As long as the service says; and not when that is too long, or for ever."""
    async with connected(patience=20) as (desk, wire, client):
        desk.model.refuses = Overloaded("Too many.", retry_after=17)
        got: list[StreamPacket] = []
        desk.nursery.start_soon(collect, client, got)
        await trio.sleep(10)
        desk.model.refuses = None
        await speak(desk.model, "a")
        await trio.sleep(30)
        assert text(got) == "a"
        assert wire.times[1] - wire.times[0] == pytest.approx(17)
        desk.model.refuses = Overloaded("Too many.", retry_after=21)
        for ask in (collect(client, [], number=1), client.assist(question(number=2))):
            with pytest.raises(AssistFailed) as caught:
                await ask
            error = caught.value
            assert (error.status, error.error.code, error.retry_after) == (503, "overloaded", 21)
        assert len(wire.seen) == 4


async def test_an_error_packet_is_raised(autojump_clock: MockClock) -> None:
    """After the first packet at once, because the client may have used it already."""
    async with connected() as (desk, wire, client):
        got: list[StreamPacket] = []

        async def fail() -> None:
            play = await desk.model.play()
            play.say("a")
            await trio.sleep(1)
            play.fail(UpstreamError("Broken.", code="stream_truncated", severity="transient"))

        desk.nursery.start_soon(fail)
        with pytest.raises(AssistFailed) as caught:
            await collect(client, got)
        assert len(got) == 1
        assert caught.value.error.code == "upstream_stream_disconnected"
        assert (caught.value.is_transient, caught.value.status) == (True, None)
        assert len(wire.seen) == 1


async def test_an_error_before_the_first_packet_is_retried(autojump_clock: MockClock) -> None:
    """Of the same request. Here it comes as a packet, since the model was silent for longer than a status waits."""
    async with connected() as (desk, wire, client):
        got: list[StreamPacket] = []
        desk.nursery.start_soon(collect, client, got)
        play = await desk.model.play()
        await trio.sleep(10)
        play.fail(UpstreamError("Broken.", code="stream_truncated", severity="transient"))
        await speak(desk.model, "a", number=2)
        await trio.sleep(10)
        assert text(got) == "a"
        assert [sent.method for sent in wire.seen] == ["POST", "POST"]
        assert wire.seen[0].content == wire.seen[1].content


async def test_a_fatal_error_is_not_retried(autojump_clock: MockClock) -> None:
    async with connected() as (_, wire, client):
        for ask in (collect(client, [], agent="nobody"), client.assist(question(agent="nobody"))):
            with pytest.raises(AssistFailed) as caught:
                await ask
            assert (caught.value.status, caught.value.error.code) == (404, "unknown_agent")
        assert len(wire.seen) == 2


async def test_side_effects_are_not_repeated(autojump_clock: MockClock) -> None:
    error = {"code": "agent_crashed", "message": "!", "severity": "transient", "details": {"side_effects": True}}
    async with connected() as (_, wire, client):
        wire.instead = [lambda _: httpx2.Response(502, json=error)]
        with pytest.raises(AssistFailed):
            await collect(client, [])
        assert len(wire.seen) == 1


async def test_a_whole_answer(autojump_clock: MockClock) -> None:
    """Also over a connection that breaks: the same request joins its own answer."""
    async with connected() as (desk, wire, client):
        wire.cuts = [0, 5, None]
        desk.nursery.start_soon(speak, desk.model, "a", "b")
        answer = await client.assist(question())
        assert (answer.output["text"], answer.output["status"]) == ("ab", "completed")
        assert answer.request_id == question().request_id
        assert answer.metrics is not None
        assert answer.metrics["tokens"] == 7
        assert len(desk.model.plays) == 1
        assert [sent.headers["accept"] for sent in wire.seen] == ["application/json"] * 3


async def test_errors_of_a_gateway_are_retried(autojump_clock: MockClock) -> None:
    async with connected() as (desk, wire, client):
        page = httpx2.Response(502, text="<html>Bad Gateway</html>", headers={"retry-after": "3"})
        wire.instead = [lambda _: page]
        desk.nursery.start_soon(speak, desk.model, "a")
        got: list[StreamPacket] = []
        await collect(client, got)
        assert text(got) == "a"
        assert wire.times[1] - wire.times[0] == pytest.approx(3)


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, text="<html>"),
        httpx2.Response(200, json={"op": "close"}),
        httpx2.Response(404, text="nothing here"),
        httpx2.Response(204),
        httpx2.Response(302, headers={"location": "http://example.org"}),
        events(b"data: x\n\n"),
        events(b'data: {"op":"close"}\n\n'),
        events(b'id: 550e8400-e29b-41d4-a716-446655440000:2\ndata: {"op":"close"}\n\n'),
        events(b'id: 550e8400-e29b-41d4-a716-446655440001:1\ndata: {"op":"close"}\n\n'),
    ],
)
async def test_a_response_that_is_not_cap(autojump_clock: MockClock, answer: httpx2.Response) -> None:
    async with connected() as (_, wire, client):
        wire.instead = [lambda _: answer]
        with pytest.raises(NotCap):
            await collect(client, [])
        assert len(wire.seen) == 1


async def test_an_expired_stream_cannot_be_resumed(autojump_clock: MockClock) -> None:
    """The client was away for longer than the grace: what it has is all there is."""
    async with connected() as (desk, wire, client):
        wire.cuts = [150, 0, 0, 0, 0, 0, 0, None]
        got: list[StreamPacket] = []
        desk.nursery.start_soon(speak, desk.model, "a", "b", "c")
        with pytest.raises(AssistFailed) as caught:
            await collect(client, got)
        assert (caught.value.status, caught.value.error.code) == (410, "stream_expired")
        assert len(got) == 1


async def test_waiting_for_a_packet_can_be_cancelled_and_resumed(autojump_clock: MockClock) -> None:
    async with connected() as (desk, _, client):
        got: list[StreamPacket] = []
        async with client.stream(question()) as stream:
            desk.nursery.start_soon(_slowly, desk.model)
            while not got or not isinstance(got[-1], ClosePacket):
                with trio.move_on_after(0.7):
                    got.append(await anext(stream))
        assert text(got) == "abcdefgh"
        assert len(desk.model.plays) == 1


async def _slowly(model: Model) -> None:
    play = await model.play()
    for piece in "abcdefgh":
        play.say(piece)
        await trio.sleep(1)
    play.finish()


async def test_a_client_that_left_can_cancel_the_turn(autojump_clock: MockClock) -> None:
    async with connected() as (desk, _, client):
        async with client.stream(question()) as stream:
            desk.nursery.start_soon(_slowly, desk.model)
            await anext(stream)
        assert await client.cancel(stream.request_id)
        await desk.model.plays[0].closed.wait()
        assert not await client.cancel(UUID(int=5))


async def test_health(autojump_clock: MockClock) -> None:
    async with connected() as (desk, wire, client):
        assert (await client.health()).status == "ok"
        desk.fault.append("shutdown_initiated")
        assert (await client.health()).status == "maintenance"
        wire.instead = [lambda _: httpx2.Response(200, text="ok"), lambda _: httpx2.Response(404)]
        for _ in range(2):
            with pytest.raises(NotCap):
                await client.health()
        wire.cuts = [0]
        with pytest.raises(Unreachable):
            await client.health()


@pytest.mark.parametrize(("url", "key"), [("ftp://x", None), ("http://example.org", None), ("http://localhost", "a b")])
def test_invalid_urls_and_keys_are_refused(url: str, key: str | None) -> None:
    with pytest.raises(ValueError):
        CapClient(url, key)


@pytest.mark.deep  # in real time
async def test_over_sockets_that_disconnect(mock_bridge: RunningBridge) -> None:
    """As the operating system tells of it: in the head of an answer, in its chunks, and between them."""
    query = "".join(f"{number} " for number in range(40))
    asking = question(query=query, number=int(time.time()), meta={"model": "mock-echo"})
    async with trio.open_nursery() as nursery:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        cuts = iter([0, 100, 400, 700, 1500])

        async def pass_on(client: trio.SocketStream) -> None:
            limit = next(cuts, None)
            async with client, await trio.open_tcp_stream("127.0.0.1", mock_bridge.port) as bridge:
                nursery.start_soon(_copy, client, bridge, None)
                await _copy(bridge, client, limit)

        nursery.start_soon(trio.serve_listeners, pass_on, [listener])
        got: list[StreamPacket] = []
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with CapClient(url, KEY) as client, client.stream(asking) as stream:
            async for packet in stream:
                got.append(packet)
        nursery.cancel_scope.cancel()
    assert text(got) == query
    assert next(cuts, None) is None


async def test_over_sockets_a_stream_can_be_left(mock_bridge: RunningBridge) -> None:
    """In the middle, and after its end, when its connection is used again."""
    async with CapClient(mock_bridge.root, KEY) as client:
        for number in (1, 2):
            asking = question(query="a b c d e f g h", number=int(time.time()) + number, meta={"model": "mock-echo"})
            async with client.stream(asking) as stream:
                await anext(stream)
            async with client.stream(asking) as stream:
                assert text([packet async for packet in stream]) == "a b c d e f g h"


async def _copy(source: trio.SocketStream, target: trio.SocketStream, limit: int | None) -> None:
    """What comes, up to so many bytes."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while (limit is None or limit > 0) and (piece := await source.receive_some(limit or 65536)):
            await target.send_all(piece)
            limit = None if limit is None else limit - len(piece)


def test_the_example_of_the_docs_works(mock_bridge: RunningBridge) -> None:
    """As it stands there."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/cap.md").read_text(), re.DOTALL)
    variables = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": mock_bridge.url, "OPENAI_API_KEY": KEY}
    done = subprocess.run(
        [sys.executable, "-c", example], env=variables, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("ok\nHello\nAnd again\n", "")


def test_events_are_read_however_they_are_cut() -> None:
    """Comments, other line ends and data in several lines included."""
    stream = (
        b": keepalive\n\nevent: stream.packet\r\nid: a:1\r\n"
        b'data: {"op":"delta",\r\ndata: "p":"\xe2\x80\xa8"}\r\n\r\n'
        b'id:a:2\ndata:{"op":"close","p":null}\n\n'
    )
    for size in range(1, len(stream) + 1):
        reader = PacketReader()
        found = [each for at in range(0, len(stream), size) for each in reader.packets(stream[at : at + size])]
        assert [(name, packet.p) for name, packet in found] == [("a:1", "\u2028"), ("a:2", None)]


def test_an_event_without_an_end_is_given_up() -> None:
    reader = PacketReader(max_event=100)
    with pytest.raises(ValueError):
        for _ in range(60):
            reader.packets(b"xx")
