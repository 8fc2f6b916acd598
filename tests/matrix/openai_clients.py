"""The four protocols over HTTP, with the official client: Responses and chat completions, streamed and not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import openai
import pytest
from harness import KEY
from matrix.client import WEATHER, Conversation, Got, Json, Refused, ResponsesConversation

OPTIONS: Json = {"api_key": KEY, "max_retries": 0, "timeout": 20}
"""Those of every client. It tries nothing again by itself."""

_KINDS: dict[int, type[openai.APIStatusError]] = {400: openai.BadRequestError, 429: openai.RateLimitError}


class _OverHttp(Conversation):
    """What the four have in common."""

    streamed: bool

    def __init__(self, client: openai.OpenAI, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.client = client

    def body(self) -> Json:
        """The request, `stream` aside."""
        raise NotImplementedError

    def api(self, client: Any) -> Any:
        """The part of a client that has `create`."""
        raise NotImplementedError

    def says(self, event: Any) -> bool:
        """Whether an event of a stream brings text."""
        raise NotImplementedError

    def request(self) -> Json:
        return {**self.body(), "stream": True} if self.streamed else self.body()

    def create(self) -> Any:
        """The client's own object that answers the history: a stream's events, or a whole answer."""
        if not self.streamed:
            return self.api(self.client).create(**self.request())
        with self.api(self.client).create(**self.request()) as stream:
            return list(stream)

    def refused(self, text: str) -> Refused:
        self.history.append(self.user(text))
        with pytest.raises(openai.APIStatusError) as raised:
            self.create()
        error = raised.value
        assert type(error) is _KINDS[error.status_code]
        said: Any = error.body
        wait = error.response.headers.get("retry-after")
        return Refused(error.status_code, error.code, said["message"], None if wait is None else float(wait))

    def leave(self, text: str, held: Callable[[], None]) -> float:
        self.history.append(self.user(text))
        return asyncio.run(self._leave(held))

    async def _leave(self, held: Callable[[], None]) -> float:
        heard = asyncio.Event()

        async def listen() -> None:
            answer = await self.api(client).create(**self.request())
            async for event in answer:
                if self.says(event):
                    heard.set()

        async with openai.AsyncOpenAI(base_url=self.client.base_url, **OPTIONS) as client:
            listening = asyncio.create_task(listen())
            await asyncio.to_thread(held)
            if self.streamed:
                await asyncio.wait_for(heard.wait(), 10)
            listening.cancel()
            left = monotonic()
            with suppress(asyncio.CancelledError):
                await listening
        return left


class Responses(_OverHttp, ResponsesConversation):
    """client.responses"""

    streamed = False

    def body(self) -> Json:
        return ResponsesConversation.body(self)

    def api(self, client: Any) -> Any:
        return client.responses

    def says(self, event: Any) -> bool:
        return bool(event.type == "response.output_text.delta")

    def send(self, body: Json) -> Json:
        response: Json = self.create().model_dump(mode="json", exclude_unset=True)
        return response


class StreamedResponses(Responses):
    """client.responses, streamed; the pieces must be what the last event says."""

    streamed = True

    def send(self, body: Json) -> Json:
        events = self.create()
        assert events[-1].type in ("response.completed", "response.incomplete"), events[-1]
        response = events[-1].response
        assert "".join(event.delta for event in events if self.says(event)) == response.output_text
        whole: Json = response.model_dump(mode="json", exclude_unset=True)
        return whole


class Chat(_OverHttp):
    """client.chat.completions"""

    streamed = False

    def user(self, text: str, image: str | None = None) -> Json:
        parts: list[Json] = [{"type": "text", "text": text}]
        if image is not None:
            parts.append({"type": "image_url", "image_url": {"url": image}})
        return {"role": "user", "content": parts}

    def outputs(self, outputs: Sequence[str]) -> list[Json]:
        ids = [call["id"] for call in self.history[-1]["tool_calls"]]
        return [
            {"role": "tool", "tool_call_id": call_id, "content": output}
            for call_id, output in zip(ids, outputs, strict=True)
        ]

    def body(self) -> Json:
        body: Json = {"model": self.model, "messages": self.history}
        if self.tools:
            body["tools"] = [{"type": "function", "function": WEATHER}]
        if self.thinks:
            body["reasoning_effort"] = "medium"
        return body | ({"stream_options": {"include_usage": True}} if self.streamed else {})

    def api(self, client: Any) -> Any:
        return client.chat.completions

    def says(self, event: Any) -> bool:
        return any(choice.delta.content for choice in event.choices)

    def complete(self) -> Any:
        """The whole completion."""
        return self.create()

    def answer(self) -> Got:
        completion = self.complete()
        (choice,) = completion.choices
        message, usage = choice.message, completion.usage
        calls = message.tool_calls or []
        complete = choice.finish_reason != "length"
        if complete:
            assert choice.finish_reason == ("tool_calls" if calls else "stop")
        self.history.append(message.model_dump(mode="json", exclude_unset=True, exclude={"parsed"}))
        return Got(
            text=message.content or "",
            calls=[(call.function.name, call.function.arguments) for call in calls],
            # Not in the client's types: it keeps what it does not know.
            thoughts=(message.model_extra or {}).get("reasoning_content") or "",
            usage=usage and (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens),
            complete=complete,
        )


class StreamedChat(Chat):
    """client.chat.completions, streamed, put together by the client's own helper."""

    streamed = True

    def complete(self) -> Any:
        with self.client.chat.completions.stream(**self.body()) as stream:
            try:
                return stream.get_final_completion()
            except openai.LengthFinishReasonError as error:
                # How the helper tells of an answer that was cut.
                return error.completion
