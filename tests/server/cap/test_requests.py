"""The user of a request, the model that answers it, and the conversation that it continues."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from harness import KEY, OTHER_KEY
from play import JSON, MODEL, NDJSON, SSE, Json
from server.cap.desk import CapDesk, open_desk, request
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.core.events import ToolCall
from bridge.core.items import Message
from bridge.errors import UpstreamError
from bridge.ids import new_id
from bridge.protocols.cap import AssistRules, CapOptions
from bridge.server.gate import label_of

SECRET = "the secret is 42"


async def answer(desk: CapDesk, body: Json, text: str = "a", accept: str = JSON, **more: Any) -> list[str]:
    """Send a request that is answered with a text; returns the texts that the model received."""
    number = len(desk.model.plays) + 1
    call = desk.ask(body, accept, **more)
    play = await desk.model.play(number)
    play.say(text)
    play.finish()
    await call.whole()
    assert call.status == 200, call.body
    return play.history()


# Users


async def test_a_client_must_be_the_user_of_its_key(autojump_clock: MockClock) -> None:
    options = CapOptions(users={label_of(KEY): "ada"})
    async with open_desk(options=options) as desk:
        assert await answer(desk, request(user="ada")) == ["Hello"]
        assert (await desk.ask(request(user="bob", number=1)).whole()).error == (403, "forbidden")
        # Who is nobody may ask for nobody.
        assert (await desk.ask(request(user="ada"), key=OTHER_KEY).whole()).error == (403, "forbidden")
        assert (await desk.ask(request(user=""), key=OTHER_KEY).whole()).error == (403, "forbidden")
        socket = desk.socket(request(user="bob", number=1))
        await socket.done.wait()
        assert (socket.packets[0]["p"]["code"], socket.code) == ("forbidden", 1008)


async def test_a_role_grants_nothing(autojump_clock: MockClock) -> None:
    async with open_desk(options=CapOptions(users={label_of(KEY): "ada"})) as desk:
        body = request(user="bob")
        body["context"]["user"]["role"] = "admin"
        assert (await desk.ask(body).whole()).error == (403, "forbidden")


# Models


def _options(**more: Any) -> CapOptions:
    return CapOptions(AssistRules(more.pop("model", ""), {"helper": MODEL, "lost": "no-such-model"}.get), **more)


async def test_agents_choose_models(autojump_clock: MockClock) -> None:
    async with open_desk(options=_options(model="no-such-model")) as desk:
        await answer(desk, request(agent="helper"))
        assert (await desk.ask(request(agent="nobody", number=1)).whole()).error == (404, "unknown_agent")
        # What the request itself names wins, but the agent has to be there.
        await answer(desk, request(agent="lost", number=2, meta={"model": MODEL}))
        await answer(desk, request(agent="lost", number=3, meta={"model": "x", "codex": {"model": MODEL}}))
        nobody = await desk.ask(request(agent="nobody", number=4, meta={"model": MODEL})).whole()
        assert nobody.error == (404, "unknown_agent")


async def test_the_default_model(autojump_clock: MockClock) -> None:
    """The operator's setting, otherwise the default backend's model."""
    async with open_desk(options=_options()) as desk:
        await answer(desk, request())
        assert desk.model.plays[0].turn.model == MODEL
    async with open_desk(options=_options(model="no-such-model")) as desk:
        assert (await desk.ask(request()).whole()).error == (404, "model_not_found")


@pytest.mark.parametrize("where", ["meta", "codex"])
async def test_an_unknown_model(autojump_clock: MockClock, where: str) -> None:
    named = {"model": "secret-model"}
    async with open_desk() as desk:
        call = await desk.ask(request(meta=named if where == "meta" else {"codex": named})).whole()
        assert call.error == (404, "model_not_found")
        assert b"secret-model" not in call.body


# Conversations


@pytest.mark.parametrize("accept", [SSE, JSON])
async def test_a_conversation_continues(autojump_clock: MockClock, accept: str) -> None:
    """With an id that the client has chosen, and with one from the bridge. The model receives the whole history."""
    async with open_desk() as desk:
        first = await answer(desk, request("one", conversation_id="mine"), "uno", accept)
        second = await answer(desk, request("two", number=1, conversation_id="mine"), "due", accept)
        third = await answer(desk, request("three", number=2, conversation_id="mine"), "tre", accept)
        assert (first, second) == (["one"], ["one", "uno", "two"])
        assert third == ["one", "uno", "two", "due", "three"]
        call = desk.ask(request("one", number=3), JSON)
        play = await desk.model.play(4)
        play.say("uno")
        play.finish()
        given = (await call.whole()).json["output"]["conversation_id"]
        assert await answer(desk, request("two", number=4, conversation_id=given)) == ["one", "uno", "two"]


@pytest.mark.parametrize("accept", [SSE, NDJSON, JSON])
async def test_an_answer_reports_whether_its_conversation_is_new(autojump_clock: MockClock, accept: str) -> None:
    """An unknown id that the client has chosen begins a conversation, and the answer says so."""
    async with open_desk() as desk:
        for number, (name, state) in enumerate([("a", "new"), ("a", "continued"), ("b", "new"), ("a", "continued")]):
            call = desk.ask(request(number=number, conversation_id=name), accept)
            play = await desk.model.play(number + 1)
            play.say("a")
            play.finish()
            await call.whole()
            assert (call.headers["x-conversation-id"], call.headers["x-conversation"]) == (name, state)
            if accept == JSON:
                assert (call.json["output"]["conversation_id"], call.json["output"]["conversation"]) == (name, state)


@pytest.mark.parametrize("other", [{}, {"user": "u2"}, {"session": "s2"}, {"key": OTHER_KEY}], ids=str)
async def test_an_id_of_the_servers_own_form_must_be_known(autojump_clock: MockClock, other: dict[str, str]) -> None:
    """Unknown, expired or another owner's: a client that sends it means an existing conversation, not an empty one."""
    key = {"key": other.pop("key")} if "key" in other else {}
    async with open_desk() as desk:
        desk.service.new_id = new_id
        call = desk.ask(request(SECRET), JSON)
        play = await desk.model.play()
        play.say("a")
        play.finish()
        given = (await call.whole()).json["output"]["conversation_id"]
        asked = given if other or key else new_id("conv")
        refused = await desk.ask(request(number=1, conversation_id=asked, **other), **key).whole()
        assert refused.error == (404, "conversation_not_found")
        assert await answer(desk, request("two", number=2, conversation_id=given)) == [SECRET, "a", "two"]
        # The example of the protocol's own document looks similar, and is a client's.
        assert await answer(desk, request("hi", number=3, conversation_id="conv_123")) == ["hi"]


