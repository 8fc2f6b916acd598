"""litellm as a client: responses() and completion(), with a custom base and the prefix openai/."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # else it fetches a price list from the network

import litellm
from programs.shared import API_KEY, BASE_URL, FUNCTIONS, MODEL, City, Reply, serve

litellm.suppress_debug_info = True
ASKED = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY, "max_retries": 0}
SYSTEM = {"role": "system", "content": "You are a tester."}
EXECUTABLE = {function.__name__: function for function in FUNCTIONS}
SCHEMAS: dict[str, Any] = {
    "look": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
    "clock": {"type": "object", "properties": {}},
}


def execute(name: str, arguments: str) -> str:
    return EXECUTABLE[name](**json.loads(arguments))


class Responses:
    """responses(): a conversation is a list of items."""

    tools = tuple({"type": "function", "name": name, "parameters": SCHEMAS[name]} for name in SCHEMAS)

    def ask(self, conversation: list[Any], **more: Any) -> Any:
        return litellm.responses(input=conversation, **ASKED, **more)

    async def ask_async(self, conversation: list[Any], **more: Any) -> Any:
        return await litellm.aresponses(input=conversation, **ASKED, **more)

    def ask_for_city(self, conversation: list[Any]) -> Any:
        return self.ask(conversation, text_format=City)

    def piece(self, event: Any) -> str:
        return event.delta if event.type == "response.output_text.delta" else ""

    def whole(self, events: list[Any]) -> Any:
        (response,) = [event.response for event in events if event.type == "response.completed"]
        return response

    def report(self, response: Any) -> Reply:
        usage, output = response.usage, response.output
        return {
            "text": "".join(part.text for item in output if item.type == "message" for part in item.content),
            "reasoning": "".join(part.text for item in output if item.type == "reasoning" for part in item.summary),
            "usage": [
                usage.input_tokens,
                usage.input_tokens_details.cached_tokens,
                usage.output_tokens,
                usage.output_tokens_details.reasoning_tokens,
            ],
        }

    def items(self, response: Any) -> list[Any]:
        return [item.model_dump() for item in response.output]

    def outputs(self, response: Any) -> list[Any]:
        return [
            {"type": "function_call_output", "call_id": item.call_id, "output": execute(item.name, item.arguments)}
            for item in response.output
            if item.type == "function_call"
        ]


class Chat:
    """completion(): a conversation is a list of messages."""

    tools = tuple({"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}} for name in SCHEMAS)

    def ask(self, conversation: list[Any], **more: Any) -> Any:
        if more.get("stream"):
            more["stream_options"] = {"include_usage": True}
        return litellm.completion(messages=conversation, **ASKED, **more)

    async def ask_async(self, conversation: list[Any], **more: Any) -> Any:
        return await litellm.acompletion(messages=conversation, **ASKED, **more)

    def ask_for_city(self, conversation: list[Any]) -> Any:
        return self.ask(conversation, response_format=City)

    def piece(self, chunk: Any) -> str:
        return chunk.choices[0].delta.content or ""

    def whole(self, chunks: list[Any]) -> Any:
        return litellm.stream_chunk_builder(chunks)

    def report(self, completion: Any) -> Reply:
        usage, message = completion.usage, completion.choices[0].message
        return {
            "text": message.content or "",
            "reasoning": getattr(message, "reasoning_content", None) or "",
            "usage": [
                usage.prompt_tokens,
                usage.prompt_tokens_details.cached_tokens,
                usage.completion_tokens,
                usage.completion_tokens_details.reasoning_tokens,
            ],
        }

    def items(self, completion: Any) -> list[Any]:
        return [completion.choices[0].message.model_dump()]

    def outputs(self, completion: Any) -> list[Any]:
        return [
            {"role": "tool", "tool_call_id": call.id, "content": execute(call.function.name, call.function.arguments)}
            for call in completion.choices[0].message.tool_calls or ()
        ]


APIS: dict[str, Responses | Chat] = {"responses": Responses(), "chat": Chat()}


def plain(api: str, prompt: str) -> Reply:
    return APIS[api].report(APIS[api].ask(messages(prompt)))


def messages(prompt: str) -> list[Any]:
    return [SYSTEM, {"role": "user", "content": prompt}]


def streamed(api: str, prompt: str) -> Reply:
    chosen = APIS[api]
    events = list(chosen.ask(messages(prompt), stream=True))
    pieces = [piece for event in events if (piece := chosen.piece(event))]
    return chosen.report(chosen.whole(events)) | {"pieces": pieces}


def tools(api: str, prompt: str) -> Reply:
    chosen = APIS[api]
    return loop(chosen, prompt, lambda said: chosen.ask(said, tools=list(chosen.tools)))


def streamed_tools(api: str, prompt: str) -> Reply:
    chosen = APIS[api]
    return loop(
        chosen, prompt, lambda said: chosen.whole(list(chosen.ask(said, tools=list(chosen.tools), stream=True)))
    )


def loop(chosen: Responses | Chat, prompt: str, ask: Any) -> Reply:
    conversation, texts = messages(prompt), []
    while True:
        answer = ask(conversation)
        report = chosen.report(answer)
        texts.append(report["text"])
        outputs = chosen.outputs(answer)
        if not outputs:
            return report | {"texts": texts}
        conversation += chosen.items(answer) + outputs


def structured(api: str, prompt: str) -> Reply:
    text = APIS[api].report(APIS[api].ask_for_city(messages(prompt)))["text"]
    return {"object": City.model_validate_json(text).model_dump()}


def history(api: str, prompts: list[str]) -> Reply:
    chosen, conversation = APIS[api], [SYSTEM]
    for prompt in prompts:
        conversation.append({"role": "user", "content": prompt})
        answer = chosen.ask(conversation)
        conversation += chosen.items(answer)
    return chosen.report(answer)


async def concurrent(api: str, prompts: list[str]) -> Reply:
    answers = await asyncio.gather(*(APIS[api].ask_async(messages(prompt)) for prompt in prompts))
    return {"texts": [APIS[api].report(answer)["text"] for answer in answers]}


async def cancel(api: str, prompt: str) -> Reply:
    """The task that reads a stream is cancelled: not every stream here has a way to close it."""
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        async for event in await APIS[api].ask_async(messages(prompt), stream=True):
            if (piece := APIS[api].piece(event)) and not first.done():
                first.set_result(piece)

    reader = asyncio.create_task(read())
    pieces = [await first]
    reader.cancel()
    await asyncio.wait([reader])
    return {"pieces": pieces}


serve(plain, streamed, tools, streamed_tools, structured, history, concurrent, cancel)
