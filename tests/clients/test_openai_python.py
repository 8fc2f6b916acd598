"""The official Python client, both APIs, synchronous and not, against a bridge over the real Codex.

What the mock models can show is in test_openai_client.py; here a model thinks, calls, fails and waits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import trio
from clients.openai_apis import MODEL, Api, Chat, Responses, user
from harness import KEY
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from real.provider import USAGE, Json
from real.rig import Rig, said

ODD = "quote \" and ' and back\\slash\nline\ttab 😀 \u2028 {curly} <b>"


class City(BaseModel):
    """A city."""

    name: str
    people: int
    districts: list[str]


BERN = City(name='Bern "Bärn" 🐻', people=137_000, districts=["Mattenhof", "Länggasse\n"])


class Look(BaseModel):
    """Look something up."""

    q: str


class Clock(BaseModel):
    """Tell the time."""


@pytest.fixture
def client(rig: Rig) -> Iterator[OpenAI]:
    with OpenAI(
        api_key=KEY,
        base_url=rig.bridge.url,
        max_retries=0,
        timeout=30,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as client:
        yield client


def connect_async(rig: Rig) -> AsyncOpenAI:
    return AsyncOpenAI(
        api_key=KEY,
        base_url=rig.bridge.url,
        max_retries=0,
        timeout=30,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


@pytest.fixture(params=[Responses(), Chat()], ids=["responses", "chat"])
def api(request: pytest.FixtureRequest) -> Api:
    chosen: Api = request.param
    return chosen


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streamed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# Texts


def test_text(rig: Rig, client: OpenAI, api: Api, streamed: bool) -> None:
    """The text arrives whole, with the tokens that it cost, for one model call."""
    got = api.ask(client, user(said({"do": "text", "pieces": ["Grüße, ", "<b> \\ ", "世界 🌍\n"]})), streamed)
    assert (got.text, got.reasoning, got.calls) == ("Grüße, <b> \\ 世界 🌍\n", "", [])
    assert got.usage == tuple(USAGE.values())
    assert len(rig.posts) == 1


def test_pieces(client: OpenAI, api: Api) -> None:
    """A stream has the model's own pieces."""
    pieces = ["One", " two", " \n", "🌍", " three"]
    stream = api.create(client, said({"do": "text", "pieces": pieces}), stream=True)
    assert [piece for event in stream if (piece := api.piece(event))] == pieces


def test_the_events_of_a_response_stream(client: OpenAI) -> None:
    """The helper's events: snapshots grow, and the last one has the parsed object."""
    action = {"do": "text", "pieces": [BERN.model_dump_json()], "chunk": 20}
    with client.responses.stream(model=MODEL, input=said(action), text_format=City) as stream:
        events = list(stream)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [len(event.snapshot) for event in deltas][:2] == [20, 40]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert done.parsed == BERN
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_parsed == BERN


def test_the_events_of_a_chat_stream(client: OpenAI) -> None:
    """The helper's events: content and the arguments of a call, both as deltas and done."""
    action = {"do": "calls", "pieces": ["Let me see. "], "calls": [{"name": "Look", "arguments": '{"q":"Bern"}'}]}
    tools = Chat().tools(Look)
    with client.chat.completions.stream(model=MODEL, messages=user(said(action)), tools=tools) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "content.delta").strip() == "Let me see."
    arguments = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(arguments) == '{"q":"Bern"}'
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert (done.name, done.index, done.parsed_arguments) == ("Look", 0, Look(q="Bern"))


def test_reasoning(client: OpenAI, api: Api, streamed: bool) -> None:
    """Thoughts are an item of a response, and `reasoning_content` of a message."""
    action = {"do": "reasoning", "summary": ["I think", "therefore"], "pieces": ["42"], "chunk": 3}
    got = api.ask(client, user(said(action)), streamed)
    assert (got.text, got.reasoning) == ("42", "I think\n\ntherefore")


