"""langchain-openai: ChatOpenAI over either API, with a loop over tools as its documentation writes one."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from programs.shared import FUNCTIONS, MODEL, City, Reply, serve

TOOLS = {function.__name__: tool(function) for function in FUNCTIONS}
MODELS = {
    "responses": ChatOpenAI(model=MODEL, max_retries=0, use_responses_api=True),
    "chat": ChatOpenAI(model=MODEL, max_retries=0, use_responses_api=False, stream_usage=True),
}


def report(message: AIMessage) -> Reply:
    blocks = message.content_blocks
    return {
        "text": message.text,
        "reasoning": "".join(block.get("reasoning", "") for block in blocks if block["type"] == "reasoning"),
        "usage": usage_of(message),
    }


def usage_of(message: AIMessage) -> list[int]:
    usage = message.usage_metadata
    assert usage is not None
    return [
        usage["input_tokens"],
        usage["input_token_details"]["cache_read"],
        usage["output_tokens"],
        usage["output_token_details"]["reasoning"],
    ]


def messages(prompt: str) -> list[BaseMessage]:
    return [SystemMessage("You are a tester."), HumanMessage(prompt)]


def plain(api: str, prompt: str) -> Reply:
    return report(MODELS[api].invoke(messages(prompt)))


def streamed(api: str, prompt: str) -> Reply:
    chunks = list(MODELS[api].stream(messages(prompt)))
    return report(added(chunks)) | {"pieces": [chunk.text for chunk in chunks if chunk.text]}


def added(chunks: list[Any]) -> AIMessageChunk:
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


def tools(api: str, prompt: str) -> Reply:
    return loop(prompt, MODELS[api].bind_tools(TOOLS.values()).invoke)


def streamed_tools(api: str, prompt: str) -> Reply:
    model = MODELS[api].bind_tools(TOOLS.values())
    return loop(prompt, lambda conversation: added(list(model.stream(conversation))))


def loop(prompt: str, ask: Any) -> Reply:
    conversation, texts = messages(prompt), []
    while True:
        answer = ask(conversation)
        texts.append(answer.text)
        if not answer.tool_calls:
            return report(answer) | {"texts": texts}
        conversation += [answer, *(TOOLS[call["name"]].invoke(call) for call in answer.tool_calls)]


def structured(api: str, prompt: str) -> Reply:
    return {"object": MODELS[api].with_structured_output(City).invoke(messages(prompt)).model_dump()}


def structured_by_tool(api: str, prompt: str) -> Reply:
    model = MODELS[api].with_structured_output(City, method="function_calling")
    return {"object": model.invoke(messages(prompt)).model_dump()}


def history(api: str, prompts: list[str]) -> Reply:
    conversation: list[BaseMessage] = [SystemMessage("You are a tester.")]
    for prompt in prompts:
        conversation.append(HumanMessage(prompt))
        conversation.append(MODELS[api].invoke(conversation))
    return report(conversation[-1])


async def concurrent(api: str, prompts: list[str]) -> Reply:
    return {"texts": [answer.text for answer in await MODELS[api].abatch(prompts)]}


async def cancel(api: str, prompt: str) -> Reply:
    stream = MODELS[api].astream(messages(prompt))
    pieces = []
    async for chunk in stream:
        pieces.append(chunk.text)
        if chunk.text:
            await stream.aclose()
            break
    return {"pieces": [piece for piece in pieces if piece]}


serve(plain, streamed, tools, streamed_tools, structured, structured_by_tool, history, concurrent, cancel)