async def test_a_conversation_whose_first_turn_failed_can_be_used(autojump_clock: MockClock) -> None:
    """The client has received its id in the headers of the stream."""
    async with open_desk() as desk:
        desk.service.new_id = new_id
        call = desk.ask(request())
        play = await desk.model.play()
        play.say("half")
        play.fail(UpstreamError("Broken."))
        await call.whole()
        again = desk.ask(request("next", number=1, conversation_id=call.headers["x-conversation-id"]), JSON)
        play = await desk.model.play(2)
        play.say("a")
        play.finish()
        assert (await again.whole()).json["output"]["conversation"] == "new"
        assert play.history() == ["next"]


@pytest.mark.parametrize("events", [[], ["tool_call"]], ids=str)
async def test_a_call_is_not_stored_in_its_conversation(autojump_clock: MockClock, events: list[str]) -> None:
    """The next turn cannot send its output, and providers refuse a call without one."""
    async with open_desk() as desk:
        call = desk.ask(request(conversation_id="c", meta={"events": events}), JSON)
        play = await desk.model.play()
        play.say("Let me look.")
        play.tell(ToolCall("fc_1", "call_1", "look", "{}"))
        play.finish()
        assert (await call.whole()).status == 200
        assert await answer(desk, request("next", number=1, conversation_id="c")) == ["Hello", "Let me look.", "next"]
        assert all(isinstance(item, Message) for item in desk.model.plays[1].turn.items)


async def test_a_call_alone_is_an_error(autojump_clock: MockClock) -> None:
    """It is not an empty success; a client that requests calls gets the call."""
    async with open_desk() as desk:
        for number, (events, status) in enumerate([([], 502), (["tool_call"], 200)]):
            call = desk.ask(request(number=number, conversation_id="c", meta={"events": events}), JSON)
            play = await desk.model.play(number + 1)
            play.tell(ToolCall("fc_1", "call_1", "look", "{}"))
            play.finish()
            assert (await call.whole()).status == status, call.body
        assert call.json["output"]["tool_calls"][0]["tool"] == "look"
        assert await answer(desk, request("next", number=2, conversation_id="c")) == ["Hello", "next"]


async def test_a_conversation_can_continue_at_once(autojump_clock: MockClock) -> None:
    """A client that has the close packet may continue: the conversation is neither busy nor missing."""
    async with open_desk() as desk:
        for number in range(1, 20):
            call = desk.ask(request(str(number), number=number, conversation_id="c"))
            play = await desk.model.play(number)
            play.say("a")
            play.finish()
            await call.until('"close"')
            assert len(play.history()) == 2 * number - 1