def test_history(client: OpenAI, api: Api, streamed: bool) -> None:
    """In the second turn the model is sent all of the first one, its instructions too, in order."""
    first, second = "one " + said({"do": "text", "pieces": ["I said: é"]}), "two " + said({"do": "recall"})
    conversation = [{"role": "system", "content": "Be kind."}, *user(first)]
    conversation += [*api.ask(client, conversation, streamed).items, *user(second)]
    assert json.loads(api.ask(client, conversation, streamed).text) == [
        ["developer", "Be kind."],
        ["user", first],
        ["assistant", "I said: é"],
        ["user", second],
    ]


def test_an_answer_that_is_cut_short(client: OpenAI) -> None:
    """The model's limit is an incomplete response, and the helper of chat raises its own error for it."""
    prompt = said({"do": "incomplete", "pieces": ["cut"]})
    response = client.responses.create(model=MODEL, input=prompt)
    assert (response.status, response.output_text) == ("incomplete", "cut")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=MODEL, messages=user(prompt))


# Objects


def test_an_object(rig: Rig, client: OpenAI, api: Api, streamed: bool) -> None:
    """The client gets its pydantic object, and the model is asked for it by the strict schema."""
    action = {"do": "text", "pieces": [BERN.model_dump_json()], "chunk": 5}
    assert api.ask(client, user(said(action)), streamed, **api.asking_for(City)).parsed == BERN
    (post,) = rig.posts
    asked = post.body["text"]["format"]
    assert (asked["type"], asked["strict"]) == ("json_schema", True)
    assert asked["schema"]["required"] == ["name", "people", "districts"]


def test_an_object_by_the_beta_name(client: OpenAI) -> None:
    """Where the helper was before."""
    action = {"do": "text", "pieces": [BERN.model_dump_json()]}
    completion = client.beta.chat.completions.parse(model=MODEL, messages=user(said(action)), response_format=City)
    assert completion.choices[0].message.parsed == BERN


# Calls

LOOPS = {
    "one call": ([("Look", {"q": "Bern"})], ["sunny"]),
    "parallel calls": (
        [("Look", {"q": "Bern"}), ("Clock", {}), ("Look", {"q": "Genève"})],
        ["sunny", "noon", "cloudy"],
    ),
    "odd characters": ([("Look", {"q": ODD})], [ODD]),
    "no arguments": ([("Clock", {})], ["noon"]),
}


@pytest.mark.parametrize(("calls", "outputs"), LOOPS.values(), ids=LOOPS.keys())
def test_a_tool_loop(
    rig: Rig, client: OpenAI, api: Api, streamed: bool, calls: list[tuple[str, Json]], outputs: list[str]
) -> None:
    """The calls come with their arguments byte for byte, and the model is sent the outputs under the same ids."""
    wanted = [{"name": name, "arguments": json.dumps(given, ensure_ascii=False)} for name, given in calls]
    # Cut small, so that tags, escapes and characters are put together from pieces.
    conversation = user(said({"do": "calls", "calls": wanted, "chunk": 5}))
    first = api.ask(client, conversation, streamed, tools=api.tools(Look, Clock))
    assert [api.arguments(call) for call in first.calls] == [(call["name"], call["arguments"]) for call in wanted]
    conversation += first.items
    conversation += [api.output(call, text) for call, text in zip(first.calls, outputs, strict=True)]
    second = api.ask(client, conversation, streamed, tools=api.tools(Look, Clock))
    assert (second.text, second.calls) == ("result: " + "; ".join(outputs), [])
    sent = [item for item in rig.posts[-1].body["input"] if item["type"].startswith("function_call")]
    ids = [item["call_id"] for item in sent]
    assert ids[: len(calls)] == ids[len(calls) :]
    assert len(set(ids)) == len(calls)


def test_text_and_a_call_in_one_answer(client: OpenAI, api: Api, streamed: bool) -> None:
    """Both are there."""
    action = {"do": "calls", "pieces": ["Let me see. "], "calls": [{"name": "Clock", "arguments": "{}"}]}
    got = api.ask(client, user(said(action)), streamed, tools=api.tools(Clock))
    assert got.text.strip() == "Let me see."
    assert [api.arguments(call) for call in got.calls] == [("Clock", "{}")]


