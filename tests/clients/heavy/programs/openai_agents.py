"""The OpenAI Agents SDK, with its two models."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    ItemHelpers,
    MessageOutputItem,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    ReasoningItem,
    Runner,
    RunResult,
    RunResultStreaming,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from programs.shared import FUNCTIONS, MODEL, City, Reply, serve

set_tracing_disabled(True)
CLIENT = AsyncOpenAI(max_retries=0)  # base URL and key from the environment
MODELS: dict[str, Model] = {
    "responses": OpenAIResponsesModel(MODEL, CLIENT),
    "chat": OpenAIChatCompletionsModel(MODEL, CLIENT),
}


def agent(api: str, **settings: Any) -> Agent:
    return Agent(
        "tester",
        model=MODELS[api],
        instructions="You are a tester.",
        model_settings=ModelSettings(include_usage=True),
        **settings,
    )


def report(result: RunResult | RunResultStreaming) -> Reply:
    usage = result.context_wrapper.usage
    items = result.new_items
    return {
        "text": result.final_output,
        "texts": [ItemHelpers.text_message_output(item) for item in items if isinstance(item, MessageOutputItem)],
        "reasoning": "".join(
            part.text for item in items if isinstance(item, ReasoningItem) for part in item.raw_item.summary
        ),
        "usage": [
            usage.input_tokens,
            usage.input_tokens_details.cached_tokens,
            usage.output_tokens,
            usage.output_tokens_details.reasoning_tokens,
        ],
    }


async def plain(api: str, prompt: str) -> Reply:
    return report(await Runner.run(agent(api), prompt))


async def streamed(api: str, prompt: str) -> Reply:
    result = Runner.run_streamed(agent(api), prompt)
    pieces = [piece async for piece in deltas(result)]
    return report(result) | {"pieces": pieces}


async def deltas(result: Any) -> Any:
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            yield event.data.delta


async def tools(api: str, prompt: str) -> Reply:
    return report(await Runner.run(with_tools(api), prompt))


async def streamed_tools(api: str, prompt: str) -> Reply:
    result = Runner.run_streamed(with_tools(api), prompt)
    async for _ in result.stream_events():
        pass
    return report(result)


def with_tools(api: str) -> Agent:
    return agent(api, tools=[function_tool(function) for function in FUNCTIONS])


async def structured(api: str, prompt: str) -> Reply:
    result = await Runner.run(agent(api, output_type=City), prompt)
    return {"object": result.final_output_as(City).model_dump()}


async def history(api: str, prompts: list[str]) -> Reply:
    session = SQLiteSession("history")  # in memory
    for prompt in prompts:
        result = await Runner.run(agent(api), prompt, session=session)
    await session.clear_session()
    return report(result)


async def concurrent(api: str, prompts: list[str]) -> Reply:
    results = await asyncio.gather(*(Runner.run(agent(api), prompt) for prompt in prompts))
    return {"texts": [result.final_output for result in results]}


async def cancel(api: str, prompt: str) -> Reply:
    result = Runner.run_streamed(agent(api), prompt)
    pieces = []
    async for piece in deltas(result):
        pieces.append(piece)
        result.cancel()
    return {"pieces": pieces}


serve(plain, streamed, tools, streamed_tools, structured, history, concurrent, cancel)
