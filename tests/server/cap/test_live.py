"""A turn and its readers: clients that leave, come back, read slowly or join late."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from harness import OTHER_KEY
from play import JSON, NDJSON, SSE, make_store
from server.cap.desk import REQUEST_ID, open_desk, request, text_of
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.cap.exchange import RING_BYTES
from bridge.cap.live import KEPT_BYTES
from bridge.core.events import Acted, Finished
from bridge.errors import Overloaded, UpstreamError
from bridge.protocols.cap import CapOptions
from bridge.store.sqlite import SqliteStore

CLOSE = {"op": "close", "p": None}


# Leaving and coming back


async def test_a_client_that_comes_back_misses_nothing(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        first = desk.ask(request())
        play = await desk.model.play()
        play.say("a", "b")
        await first.until('"b"')
        first.leave()
        await first.whole()
        play.say("c")
        await trio.sleep(29)  # within the grace
        play.say("d")
        second = desk.get(last=first.ids[-1])
        await second.until('"d"')
        play.say("e")
        play.finish()
        await second.whole()
        assert first.packets + second.packets == [*({"op": "delta", "p": piece} for piece in "abcde"), CLOSE]
        assert first.ids + second.ids == [1, 2, 3, 4, 5, 6]


async def test_a_stream_can_be_resumed_after_every_packet(autojump_clock: MockClock) -> None:
    """While it runs, and after its end; in both forms of a stream."""
    async with open_desk() as desk:
        posted = desk.ask(request())
        play = await desk.model.play()
        for piece in "abcd":
            play.say(piece)
        await posted.until('"d"')
        running = [desk.get(last=number) for number in range(5)]
        play.finish()
        await posted.whole()
        for accept in (SSE, NDJSON):
            for number in range(6):
                after = await desk.get(last=number, accept=accept).whole()
                assert after.status == 200
                assert after.packets == posted.packets[number:]
        for number, call in enumerate(running):
            await call.whole()
            assert call.packets == posted.packets[number:]
        assert len(desk.model.plays) == 1


async def test_a_turn_ends_if_no_client_returns(autojump_clock: MockClock) -> None:
    """After the grace period the turn is interrupted. It is truncated, so it is never served as a whole answer."""
    async with open_desk() as desk:
        call = desk.ask(request(conversation_id="c1"))
        play = await desk.model.play()
        play.say("Half an")
        await call.until("Half an")
        left_at = trio.current_time()
        call.leave()
        await play.closed.wait()
        assert trio.current_time() - left_at == pytest.approx(30)
        late = await desk.get(last=1).whole()
        assert late.error == (410, "stream_expired")
        again = desk.ask(request(conversation_id="c1"))
        second = await desk.model.play(2)
        assert second.history() == ["Hello"]  # nothing of the first is remembered
        second.say("A whole answer")
        second.finish()
        assert (await again.whole()).text == "A whole answer"


@pytest.mark.parametrize("accept", [SSE, NDJSON, JSON])
async def test_the_grace_period_applies_to_all_forms(autojump_clock: MockClock, accept: str) -> None:
    async with open_desk(options=CapOptions(grace=5)) as desk:
        call = desk.ask(request(), accept)
        play = await desk.model.play()
        await wait_all_tasks_blocked()
        call.leave()
        await call.whole()
        left_at = trio.current_time()
        await play.closed.wait()
        assert trio.current_time() - left_at == pytest.approx(5)


async def test_a_client_that_returns_at_the_last_moment_is_served(autojump_clock: MockClock) -> None:
    """The grace period ends in the instant in which a reader comes: the turn continues, or the reader gets 410."""
    async with open_desk(options=CapOptions(grace=5)) as desk:
        call = desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        await call.until('"a"')
        call.leave()
        await call.whole()
        await trio.sleep(5)
        late = desk.get(last=1)
        await wait_all_tasks_blocked()
        if play.closed.is_set():
            assert (await late.whole()).error == (410, "stream_expired")
        else:
            play.say("b")
            play.finish()
            assert (await late.whole()).text == "b"


async def test_the_grace_period_begins_when_the_last_client_leaves(autojump_clock: MockClock) -> None:
    async with open_desk(options=CapOptions(grace=5)) as desk:
        one, two = desk.ask(request()), desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        await one.until('"a"')
        await two.until('"a"')
        one.leave()
        await trio.sleep(60)
        assert not play.closed.is_set()
        two.leave()
        left_at = trio.current_time()
        await play.closed.wait()
        assert trio.current_time() - left_at == pytest.approx(5)
        assert len(desk.model.plays) == 1


async def test_a_client_leaves_before_the_turn_begins(autojump_clock: MockClock) -> None:
    """The bridge does not wait for a backend that is slow to begin."""
    async with open_desk(options=CapOptions(grace=5)) as desk:
        desk.model.opening = trio.Event()
        call = desk.ask(request())
        await desk.model.until(lambda: desk.model.waiting)
        call.leave()
        await trio.sleep(6)
        await wait_all_tasks_blocked()
        assert desk.model.waiting == 0
        assert (await desk.get().whole()).error == (410, "stream_expired")


async def test_an_ended_turn_is_kept_for_the_grace_period(autojump_clock: MockClock) -> None:
    async with open_desk(options=CapOptions(grace=5)) as desk:
        call = desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        play.finish()
        await call.whole()
        await trio.sleep(4)
        assert (await desk.get().whole()).text == "a"
        await trio.sleep(1)
        assert (await desk.get().whole()).error == (410, "stream_expired")


# Ending it


@pytest.mark.parametrize("accept", [SSE, NDJSON])
async def test_a_cancelled_stream_gets_only_its_close_packet(autojump_clock: MockClock, accept: str) -> None:
    async with open_desk() as desk:
        call = desk.ask(request(meta={"events": ["metrics"]}), accept)
        play = await desk.model.play()
        play.say("a")
        await call.until('"a"')
        told = await desk.delete().whole()
        assert (told.status, told.json) == (202, {"request_id": REQUEST_ID, "status": "ending"})
        await call.whole()
        assert call.packets == [{"op": "delta", "p": "a"}, CLOSE]
        await play.closed.wait()
        assert (await desk.delete().whole()).json["status"] == "ended"


async def test_a_cancelled_answer_is_incomplete(autojump_clock: MockClock) -> None:
    """A whole answer says so, also to a client that joins a stream as one object."""
    async with open_desk() as desk:
        whole, stream = desk.ask(request(), JSON), desk.ask(request("x", number=1))
        plays = [await desk.model.play(1), await desk.model.play(2)]
        for play in plays:
            play.say("a")
        await stream.until('"a"')
        joined = desk.ask(request("x", number=1), JSON)
        await wait_all_tasks_blocked()
        desk.delete()
        desk.delete(request("x", number=1)["request_id"])
        for call in (whole, joined):
            await call.whole()
            output = call.json["output"]
            assert (call.status, output["text"], output["status"]) == (200, "a", "incomplete")
            assert [notice["code"] for notice in output["notices"]] == [206]


async def test_a_stream_gets_what_it_asked_for_however_the_turn_began(autojump_clock: MockClock) -> None:
    """Metrics and the notice of a cancelled turn are members of a whole answer, and are in no stream of it."""
    async with open_desk() as desk:
        for number, ends in enumerate([False, True]):
            body = request(number=number)
            whole = desk.ask(body, JSON)
            play = await desk.model.play(number + 1)
            stream = desk.ask(body)
            await wait_all_tasks_blocked()
            play.say("a")
            await wait_all_tasks_blocked()
            if ends:
                desk.delete(body["request_id"])
            else:
                play.finish()
            assert (await stream.whole()).packets == [{"op": "delta", "p": "a"}, CLOSE]
            assert "duration_ms" in (await whole.whole()).json["metrics"]


@pytest.mark.parametrize("accept", [SSE, JSON])
async def test_a_turn_that_has_not_begun_can_be_cancelled(autojump_clock: MockClock, accept: str) -> None:
    async with open_desk() as desk:
        desk.model.opening = trio.Event()
        call = desk.ask(request(), accept)
        await desk.model.until(lambda: desk.model.waiting)
        before = trio.current_time()
        assert (await desk.delete().whole()).status == 202
        await call.whole()
        assert trio.current_time() - before < 1
        assert call.status == 200
        if accept == SSE:
            assert call.packets == [CLOSE]
        else:
            assert call.json["output"]["status"] == "incomplete"
        assert desk.model.waiting == 0
        assert desk.model.plays == []


async def test_a_turn_can_be_cancelled_at_any_step_of_its_start(autojump_clock: MockClock) -> None:
    for steps in range(10):
        async with open_desk() as desk:
            desk.model.opening = trio.Event()
            call = desk.ask(request())
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            before = trio.current_time()
            ended = await desk.delete().whole()
            assert ended.status in (202, 410)
            if ended.status == 202:
                assert (await call.whole()).packets == [CLOSE]
                assert trio.current_time() - before < 1


async def test_another_keys_turn_cannot_be_cancelled_or_read(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        call = desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        await call.until('"a"')
        assert (await desk.delete(key=OTHER_KEY).whole()).error == (410, "stream_expired")
        assert (await desk.get(key=OTHER_KEY).whole()).error == (410, "stream_expired")
        # The same id is another request of another client.
        other = desk.ask(request("Mine"), key=OTHER_KEY)
        second = await desk.model.play(2)
        second.say("yours")
        second.finish()
        assert (await other.whole()).text == "yours"
        play.finish()
        assert (await call.whole()).text == "a"


async def test_an_unknown_turn_cannot_be_cancelled(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        assert (await desk.delete().whole()).error == (410, "stream_expired")
        assert (await desk.delete("42").whole()).error == (422, "invalid_request")
        assert (await desk.get("42").whole()).error == (422, "invalid_request")


# Slow readers


async def test_a_large_answer_waits_for_its_reader(autojump_clock: MockClock) -> None:
    """The model is not asked for more while a ring's worth is unread; nothing is dropped, and the turn continues."""
    piece = "x" * 1024
    pieces = 4 * RING_BYTES // len(piece)
    async with open_desk() as desk:
        call = desk.ask(request(), slow=True)
        play = await desk.model.play()
        for _ in range(pieces):
            play.say(piece)
        play.finish()
        await wait_all_tasks_blocked()
        assert play.taken < pieces / 2
        before = play.taken
        while not call.done.is_set():
            call.take()
            await wait_all_tasks_blocked()
        assert before < play.taken
        assert call.text == piece * pieces
        assert call.ids == list(range(1, pieces + 2))


