"""All of it in front of a scripted server: what a client of the bridge would get."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest
import trio
from backends.openai_compatible.rig import CLOCK, WEATHER, called, rigged, thoughts, turn, user
from trio.testing import MockClock
from upstream.answers import KEEPALIVE, Gate, plain_json
from upstream.noting import collect
from upstream.openai_chat import DEFAULT_TEXT, stream
from upstream.openai_chat_chunks import answer, call, completion, reasoning, text

from bridge.app.tool_loop import follow_up
from bridge.core.events import Finished, TextDelta, Usage
from bridge.core.items import FunctionCall, FunctionOutput, Image, Message, Text
from bridge.protocols.chat.presets import PRESETS


async def test_a_text_and_its_usage() -> None:
    async with rigged() as rig:
        rig.server.will(stream(answer(text("hel", "lo"))))
        result = await rig.answered(turn(user("hi"), instructions="be kind"))
        assert (result.text, result.usage) == ("hello", Usage(11, 3, 7, 2))
        assert rig.sent["messages"] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
        assert len(rig.traced) == 5


@pytest.mark.parametrize("form", [{"chunk": 1}, {"line_end": "\r\n", "chunk": 7}, {"gzip": True}], ids=str)
async def test_every_form_of_stream(form: Any) -> None:
    async with rigged() as rig:
        rig.server.will(stream([KEEPALIVE, *answer(text("é", "\u2028", "<&>"))], **form))
        assert (await rig.answered()).text == "é\u2028<&>"


async def test_the_pieces_come_as_they_are_said() -> None:
    gate = Gate()
    chunks = answer(text("one ", "two"))
    async with rigged() as rig:
        rig.server.will(stream([*chunks[:2], gate, *chunks[2:]]))
        running = await rig.start()
        assert await running.next() == [TextDelta("message_1", ["one "])]
        gate.open()
        assert (await collect(running)).text == "two"


async def test_a_call_and_its_output() -> None:
    asked = turn(user("weather?"), tools=(WEATHER,))
    async with rigged() as rig:
        rig.server.will(stream(answer(reasoning("hm"), text("I look."), call("weather", '{"city":', '"Bern"}'))))
        result = await rig.answered(asked)
        assert (thoughts(result), result.text) == ("hm", "I look.")
        assert called(result) == [("weather", '{"city":"Bern"}')]
        assert (await rig.answered(follow_up(asked, result, ["sunny"]))).text == "result: sunny"
        roles = [message["role"] for message in rig.sent["messages"]]
        assert roles == ["user", "assistant", "tool"]
        assert rig.sent["messages"][1]["content"] == "I look."


async def test_calls_at_once_and_their_outputs_in_any_order() -> None:
    async with rigged() as rig:
        rig.server.will(stream(answer(call("weather", "{}"), call("clock"), call("weather", "{}"))))
        calls = (await rig.answered(turn(tools=(WEATHER, CLOCK)))).calls
        assert [each.name for each in calls] == ["weather", "clock", "weather"]
        history = [FunctionCall(each.call_id, each.name, each.arguments) for each in calls]
        outputs = [FunctionOutput(each.call_id, (Text(str(n)),)) for n, each in enumerate(calls)]
        result = await rig.answered(turn(user("go"), *history, *reversed(outputs), tools=(WEATHER, CLOCK)))
        assert result.text == "result: 0; 1; 2"


async def test_images_go_out() -> None:
    picture = Image("data:image/png;base64,AAAA", "high")
    async with rigged() as rig:
        await rig.answered(turn(Message("user", (Text("what is this?"), picture))))
        assert rig.sent["messages"][0]["content"][1] == {
            "type": "image_url",
            "image_url": {"url": picture.url, "detail": "high"},
        }


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")], ids=str
)
async def test_an_incomplete_answer(finish: str, reason: str) -> None:
    async with rigged() as rig:
        rig.server.will(stream(answer(text("a"), finish=finish)))
        result = await rig.ask()
        assert (result.text, result.end) == ("a", Finished("incomplete", reason=reason))
        assert result.usage == Usage(11, 3, 7, 2)


async def test_usage_comes_even_where_the_end_is_not_told() -> None:
    async with rigged() as rig:
        rig.server.will(stream(answer(text("a")), done=False), stream(answer(text("b"), usage=None), done=False))
        assert (await rig.answered()).usage == Usage(11, 3, 7, 2)
        assert (await rig.answered()).usage is None


async def test_done_is_the_end_although_the_connection_stays_open(autojump_clock: MockClock) -> None:
    gate = Gate()
    async with rigged() as rig:
        rig.server.will(stream([*answer(call("weather", "{}")), b"data: [DONE]\n\n", gate], done=False))
        begun = trio.current_time()
        assert called(await rig.answered()) == [("weather", "{}")]
        assert trio.current_time() - begun < 1
        gate.open()


async def test_an_answer_that_is_not_streamed() -> None:
    whole = completion(answer(reasoning("hm"), text("a"), call("weather", "{}")))
    async with rigged() as rig:
        rig.server.will(plain_json(200, whole))
        result = await rig.answered(turn(tools=(WEATHER,)))
        assert (thoughts(result), result.text, called(result)) == ("hm", "a", [("weather", "{}")])
        assert result.usage == Usage(11, 3, 7, 2)


async def test_the_clients_own_key_is_used_for_its_turn_alone() -> None:
    async with rigged(key="sk-canary-wrong") as rig:
        assert rig.server.key is not None
        assert (await rig.answered(turn(provider_key=rig.server.key))).text == DEFAULT_TEXT
        error, _ = await rig.failed()
        assert error.code == "upstream_unauthorized"
        assert rig.statuses == [200, 401]


async def test_a_server_that_needs_no_key_gets_none() -> None:
    async with rigged(PRESETS["ollama"], key=None) as rig:
        rig.server.key = None
        assert (await rig.answered()).text == DEFAULT_TEXT
        assert "authorization" not in rig.server.requests[0].headers


async def test_many_at_once() -> None:
    async with rigged() as rig:
        rig.server.will(*(stream(answer(text(str(n)))) for n in range(30)))
        said: list[str] = []

        async def one() -> None:
            said.append((await rig.answered()).text)

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(one)
        assert sorted(said, key=int) == [str(n) for n in range(30)]


@pytest.mark.parametrize("after", [0, 2], ids=["before the first chunk", "in the middle"])
async def test_leaving_closes_the_connection_at_once(after: int) -> None:
    gate = Gate()
    async with rigged() as rig:
        chunks = answer(text("a", "b"))
        rig.server.will(stream([*chunks[:after], gate, *chunks[after:]]))
        running = await rig.start()
        await rig.server.until(lambda: gate.held)
        if after:
            await running.next()
        left = monotonic()
        running.close()
        await rig.server.until(lambda: rig.server.gone)
        assert rig.server.requests[0].left_at is not None
        assert rig.server.requests[0].left_at - left < 5


async def test_the_backend_tells_what_it_leaves_out() -> None:
    async with rigged(PRESETS["lmstudio"]) as rig:
        assert await rig.backend.drops(turn(effort="high", verbosity="low")) == ["reasoning.effort", "text.verbosity"]