def test_parsed_arguments(client: OpenAI, streamed: bool) -> None:
    """The helpers make pydantic objects of the arguments."""
    prompt = user(said({"do": "calls", "calls": [{"name": "Look", "arguments": json.dumps({"q": ODD})}]}))
    (call,) = Chat().ask(client, prompt, streamed, tools=Chat().tools(Look)).calls
    assert call.function.parsed_arguments == Look(q=ODD)
    (item,) = Responses().ask(client, prompt, streamed, tools=Responses().tools(Look)).calls
    assert item.parsed_arguments == {"q": ODD}


# Many at once, and those who leave


def test_eight_at_once(rig: Rig, client: OpenAI, api: Api, streamed: bool) -> None:
    """Requests of several threads that are answered at the same time: each gets its own answer."""
    texts = [f"answer {number} " * 10 for number in range(8)]
    rig.provider.crowd = len(rig.provider.requests) + len(texts)

    def ask(text: str) -> str:
        return api.ask(client, user(said({"do": "text", "pieces": [text], "chunk": 9})), streamed).text

    with ThreadPoolExecutor(len(texts)) as pool:
        assert list(pool.map(ask, texts)) == texts


def test_a_stream_that_is_closed(rig: Rig, client: OpenAI, api: Api) -> None:
    """Leaving a stream ends the model call."""
    gone = len(rig.provider.gone)
    with api.create(client, said({"do": "slow", "n": 60, "seconds": 30}), stream=True) as stream:
        assert next(piece for event in stream if (piece := api.piece(event))) == "word0 "
    rig.provider.wait_gone(gone + 1)


def test_a_client_that_waits_no_longer(rig: Rig, client: OpenAI, api: Api) -> None:
    """The client's timeout is its own error, and ends the model call, which has begun by then."""
    gone = len(rig.provider.gone)
    with pytest.raises(openai.APITimeoutError):
        api.create(client.with_options(timeout=4), said({"do": "hang"}))
    rig.provider.wait_gone(gone + 1)


# Errors


def test_a_rate_limit(client: OpenAI, api: Api, streamed: bool) -> None:
    """A provider's 429 is the client's RateLimitError, before a stream begins too."""
    with pytest.raises(openai.RateLimitError) as caught:
        api.create(client, said({"do": "error", "status": 429, "message": "slow down"}), stream=streamed)
    assert (caught.value.status_code, caught.value.code) == (429, "rate_limit_exceeded")


def test_a_retry_by_the_client(rig: Rig, client: OpenAI, api: Api) -> None:
    """What the client may retry, it retries, and then it is answered."""
    # The provider counts by the whole script, so each API has its own.
    action = {"do": "error", "status": 503, "times": 1, "message": f"try again with {type(api).__name__}"}
    answer = api.create(client.with_options(max_retries=1), said(action))
    assert "recovered" in answer.model_dump_json()
    assert len(rig.posts) == 2


@pytest.mark.parametrize(
    ("status", "code"),
    [(402, None), (404, "model_not_found"), (413, None), (429, "insufficient_quota")],
    ids=["payment", "model", "size", "quota"],
)
def test_what_will_fail_again_is_not_retried(rig: Rig, client: OpenAI, api: Api, status: int, code: str | None) -> None:
    """The client gives up at once, although it may retry, and the provider is asked once."""
    action = {"do": "error", "status": status, "message": "no such model"} | ({"code": code} if code else {})
    with pytest.raises(openai.APIStatusError):
        api.create(client.with_options(max_retries=2), said(action))
    assert len(rig.posts) == 1


# Around an answer


def test_headers(client: OpenAI) -> None:
    """The raw answer has a request id, and names what Codex cannot do."""
    raw = client.responses.with_raw_response.create(model=MODEL, input=said({"do": "text"}), temperature=0.5)
    assert raw.headers["x-bridge-dropped"] == "temperature"
    assert raw.parse()._request_id == raw.headers["x-request-id"]
    chat = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=user(said({"do": "text"})), temperature=0.5
    )
    assert chat.headers["x-bridge-dropped"] == "temperature"