async def test_an_answer_without_a_reader_waits_too(autojump_clock: MockClock) -> None:
    """A client that returns gets everything after the last packet that it has received."""
    piece = "x" * 1024
    pieces = 3 * RING_BYTES // len(piece)
    async with open_desk() as desk:
        call = desk.ask(request())
        play = await desk.model.play()
        play.say("begun")
        await call.until("begun")
        call.leave()
        await call.whole()
        for _ in range(pieces):
            play.say(piece)
        play.finish()
        await wait_all_tasks_blocked()
        assert play.taken < pieces / 2
        back = await desk.get(last=1).whole()
        assert text_of(call.packets + back.packets) == "begun" + piece * pieces


async def test_packets_read_long_ago_are_dropped(autojump_clock: MockClock) -> None:
    piece = "x" * 1024
    pieces = 3 * RING_BYTES // len(piece)
    async with open_desk() as desk:
        call = desk.ask(request())
        play = await desk.model.play()
        for _ in range(pieces):
            play.say(piece)
            await wait_all_tasks_blocked()
        assert (await desk.get(last=1).whole()).error == (410, "stream_expired")
        assert (await desk.ask(request(), JSON).whole()).error == (410, "stream_expired")
        assert (await desk.get(last=pieces + 7).whole()).error == (410, "stream_expired")
        last = desk.get(last=pieces - 10)
        play.finish()
        await call.whole()
        await last.whole()
        assert len(last.packets) == 11
        assert call.text == piece * pieces


