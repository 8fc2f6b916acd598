"""pydantic-ai, with its two OpenAI models."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI
from programs.shared import FUNCTIONS, MODEL, City, Reply, serve
from pydantic_ai import Agent, AgentRunResult, NativeOutput, ToolOutput
from pydantic_ai.messages import ModelMessage, ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.run import AgentRunResultEvent

PROVIDER = OpenAIProvider(openai_client=AsyncOpenAI(max_retries=0))  # base URL and key from the environment
MODELS: dict[str, Model] = {
    "responses": OpenAIResponsesModel(MODEL, provider=PROVIDER),
    "chat": OpenAIChatModel(MODEL, provider=PROVIDER),
}


def agent(api: str, **settings: Any) -> Agent[None, Any]:
    return Agent(MODELS[api], instructions="You are a tester.", **settings)


def report(result: AgentRunResult[str]) -> Reply:
    answers = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    usage = result.usage
    return {
        "text": result.output,
        "texts": [answer.text for answer in answers],
        "reasoning": answers[-1].thinking,
        "usage": [
            usage.input_tokens,
            usage.cache_read_tokens,
            usage.output_tokens,
            usage.details["reasoning_tokens"],
        ],
    }


async def plain(api: str, prompt: str) -> Reply:
    return report(await agent(api).run(prompt))


async def streamed(api: str, prompt: str) -> Reply:
    return await follow(agent(api), prompt)


async def follow(asked: Agent[None, Any], prompt: str) -> Reply:
    pieces: list[str] = []
    async with asked.run_stream_events(prompt) as events:
        async for event in events:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=piece))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=piece))
                ):
                    pieces.append(piece)
                case AgentRunResultEvent(result=result):
                    return report(result) | {"pieces": pieces}
    raise AssertionError("the stream ended without a result")


async def tools(api: str, prompt: str) -> Reply:
    return report(await agent(api, tools=FUNCTIONS).run(prompt))


async def streamed_tools(api: str, prompt: str) -> Reply:
    return await follow(agent(api, tools=FUNCTIONS), prompt)


async def structured(api: str, prompt: str) -> Reply:
    return {"object": (await agent(api, output_type=NativeOutput(City)).run(prompt)).output.model_dump()}


async def structured_by_tool(api: str, prompt: str) -> Reply:
    return {"object": (await agent(api, output_type=ToolOutput(City, name="City")).run(prompt)).output.model_dump()}


async def history(api: str, prompts: list[str]) -> Reply:
    said: list[ModelMessage] = []
    for prompt in prompts:
        result = await agent(api).run(prompt, message_history=said)
        said = result.all_messages()
    return report(result)


async def concurrent(api: str, prompts: list[str]) -> Reply:
    results = await asyncio.gather(*(agent(api).run(prompt) for prompt in prompts))
    return {"texts": [result.output for result in results]}


async def cancel(api: str, prompt: str) -> Reply:
    async with agent(api).run_stream(prompt) as result:
        async for piece in result.stream_text(delta=True):
            return {"pieces": [piece]}
    raise AssertionError("the stream ended without a piece")


serve(plain, streamed, tools, streamed_tools, structured, structured_by_tool, history, concurrent, cancel)