def test_models(client: OpenAI) -> None:
    """What is listed can be retrieved; the configured names are there beside Codex's own."""
    listed = [model.id for model in client.models.list()]
    assert {"gpt-6.1-sol", "guest-model"} <= set(listed)
    assert client.models.retrieve("gpt-6.1-sol").id == "gpt-6.1-sol"
    # A provider of Codex's config.toml takes any name, so there is none that is not found.
    assert client.models.retrieve("no-such-model").id == "no-such-model"


# The asynchronous client. On asyncio, as most use it: at the end of a chat stream it leaves generators to the garbage
# collector, of which trio warns.


def on_asyncio(rig: Rig, ask: Callable[[AsyncOpenAI], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connect_async(rig) as client:
            await ask(client)

    asyncio.run(run())


def test_async_text(rig: Rig, api: Api) -> None:
    """Whole and streamed."""
    prompt = said({"do": "text", "pieces": ["a", "b"]})

    async def ask(client: AsyncOpenAI) -> None:
        assert '"ab"' in (await api.create(client, prompt)).model_dump_json()
        stream = await api.create(client, prompt, stream=True)
        assert [piece async for event in stream if (piece := api.piece(event))] == ["a", "b"]

    on_asyncio(rig, ask)


def test_async_helpers(rig: Rig) -> None:
    """`stream()` and `parse()` of both APIs."""
    prompt = said({"do": "text", "pieces": [BERN.model_dump_json()], "chunk": 9})

    async def ask(client: AsyncOpenAI) -> None:
        async with client.responses.stream(model=MODEL, input=prompt, text_format=City) as stream:
            assert (await stream.get_final_response()).output_parsed == BERN
        response = await client.responses.parse(model=MODEL, input=prompt, text_format=City)
        assert response.output_parsed == BERN
        chat = client.chat.completions
        async with chat.stream(model=MODEL, messages=user(prompt), response_format=City) as chunks:
            assert (await chunks.get_final_completion()).choices[0].message.parsed == BERN
        completion = await chat.parse(model=MODEL, messages=user(prompt), response_format=City)
        assert completion.choices[0].message.parsed == BERN

    on_asyncio(rig, ask)


def test_async_eight_at_once(rig: Rig, api: Api) -> None:
    """Streams that run at the same time in one client: each gets its own answer."""
    texts = [f"answer {number} " * 10 for number in range(8)]
    rig.provider.crowd = len(rig.provider.requests) + len(texts)

    async def ask(client: AsyncOpenAI) -> None:
        async def ask_for(text: str) -> str:
            action = {"do": "text", "pieces": [text], "chunk": 9}
            stream = await api.create(client, said(action), stream=True)
            return "".join([api.piece(event) async for event in stream])

        assert await asyncio.gather(*map(ask_for, texts)) == texts

    on_asyncio(rig, ask)


@pytest.mark.parametrize("begun", [True, False], ids=["in a stream", "before an answer"])
async def test_async_cancel(rig: Rig, api: Api, begun: bool) -> None:
    """On trio: a cancelled request ends the model call, wherever it is."""
    gone, asked = len(rig.provider.gone), len(rig.provider.requests)
    action = {"do": "slow", "n": 60, "seconds": 30} if begun else {"do": "hang"}

    async def ask(client: AsyncOpenAI, until: trio.CancelScope) -> None:
        with until:
            stream = await api.create(client, said(action), stream=begun)
            async for event in stream:
                if api.piece(event):
                    until.cancel()

    async with connect_async(rig) as client, trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(ask, client, scope)
        await trio.to_thread.run_sync(rig.provider.wait_requests, asked + 1)
        if not begun:
            scope.cancel()
    await trio.to_thread.run_sync(rig.provider.wait_gone, gone + 1)
