"""What the battery wants of every client protocol: a conversation, and what a client makes of its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matrix.provider import Call

Json = dict[str, Any]

WEATHER: Json = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "examples": ["Bern"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
"""The function that the model may call."""


@dataclass(frozen=True)
class Got:
    """What the client made of an answer. `complete` is False where the model reached its limit of tokens."""

    text: str
    calls: list[Call]
    thoughts: str
    usage: tuple[int, int, int] | None
    complete: bool


@dataclass(frozen=True)
class Refused:
    """An error as the client's own. `status` and `wait` (Retry-After) are None where the protocol has no place."""

    status: int | None
    code: str | None
    message: str
    wait: float | None = None


class Conversation(ABC):
    """One with a model. `tools` offers WEATHER; `thinks` asks for thoughts, encrypted ones too."""

    def __init__(self, model: str, *, tools: bool = False, thinks: bool = False) -> None:
        self.model = model
        self.tools = tools
        self.thinks = thinks
        self.history: list[Any] = []
        """In the client's spelling."""

    def ask(self, text: str, image: str | None = None) -> Got:
        """Say something, and perhaps show an image."""
        self.history.append(self.user(text, image))
        return self.answer()

    def give(self, *outputs: str) -> Got:
        """Answer the calls of the last answer."""
        self.history += self.outputs(outputs)
        return self.answer()

    @abstractmethod
    def user(self, text: str, image: str | None = None) -> Json:
        """A user's message."""

    @abstractmethod
    def outputs(self, outputs: Sequence[str]) -> list[Json]:
        """The outputs of the last answer's calls."""

    @abstractmethod
    def answer(self) -> Got:
        """The answer to the history, which is then part of it."""

    @abstractmethod
    def refused(self, text: str) -> Refused:
        """Say something that is answered with an error."""

    @abstractmethod
    def leave(self, text: str, held: Callable[[], None]) -> float:
        """Say something, and leave when `held` returns; when that was (`time.monotonic`)."""


class ResponsesConversation(Conversation):
    """In Responses items; subclasses `send` a body and get a response object."""

    def user(self, text: str, image: str | None = None) -> Json:
        parts: list[Json] = [{"type": "input_text", "text": text}]
        if image is not None:
            parts.append({"type": "input_image", "image_url": image, "detail": "auto"})
        return {"type": "message", "role": "user", "content": parts}

    def outputs(self, outputs: Sequence[str]) -> list[Json]:
        ids = [item["call_id"] for item in self.history if item["type"] == "function_call"][-len(outputs) :]
        return [
            {"type": "function_call_output", "call_id": call_id, "output": output}
            for call_id, output in zip(ids, outputs, strict=True)
        ]

    def body(self) -> Json:
        """The request, `stream` aside."""
        body: Json = {"model": self.model, "input": self.history}
        if self.tools:
            body["tools"] = [{"type": "function", "strict": False, **WEATHER}]
        if self.thinks:
            body |= {"reasoning": {"effort": "medium"}, "include": ["reasoning.encrypted_content"]}
        return body

    def answer(self) -> Got:
        return self.read(self.send(self.body()))

    @abstractmethod
    def send(self, body: Json) -> Json:
        """The response object that answers a body."""

    def read(self, response: Json) -> Got:
        """What a response says; its items become part of the history."""
        items = response["output"]
        self.history += items
        if response["status"] == "incomplete":
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        else:
            assert response["status"] == "completed"
        thoughts = [item for item in items if item["type"] == "reasoning"]
        parts = [part for item in thoughts for part in (*item["summary"], *(item.get("content") or ()))]
        usage = response["usage"]
        return Got(
            text="".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
            calls=[(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"],
            thoughts="".join(part["text"] for part in parts),
            usage=usage
            and (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]),
            complete=response["status"] == "completed",
        )
