"""google-genai: Google's own SDK over the Gemini API, with its automatic function calling and a loop of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from google import genai
from google.genai import errors, types
from programs import shared
from programs.shared import API_KEY, BASE_URL, FUNCTIONS, MODEL, City, Reply, serve

OPTIONS = types.HttpOptions(base_url=BASE_URL.removesuffix("/v1"), retry_options=types.HttpRetryOptions(attempts=1))
CLIENT = genai.Client(api_key=API_KEY, http_options=OPTIONS)
BY_NAME = {function.__name__: function for function in FUNCTIONS}
THINKING = types.ThinkingConfig(include_thoughts=True)


def _status(error: Exception) -> int | None:
    return error.code if isinstance(error, errors.APIError) else None


shared._status = _status


def config(**options: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(
        system_instruction="You are a tester.",
        thinking_config=THINKING,
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        **options,
    )


def report(parts: Sequence[types.Part], usage: types.GenerateContentResponseUsageMetadata | None) -> Reply:
    assert usage is not None
    thoughts = usage.thoughts_token_count or 0
    return {
        "text": "".join(part.text or "" for part in parts if not part.thought),
        "reasoning": "".join(part.text or "" for part in parts if part.thought),
        "usage": [
            usage.prompt_token_count,
            usage.cached_content_token_count,
            (usage.candidates_token_count or 0) + thoughts,
            thoughts,
        ],
    }


def parts_of(answer: types.GenerateContentResponse) -> list[types.Part]:
    assert answer.candidates
    content = answer.candidates[0].content
    return list(content.parts or ()) if content is not None else []


def plain(api: str, prompt: str) -> Reply:
    answer = CLIENT.models.generate_content(model=MODEL, contents=prompt, config=config())
    return report(parts_of(answer), answer.usage_metadata)


def streamed(api: str, prompt: str) -> Reply:
    chunks = list(CLIENT.models.generate_content_stream(model=MODEL, contents=prompt, config=config()))
    parts = [part for chunk in chunks for part in parts_of(chunk)]
    pieces = [part.text for part in parts if part.text and not part.thought]
    return report(parts, chunks[-1].usage_metadata) | {"pieces": pieces}


def tools(api: str, prompt: str) -> Reply:
    def ask(contents: list[Any]) -> tuple[list[types.Part], Any]:
        answer = CLIENT.models.generate_content(model=MODEL, contents=contents, config=config(tools=FUNCTIONS))
        return parts_of(answer), answer.usage_metadata

    return loop(prompt, ask)


def streamed_tools(api: str, prompt: str) -> Reply:
    def ask(contents: list[Any]) -> tuple[list[types.Part], Any]:
        options = config(tools=FUNCTIONS)
        chunks = list(CLIENT.models.generate_content_stream(model=MODEL, contents=contents, config=options))
        return [part for chunk in chunks for part in parts_of(chunk)], chunks[-1].usage_metadata

    return loop(prompt, ask)


def loop(prompt: str, ask: Any) -> Reply:
    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=prompt)])]
    texts = []
    while True:
        parts, usage = ask(contents)
        found = report(parts, usage)
        texts.append(found["text"])
        calls = [part.function_call for part in parts if part.function_call]
        if not calls:
            return found | {"texts": texts}
        contents.append(types.Content(role="model", parts=parts))
        answers = []
        for call in calls:
            response = types.FunctionResponse(
                id=call.id, name=call.name, response={"output": BY_NAME[call.name](**call.args)}
            )
            answers.append(types.Part(function_response=response))
        contents.append(types.Content(role="user", parts=answers))


def automatic(api: str, prompt: str) -> Reply:
    """The SDK's own loop: it calls the functions by itself."""
    options = types.GenerateContentConfig(tools=list(FUNCTIONS))
    answer = CLIENT.models.generate_content(model=MODEL, contents=prompt, config=options)
    return report(parts_of(answer), answer.usage_metadata)


def structured(api: str, prompt: str) -> Reply:
    options = config(response_mime_type="application/json", response_schema=City)
    answer = CLIENT.models.generate_content(model=MODEL, contents=prompt, config=options)
    assert isinstance(answer.parsed, City)
    return {"object": answer.parsed.model_dump()}


def history(api: str, prompts: list[str]) -> Reply:
    chat = CLIENT.chats.create(model=MODEL, config=config())
    for prompt in prompts:
        answer = chat.send_message(prompt)
    return report(parts_of(answer), answer.usage_metadata)


async def concurrent(api: str, prompts: list[str]) -> Reply:
    asked = [CLIENT.aio.models.generate_content(model=MODEL, contents=prompt) for prompt in prompts]
    return {"texts": [answer.text for answer in await asyncio.gather(*asked)]}


async def cancel(api: str, prompt: str) -> Reply:
    # The end of a stream leaves its connection open: only a client that is closed ends it.
    async with genai.Client(api_key=API_KEY, http_options=OPTIONS).aio as client:
        async for chunk in await client.models.generate_content_stream(model=MODEL, contents=prompt):
            if chunk.text:
                return {"pieces": [chunk.text]}
    raise AssertionError("no text")


serve(plain, streamed, tools, streamed_tools, automatic, structured, history, concurrent, cancel)