async def test_a_late_and_slow_reader_gets_everything(autojump_clock: MockClock) -> None:
    """From the moment it joins, packets that others have read are kept for it."""
    piece = "x" * 1024
    pieces = RING_BYTES // len(piece) - 100
    async with open_desk() as desk:
        quick = desk.ask(request())
        play = await desk.model.play()
        for _ in range(pieces):
            play.say(piece)
        await wait_all_tasks_blocked()
        slow = desk.ask(request(), slow=True)
        await wait_all_tasks_blocked()
        for _ in range(2 * pieces):
            play.say(piece)
        play.finish()
        await wait_all_tasks_blocked()
        while not slow.done.is_set():
            slow.take()
            await wait_all_tasks_blocked()
        assert slow.packets == (await quick.whole()).packets
        assert slow.text == piece * 3 * pieces


async def test_the_end_is_sent_after_the_conversation_is_stored(autojump_clock: MockClock) -> None:
    """Also for a reader that checks while the conversation is being stored."""
    stored = trio.Event()

    class SlowStore(SqliteStore):
        async def create_conversation(self, *arguments: Any) -> None:
            await stored.wait()
            await super().create_conversation(*arguments)

    async with open_desk(store=make_store(SlowStore)) as desk:
        call = desk.ask(request(conversation_id="c"), slow=True)
        play = await desk.model.play()
        play.say("a")
        await wait_all_tasks_blocked()
        play.finish()
        for _ in range(5):
            call.take()
            await wait_all_tasks_blocked()
        assert call.packets == [{"op": "delta", "p": "a"}]
        stored.set()
        assert (await call.whole()).packets[-1] == CLOSE


