"""The official Python client's two APIs in one shape, each whole and streamed by the client's own helpers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import openai
from openai import OpenAI
from pydantic import BaseModel
from real.provider import Json

MODEL = "gpt-5.2"


@dataclass(frozen=True)
class Got:
    """What the client made of an answer."""

    text: str
    usage: tuple[int, int, int, int]
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)
    parsed: Any = None
    items: list[Any] = field(default_factory=list)
    """To be sent back in the next turn."""


class Responses:
    """client.responses"""

    def ask(self, client: OpenAI, conversation: list[Any], streamed: bool, **more: Any) -> Got:
        """One turn, by `stream()` or `parse()`."""
        asked = {"model": MODEL, "input": conversation, **more}
        if streamed:
            with client.responses.stream(**asked) as stream:
                return self.read(stream.get_final_response())
        return self.read(client.responses.parse(**asked))

    def read(self, response: Any) -> Got:
        assert (response.status, response.error) == ("completed", None)
        usage = response.usage
        thoughts = [item for item in response.output if item.type == "reasoning"]
        return Got(
            text=response.output_text,
            usage=(
                usage.input_tokens,
                usage.input_tokens_details.cached_tokens,
                usage.output_tokens,
                usage.output_tokens_details.reasoning_tokens,
            ),
            reasoning="\n\n".join(part.text for item in thoughts for part in item.summary),
            calls=[item for item in response.output if item.type == "function_call"],
            parsed=response.output_parsed,
            items=[item.model_dump(exclude={"parsed_arguments"}, mode="json") for item in response.output],
        )

    def tools(self, *models: type[BaseModel]) -> list[Any]:
        return [openai.pydantic_function_tool(model)["function"] | {"type": "function"} for model in models]

    def output(self, call: Any, text: str) -> Json:
        return {"type": "function_call_output", "call_id": call.call_id, "output": text}

    def arguments(self, call: Any) -> tuple[str, str]:
        return call.name, call.arguments

    def asking_for(self, model: type[BaseModel]) -> Json:
        return {"text_format": model}

    def create(self, client: Any, prompt: str, **more: Any) -> Any:
        """A bare request."""
        return client.responses.create(model=MODEL, input=prompt, **more)

    def piece(self, event: Any) -> str:
        """The text of an event of a stream."""
        return str(event.delta) if event.type == "response.output_text.delta" else ""


class Chat:
    """client.chat.completions"""

    def ask(self, client: OpenAI, conversation: list[Any], streamed: bool, **more: Any) -> Got:
        """One turn, by `stream()` or `parse()`."""
        asked = {"model": MODEL, "messages": conversation, **more}
        if streamed:
            with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                return self.read(stream.get_final_completion())
        return self.read(client.chat.completions.parse(**asked))

    def read(self, completion: Any) -> Got:
        (choice,) = completion.choices
        usage, message = completion.usage, choice.message
        assert choice.finish_reason == ("tool_calls" if message.tool_calls else "stop")
        return Got(
            text=message.content or "",
            usage=(
                usage.prompt_tokens,
                usage.prompt_tokens_details.cached_tokens,
                usage.completion_tokens,
                usage.completion_tokens_details.reasoning_tokens,
            ),
            # Not in the client's types: it keeps what it does not know.
            reasoning=(message.model_extra or {}).get("reasoning_content", ""),
            calls=message.tool_calls or [],
            parsed=message.parsed,
            items=[message],  # the client takes its own objects back
        )

    def tools(self, *models: type[BaseModel]) -> list[Any]:
        return [openai.pydantic_function_tool(model) for model in models]

    def output(self, call: Any, text: str) -> Json:
        return {"role": "tool", "tool_call_id": call.id, "content": text}

    def arguments(self, call: Any) -> tuple[str, str]:
        return call.function.name, call.function.arguments

    def asking_for(self, model: type[BaseModel]) -> Json:
        return {"response_format": model}

    def create(self, client: Any, prompt: str, **more: Any) -> Any:
        """A bare request."""
        return client.chat.completions.create(model=MODEL, messages=user(prompt), **more)

    def piece(self, chunk: Any) -> str:
        """The text of a chunk of a stream."""
        return "".join(choice.delta.content or "" for choice in chunk.choices)


def user(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


Api = Responses | Chat
