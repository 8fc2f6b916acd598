"""The Messages API with Anthropic's official client, streamed and not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import anthropic
import pytest
from harness import KEY
from matrix.client import WEATHER, Conversation, Got, Json, Refused

MESSAGES_OPTIONS: Json = {"api_key": KEY, "max_retries": 0, "timeout": 20}
"""Those of every client. It tries nothing again by itself."""
_KINDS: dict[int, type[anthropic.APIStatusError]] = {400: anthropic.BadRequestError, 429: anthropic.RateLimitError}


class Messages(Conversation):
    """client.messages"""

    streamed = False

    def __init__(self, client: anthropic.Anthropic, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.client = client

    def user(self, text: str, image: str | None = None) -> Json:
        blocks: list[Json] = [{"type": "text", "text": text}]
        if image is not None:
            head, _, data = image.partition(";base64,")
            source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
            blocks.append({"type": "image", "source": source})
        return {"role": "user", "content": blocks}

    def outputs(self, outputs: Sequence[str]) -> list[Json]:
        ids = [block["id"] for block in self.history[-1]["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call_id, "content": output}
            for call_id, output in zip(ids, outputs, strict=True)
        ]
        return [{"role": "user", "content": results}]

    def body(self) -> Json:
        """The request, `stream` aside."""
        body: Json = {"model": self.model, "max_tokens": 9000, "messages": self.history}
        if self.tools:
            tool = {"name": WEATHER["name"], "description": WEATHER["description"]}
            body["tools"] = [{**tool, "input_schema": WEATHER["parameters"]}]
        if self.thinks:
            body["thinking"] = {"type": "enabled", "budget_tokens": 4000}
        return body

    def message(self) -> anthropic.types.Message:
        """The whole message."""
        found: anthropic.types.Message = self.client.messages.create(**self.body())
        return found

    def answer(self) -> Got:
        message = self.message()
        blocks = message.model_dump(mode="json", exclude_unset=True)["content"]
        self.history.append({"role": "assistant", "content": blocks})
        calls = [block for block in blocks if block["type"] == "tool_use"]
        complete = message.stop_reason != "max_tokens"
        if complete:
            assert message.stop_reason == ("tool_use" if calls else "end_turn")
        usage = message.usage
        cached = usage.cache_read_input_tokens or 0
        return Got(
            text="".join(block["text"] for block in blocks if block["type"] == "text"),
            calls=[(call["name"], json.dumps(call["input"], separators=(",", ":"))) for call in calls],
            thoughts="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
            usage=(usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0), cached, usage.output_tokens),
            complete=complete,
        )

    def refused(self, text: str) -> Refused:
        self.history.append(self.user(text))
        with pytest.raises(anthropic.APIStatusError) as raised:
            self.message()
        error = raised.value
        assert type(error) is _KINDS[error.status_code]
        body: Any = error.body
        assert body["type"] == "error"
        wait = error.response.headers.get("retry-after")
        said = body["error"]
        return Refused(error.status_code, said["code"], said["message"], None if wait is None else float(wait))

    def leave(self, text: str, held: Callable[[], None]) -> float:
        self.history.append(self.user(text))
        return asyncio.run(self._leave(held))

    async def _leave(self, held: Callable[[], None]) -> float:
        heard = asyncio.Event()

        async def listen() -> None:
            if not self.streamed:
                await client.messages.create(**self.body())
                return
            async for event in await client.messages.create(**self.body(), stream=True):
                if event.type == "content_block_delta":
                    heard.set()

        async with anthropic.AsyncAnthropic(base_url=str(self.client.base_url), **MESSAGES_OPTIONS) as client:
            listening = asyncio.create_task(listen())
            await asyncio.to_thread(held)
            if self.streamed:
                await asyncio.wait_for(heard.wait(), 10)
            listening.cancel()
            left = monotonic()
            with suppress(asyncio.CancelledError):
                await listening
        return left


class StreamedMessages(Messages):
    """client.messages, streamed, put together by the client's own helper."""

    streamed = True

    def message(self) -> anthropic.types.Message:
        with self.client.messages.stream(**self.body()) as stream:
            return stream.get_final_message()