async def test_a_slow_reader_that_leaves_delays_no_other_reader(autojump_clock: MockClock) -> None:
    """The ring is full because of the slow reader; it leaves, and the other reader gets the rest."""
    piece = "x" * 1024
    pieces = 3 * RING_BYTES // len(piece)
    async with open_desk() as desk:
        quick, slow = desk.ask(request()), desk.ask(request(), slow=True)
        play = await desk.model.play()
        for _ in range(pieces):
            play.say(piece)
        play.finish()
        await wait_all_tasks_blocked()
        assert not quick.done.is_set()
        slow.leave()
        began = trio.current_time()
        await quick.whole()
        assert trio.current_time() - began < 1
        assert quick.text == piece * pieces


async def test_a_turn_that_waits_for_its_reader_can_be_cancelled(autojump_clock: MockClock) -> None:
    piece = "x" * 1024
    async with open_desk() as desk:
        call = desk.ask(request(), slow=True)
        play = await desk.model.play()
        for _ in range(3 * 1024):
            play.say(piece)
        await wait_all_tasks_blocked()
        desk.delete()
        await play.closed.wait()
        while not call.done.is_set():
            call.take()
            await wait_all_tasks_blocked()
        assert call.packets[-1] == CLOSE


# The same request again


async def test_the_same_request_joins(autojump_clock: MockClock) -> None:
    """While the turn runs and after its end, in any form: one turn, and the same answer."""
    async with open_desk() as desk:
        calls = [desk.ask(request())]
        play = await desk.model.play()
        calls += [desk.ask(request(), accept) for accept in (NDJSON, JSON)]
        socket = desk.socket(request())
        play.say("a", "b")
        await calls[0].until('"b"')
        calls += [desk.ask(request(), accept) for accept in (SSE, NDJSON, JSON)]
        await wait_all_tasks_blocked()
        play.finish()
        for call in calls:
            await call.whole()
        calls += [await desk.ask(request(), accept).whole() for accept in (SSE, NDJSON, JSON)]
        await socket.done.wait()
        streams = [call.packets for call in calls if call.headers["content-type"] != JSON]
        assert streams == [calls[0].packets] * 6
        assert socket.packets == calls[0].packets
        wholes = [call.json for call in calls if call.headers["content-type"] == JSON]
        assert wholes == [wholes[0]] * 3
        assert wholes[0]["output"]["text"] == "ab"
        assert {call.headers["x-conversation-id"] for call in calls} == {wholes[0]["output"]["conversation_id"]}
        assert len(desk.model.plays) == 1