@pytest.mark.parametrize("other", [{"user": "u2"}, {"session": "s2"}, {"key": OTHER_KEY}], ids=str)
async def test_a_conversation_belongs_to_its_owner(autojump_clock: MockClock, other: dict[str, str]) -> None:
    """The same id names another, empty conversation for others, which looks like an unknown one."""
    key = {"key": other.pop("key")} if "key" in other else {}
    async with open_desk() as desk:
        await answer(desk, request(SECRET, conversation_id="c"), SECRET)
        assert await answer(desk, request("hi", number=1, conversation_id="c", **other), **key) == ["hi"]
        again = await answer(desk, request("you?", number=2, conversation_id="c"))
        assert again == [SECRET, SECRET, "you?"]


@pytest.mark.parametrize("other", [{"user": "u2"}, {"session": "s2"}, {"key": OTHER_KEY}], ids=str)
async def test_in_strict_mode_a_conversation_must_exist(autojump_clock: MockClock, other: dict[str, str]) -> None:
    """Missing conversations and those of others give the same answer."""
    key = {"key": other.pop("key")} if "key" in other else {}
    async with open_desk(options=CapOptions(strict=True)) as desk:
        call = desk.ask(request(SECRET), JSON)
        play = await desk.model.play()
        play.say("a")
        play.finish()
        given = (await call.whole()).json["output"]["conversation_id"]
        foreign = await desk.ask(request(number=1, conversation_id=given, **other), **key).whole()
        unknown = await desk.ask(request(number=1, conversation_id="conv_9999", **other), **key).whole()
        assert foreign.error == unknown.error == (404, "conversation_not_found")
        assert foreign.body == unknown.body
        assert await answer(desk, request("two", number=2, conversation_id=given)) == [SECRET, "a", "two"]
        # A refusal leaves nothing behind.
        assert (await desk.ask(request(number=1, conversation_id="conv_9999")).whole()).status == 404


async def test_one_turn_at_a_time(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        call = desk.ask(request(conversation_id="c"))
        play = await desk.model.play()
        busy = await desk.ask(request(number=1, conversation_id="c")).whole()
        assert busy.error == (409, "turn_busy")
        assert (busy.headers["retry-after"], busy.json["severity"]) == ("1", "transient")
        assert busy.json["details"] == {
            "retry_after": 1,
            "domain": "client",
            "request_id": request(number=1)["request_id"],
            "param": "payload.conversation_id",
        }
        # Others have theirs, and other conversations go on beside it.
        await answer(desk, request(number=2, conversation_id="c", user="u2"))
        await answer(desk, request(number=3, conversation_id="d"))
        play.say("a")
        play.finish()
        await call.whole()
        assert await answer(desk, request("two", number=1, conversation_id="c")) == ["Hello", "a", "two"]


@pytest.mark.parametrize("how", ["fail", "leave", "delete", "refuse"])
async def test_a_conversation_is_free_after_every_end(autojump_clock: MockClock, how: str) -> None:
    async with open_desk() as desk:
        if how == "refuse":
            call = desk.ask(request(conversation_id="c", agent="nobody"))
        else:
            call = desk.ask(request(conversation_id="c"))
            play = await desk.model.play()
            play.say("half")
            await call.until("half")
            if how == "fail":
                play.fail(UpstreamError("Broken."))
            elif how == "leave":
                call.leave()
                await trio.sleep(31)
            else:
                desk.delete()
        await call.whole()
        await wait_all_tasks_blocked()
        heard = await answer(desk, request("next", number=1, conversation_id="c"))
        # What the client ended itself, it has seen.
        assert heard == (["Hello", "half", "next"] if how == "delete" else ["next"])


async def test_without_a_store_there_are_no_conversations(autojump_clock: MockClock) -> None:
    async with open_desk(keeps_responses=False) as desk:
        await answer(desk, request())
        call = await desk.ask(request(number=1, conversation_id="c")).whole()
        assert call.error == (422, "unsupported_parameter")


async def test_a_refused_model_leaves_no_conversation(autojump_clock: MockClock) -> None:
    async with open_desk(options=CapOptions(strict=True)) as desk:
        desk.model.refuses = None
        for number in range(3):
            call = await desk.ask(request(number=number, conversation_id="c", meta={"model": "x"})).whole()
            assert call.error in [(404, "conversation_not_found"), (404, "model_not_found")]
