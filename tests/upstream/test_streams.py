"""The scripted backend's streams, their faults, and clients that leave."""

from __future__ import annotations

from time import monotonic
from typing import Any

import httpx2
import pytest
import trio
from upstream.answers import CUT, KEEPALIVE, RESET, Gate, Stream, Truncated
from upstream.asking import ask, body, events_in, headers, kinds, read_until, talking
from upstream.events import answer, padding, text


@pytest.mark.parametrize(
    "form",
    [{}, {"chunk": 1}, {"line_end": "\r\n", "chunk": 7}, {"names": False, "done": True}, {"gzip": True, "chunk": 5}],
    ids=str,
)
async def test_every_form_holds_the_same_events(form: Any) -> None:
    events = answer(text("é", "\u2028", "<&>"))
    async with talking() as (chatgpt, client):
        chatgpt.will(Stream([*events[:3], KEEPALIVE, *events[3:]], **form))
        response = await ask(chatgpt, client)
        assert events_in(response.content) == events
        assert (b"event: " in response.content) == form.get("names", True)
        assert response.content.endswith(b"data: [DONE]\n\n") == form.get("done", False)


async def test_an_event_may_be_large() -> None:
    async with talking() as (chatgpt, client):
        chatgpt.will(Stream([padding(40_000_000), *answer(text("a"))]))
        response = await ask(chatgpt, client)
        assert max(map(len, response.content.split(b"\n"))) > 40_000_000
        assert kinds(events_in(response.content))[-1] == "completed"


@pytest.mark.parametrize(
    ("fault", "seen"), [(RESET, httpx2.ReadError), (CUT, httpx2.RemoteProtocolError)], ids=["reset", "cut"]
)
@pytest.mark.parametrize("after", [0, 4])
async def test_a_stream_may_break(fault: Any, seen: type[Exception], after: int) -> None:
    events = answer(text("a", "b"))
    async with talking() as (chatgpt, client):
        chatgpt.will(Stream([*events[:after], fault]))
        read = b""
        async with client.stream("POST", "/responses", json=body(), headers=headers(chatgpt)) as response:
            assert response.status_code == 200
            with pytest.raises(seen):
                async for piece in response.aiter_raw():
                    read += piece
        assert events_in(read) == events[:after]
        assert chatgpt.gone == []


async def test_an_event_may_break_in_the_middle() -> None:
    event = answer(text("a"))[0]
    async with talking() as (chatgpt, client):
        chatgpt.will(Stream([Truncated(event)]))
        with pytest.raises(httpx2.RemoteProtocolError, match="incomplete chunked read"):
            await ask(chatgpt, client)


@pytest.mark.parametrize("fault", [RESET, CUT])
async def test_a_connection_may_end_before_the_answer(fault: Any) -> None:
    async with talking() as (chatgpt, client):
        chatgpt.will(fault)
        with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await ask(chatgpt, client)
        assert (await ask(chatgpt, client)).status_code == 200
        assert [request.status for request in chatgpt.requests] == [None, 200]


async def test_a_gate_holds_a_stream_back() -> None:
    events, before, within = answer(text("a", "b")), Gate(), Gate()
    read: list[bytes] = []
    async with talking() as (chatgpt, client), trio.open_nursery() as nursery:
        chatgpt.will(Stream([*events[:4], within, *events[4:]], gate=before))

        async def run() -> None:
            async with client.stream("POST", "/responses", json=body(), headers=headers(chatgpt)) as response:
                assert before.held == 1
                async for piece in response.aiter_raw():
                    read.append(piece)

        nursery.start_soon(run)
        await chatgpt.until(lambda: before.held)
        assert chatgpt.requests[0].status is None
        before.open()
        await chatgpt.until(lambda: within.held)
        await trio.testing.wait_all_tasks_blocked()
        assert events_in(b"".join(read)) == events[:4]
        within.open()
    assert events_in(b"".join(read)) == events


@pytest.mark.parametrize("silent", [True, False])
async def test_a_client_that_leaves_is_noticed(silent: bool) -> None:
    """In the middle of silence, and in the middle of a stream that nobody reads."""
    gate = Gate()
    rest = [gate] if silent else [padding(1_000_000)] * 50
    async with talking() as (chatgpt, client):
        chatgpt.will(Stream([answer(text("a"))[0], *rest]))
        await read_until(chatgpt, client, b"response.created")
        left = monotonic()
        await chatgpt.until(lambda: chatgpt.gone)
        (request,) = chatgpt.gone
        assert request.left_at is not None
        assert request.left_at - left < 5
        assert not request.written


async def test_a_client_that_leaves_after_the_last_event_is_no_loss() -> None:
    async with talking() as (chatgpt, client):
        for _ in range(20):
            await read_until(chatgpt, client, b"response.completed")
        assert (await ask(chatgpt, client)).status_code == 200
        assert chatgpt.gone == []