async def test_an_answer_that_began_whole_can_be_read_as_a_stream(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        whole = desk.ask(request(), JSON)
        play = await desk.model.play()
        stream = desk.get()
        play.say("a", "b")
        play.finish()
        await whole.whole()
        assert (await stream.whole()).text == whole.json["output"]["text"] == "ab"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_stream_of_what_began_whole_is_kept_alive(autojump_clock: MockClock, fails: bool) -> None:
    """It has no packet before the end, but comments show the client that it is alive."""
    async with open_desk(keepalive=15) as desk:
        whole = desk.ask(request(), JSON)
        play = await desk.model.play()
        stream = desk.get()
        await trio.sleep(40)
        assert stream.body == b": keepalive\n\n" * 2
        play.say("a")
        if fails:
            play.fail(UpstreamError("Broken.", code="stream_truncated", severity="transient"))
            assert (await whole.whole()).error == (502, "upstream_stream_disconnected")
            assert [packet["op"] for packet in (await stream.whole()).packets] == ["delta", "error", "close"]
        else:
            play.finish()
            assert (await stream.whole()).text == (await whole.whole()).json["output"]["text"] == "a"


async def test_another_request_with_the_same_id_is_a_conflict(autojump_clock: MockClock) -> None:
    """Whatever the state of the first request."""
    async with open_desk() as desk:
        call = desk.ask(request())
        play = await desk.model.play()
        assert (await desk.ask(request("Other")).whole()).error == (409, "request_id_conflict")
        play.say("a")
        play.finish()
        await call.whole()
        assert (await desk.ask(request("Other")).whole()).error == (409, "request_id_conflict")
        socket = desk.socket(request("Other"))
        await socket.done.wait()
        assert [packet["op"] for packet in socket.packets] == ["error", "close"]
        assert (socket.packets[0]["p"]["code"], socket.code) == ("request_id_conflict", 1008)


async def test_the_order_of_members_does_not_matter(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        body = request(meta={"timezone": "UTC", "locale": "de"})
        turned = {name: body[name] for name in reversed(body)}
        turned["payload"] = {"meta": {"locale": "de", "timezone": "UTC"}, "query": "Hello"}
        turned["request_id"] = body["request_id"].upper()
        one, two = desk.ask(body), desk.ask(turned)
        play = await desk.model.play()
        play.say("a")
        play.finish()
        assert (await one.whole()).packets == (await two.whole()).packets


@pytest.mark.parametrize("accept", [SSE, JSON])
async def test_a_failed_turn_is_tried_again(autojump_clock: MockClock, accept: str) -> None:
    """At once, also for a client that has just received the failure."""
    async with open_desk() as desk:
        for number in range(1, 4):
            call = desk.ask(request(conversation_id="c"), accept)
            play = await desk.model.play(number)
            if accept == SSE and number > 1:  # after the first words, too
                play.say("a")
                await call.until('"a"')
            play.fail(UpstreamError("Broken.", code="stream_truncated", severity="transient"))
            await call.whole()
        call = desk.ask(request(conversation_id="c"), accept)
        play = await desk.model.play(4)
        play.say("b")
        play.finish()
        await call.whole()
        assert (call.text if accept == SSE else call.json["output"]["text"]) == "b"
        assert play.history() == ["Hello"]


@pytest.mark.parametrize("is_left", [False, True], ids=["failed", "left"])
async def test_packets_of_one_attempt_are_not_continued_by_another(autojump_clock: MockClock, is_left: bool) -> None:
    """A client that has part of a failed turn gets 410; the next turn has ids of its own."""
    async with open_desk() as desk:
        first = desk.ask(request())
        play = await desk.model.play(1)
        play.say("a", "b")
        await first.until('"b"')
        if is_left:
            first.leave()
            await trio.sleep(31)
        else:
            play.fail(UpstreamError("Broken.", code="stream_truncated", severity="transient"))
            await first.whole()
        second = desk.ask(request())
        play = await desk.model.play(2)
        play.say("x", "y", "z")
        await second.until('"z"')
        for last in (f"{REQUEST_ID}:1", f"{REQUEST_ID}:3:1"):
            assert (await desk.get(last=last).whole()).error == (410, "stream_expired")
            assert (await desk.ask(request(), last_event_id=last).whole()).error == (410, "stream_expired")
        resumed = desk.get(last=f"{REQUEST_ID}:2:1")
        play.finish()
        assert (await resumed.whole()).text == "yz"
        assert (await second.whole()).ids == [1, 2, 3, 4]
        assert f"id: {REQUEST_ID}:2:3\n".encode() in second.body


@pytest.mark.parametrize("accept", [SSE, NDJSON, JSON])
async def test_a_request_sent_again_continues_after_its_last_event_id(autojump_clock: MockClock, accept: str) -> None:
    """A whole answer is always complete, and a new attempt begins with its first packet."""
    async with open_desk() as desk:
        first = desk.ask(request(), last_event_id=f"{REQUEST_ID}:7")
        play = await desk.model.play()
        play.say("a", "b", "c")
        play.finish()
        assert (await first.whole()).text == "abc"
        again = await desk.ask(request(), accept, last_event_id=f"{REQUEST_ID}:1").whole()
        assert (again.json["output"]["text"] if accept == JSON else again.text) == ("abc" if accept == JSON else "bc")
        odd = await desk.ask(request(), accept, last_event_id="x").whole()
        assert odd.status == (200 if accept == JSON else 422)


async def test_a_turn_that_could_not_start_is_tried_again(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        desk.model.refuses = Overloaded("Too many.", retry_after=7)
        one, two = desk.ask(request()), desk.ask(request(), JSON)
        for call in (one, two):
            await call.whole()
            assert call.error == (503, "overloaded")
            assert call.headers["retry-after"] == "7"
            assert call.json["details"]["retry_after"] == 7
        desk.model.refuses = None
        again = desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        play.finish()
        assert (await again.whole()).text == "a"


@pytest.mark.parametrize("accept", [SSE, JSON])
async def test_an_error_status_reports_side_effects(autojump_clock: MockClock, accept: str) -> None:
    async with open_desk() as desk:
        call = desk.ask(request(), accept)
        play = await desk.model.play()
        play.tell(Acted())
        play.fail(UpstreamError("Broken.", severity="transient"))
        assert (await call.whole()).json["details"]["side_effects"] is True


async def test_a_failure_in_the_middle(autojump_clock: MockClock) -> None:
    """In a stream it is an error packet and the close packet; instead of a whole answer it is only the failure."""
    async with open_desk() as desk:
        stream = desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        await stream.until('"a"')
        joined = desk.ask(request(), JSON)
        await wait_all_tasks_blocked()
        play.fail(UpstreamError("Broken.", code="stream_truncated", severity="transient"))
        await stream.whole()
        assert [packet["op"] for packet in stream.packets] == ["delta", "error", "close"]
        error = stream.packets[1]["p"]
        assert (error["code"], error["severity"]) == ("upstream_stream_disconnected", "transient")
        assert error["details"] == {"retry_after": 2, "domain": "llm", "request_id": REQUEST_ID}
        assert (await joined.whole()).error == (502, "upstream_stream_disconnected")


async def test_a_reader_that_joins_while_the_turn_ends(autojump_clock: MockClock) -> None:
    """At every step there is either the whole answer or a new turn, never part of one."""
    for steps in range(12):
        async with open_desk() as desk:
            call = desk.ask(request())
            play = await desk.model.play()
            play.say("a")
            await call.until('"a"')
            play.tell(Finished("completed"))
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            joined = [desk.ask(request()), desk.get(), desk.ask(request(), JSON)]
            for each in joined:
                await each.whole()
            assert [each.status for each in joined] == [200] * 3
            assert joined[0].packets == joined[1].packets == call.packets
            assert joined[2].json["output"]["text"] == "a"
            assert len(desk.model.plays) == 1


# Time


async def test_the_deadline_is_the_clients(autojump_clock: MockClock) -> None:
    """Before the first packet it is a status, after it a packet; the model's stream is closed."""
    async with open_desk() as desk:
        silent = desk.ask(request(meta={"timeout_ms": 1500}))
        whole = desk.ask(request(number=1, meta={"codex": {"timeout_ms": 1500}}), JSON)
        talking = desk.ask(request("Talk", number=2, meta={"timeout_ms": 5000}))
        plays = [await desk.model.play(number) for number in (1, 2, 3)]
        talker = next(play for play in plays if play.history() == ["Talk"])
        talker.say("a")
        began = trio.current_time()
        for call in (silent, whole):
            await call.whole()
            assert call.error == (504, "deadline_exceeded")
            assert (call.json["severity"], call.json["details"]["retry_after"]) == ("transient", 1)
        assert trio.current_time() - began == pytest.approx(1.5, abs=0.1)
        await talking.whole()
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)
        assert [packet["op"] for packet in talking.packets] == ["delta", "error", "close"]
        for play in plays:
            await play.closed.wait()


async def test_the_deadline_counts_from_the_beginning(autojump_clock: MockClock) -> None:
    """The time that the backend needs to begin counts, too."""
    async with open_desk() as desk:
        desk.model.opening = trio.Event()
        began = trio.current_time()
        call = await desk.ask(request(meta={"timeout_ms": 2500})).whole()
        assert trio.current_time() - began == pytest.approx(2.5, abs=0.1)
        assert call.error == (504, "deadline_exceeded")


async def test_a_silent_stream_is_kept_alive(autojump_clock: MockClock) -> None:
    """By comments, in forms that have them."""
    async with open_desk(keepalive=15) as desk:
        events, lines = desk.ask(request()), desk.ask(request(), NDJSON)
        play = await desk.model.play()
        await trio.sleep(50)
        play.say("a")
        play.finish()
        await events.whole()
        await lines.whole()
        assert events.body.count(b": keepalive\n\n") == 3
        assert lines.packets == events.packets
        assert lines.body.count(b"\n") == 2


# Bounds, and the end of the bridge


async def test_ended_turns_are_kept_within_limits(autojump_clock: MockClock) -> None:
    piece = "x" * (1024 * 1024)
    room = KEPT_BYTES // len(piece) - 1  # a packet is a little more than its text
    count = room + 3
    async with open_desk(max_body=2**24) as desk:
        for number in range(count):
            call = desk.ask(request(number=number), JSON)
            play = await desk.model.play(number + 1)
            play.say(piece)
            play.finish()
            await call.whole()
        statuses = [(await desk.get(request(number=number)["request_id"]).whole()).status for number in range(count)]
        assert statuses == [410] * 3 + [200] * room


async def test_a_stopping_bridge_accepts_no_requests(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        running = desk.ask(request())
        play = await desk.model.play()
        play.say("a")
        await running.until('"a"')
        desk.service.background = None
        desk.fault.append("shutdown_initiated")
        refused = await desk.ask(request(number=1)).whole()
        assert refused.error == (503, "shutting_down")
        assert (refused.headers["retry-after"], refused.json["severity"]) == ("5", "transient")
        socket = desk.socket(request(number=1))
        await socket.done.wait()
        assert ([packet["op"] for packet in socket.packets], socket.code) == (["error", "close"], 1013)
        health = await desk.page("/health").whole()
        assert (health.status, health.json["status"]) == (503, "maintenance")
        # What runs can be joined, and ends as it would.
        joined = desk.ask(request())
        play.finish()
        assert (await running.whole()).packets == (await joined.whole()).packets


@pytest.mark.parametrize("begun", [True, False])
async def test_turns_that_are_cut_by_the_end_say_so(autojump_clock: MockClock, begun: bool) -> None:
    async with open_desk() as desk, trio.open_nursery() as background:
        desk.service.background = background
        call = desk.ask(request())
        play = await desk.model.play()
        if begun:
            play.say("a")
            await call.until('"a"')
        background.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await call.whole()
        if begun:
            assert [packet["op"] for packet in call.packets] == ["delta", "error", "close"]
            assert call.packets[1]["p"]["code"] == "shutting_down"
        else:
            assert call.error == (503, "shutting_down")
        assert play.closed.is_set()
