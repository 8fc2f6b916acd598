"""The Gemini API over plain HTTP, streamed and not: Google's own client is among those of scripts/test-clients."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import httpx2
from harness import KEY
from matrix.client import WEATHER, Conversation, Got, Json, Refused


class Gemini(Conversation):
    """generateContent"""

    streamed = False
    method = "generateContent"

    def __init__(self, root: str, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.root = root

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.root, headers={"x-goog-api-key": KEY}, timeout=20)

    @property
    def url(self) -> str:
        return f"/v1beta/models/{self.model}:{self.method}"

    def user(self, text: str, image: str | None = None) -> Json:
        parts: list[Json] = [{"text": text}]
        if image is not None:
            head, _, data = image.partition(";base64,")
            parts.append({"inlineData": {"mimeType": head.removeprefix("data:"), "data": data}})
        return {"role": "user", "parts": parts}

    def outputs(self, outputs: Sequence[str]) -> list[Json]:
        calls = [part["functionCall"] for part in self.history[-1]["parts"] if "functionCall" in part]
        responses = [
            {"functionResponse": {"id": call["id"], "name": call["name"], "response": {"output": output}}}
            for call, output in zip(calls, outputs, strict=True)
        ]
        return [{"role": "user", "parts": responses}]

    def body(self) -> Json:
        """The request."""
        body: Json = {"contents": self.history}
        if self.tools:
            declared = {"name": WEATHER["name"], "description": WEATHER["description"]}
            declared["parametersJsonSchema"] = WEATHER["parameters"]
            body["tools"] = [{"functionDeclarations": [declared]}]
        if self.thinks:
            body["generationConfig"] = {"thinkingConfig": {"includeThoughts": True, "thinkingBudget": 4000}}
        return body

    def send(self) -> httpx2.Response:
        with self.client() as client:
            return client.post(self.url, json=self.body())

    def chunks(self, response: httpx2.Response) -> list[Json]:
        """The responses that an answer consists of."""
        return [response.json()]

    def answer(self) -> Got:
        response = self.send()
        assert response.status_code == 200, response.text
        chunks = self.chunks(response)
        candidates = [chunk["candidates"][0] for chunk in chunks]
        parts = [part for candidate in candidates for part in candidate["content"]["parts"]]
        self.history.append({"role": "model", "parts": parts})
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        assert [each.get("finishReason") is None for each in candidates] == [True] * (len(chunks) - 1) + [False]
        usage = chunks[-1]["usageMetadata"]
        return Got(
            text="".join(part["text"] for part in parts if "text" in part and not part.get("thought")),
            calls=[(call["name"], json.dumps(call["args"], separators=(",", ":"))) for call in calls],
            thoughts="".join(part["text"] for part in parts if part.get("thought")),
            usage=(
                usage["promptTokenCount"],
                usage["cachedContentTokenCount"],
                usage["candidatesTokenCount"] + usage["thoughtsTokenCount"],
            ),
            complete=candidates[-1]["finishReason"] == "STOP",
        )

    def refused(self, text: str) -> Refused:
        self.history.append(self.user(text))
        response = self.send()
        error = response.json()["error"]
        assert error["code"] == response.status_code
        assert error["status"] == {400: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED"}[error["code"]]
        wait = response.headers.get("retry-after")
        reason = error["details"][0]["reason"]
        return Refused(response.status_code, reason, error["message"], None if wait is None else float(wait))

    def leave(self, text: str, held: Callable[[], None]) -> float:
        self.history.append(self.user(text))
        content = json.dumps(self.body()).encode()
        head = f"POST {self.url} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-goog-api-key: {KEY}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(self.root.rpartition(":")[2])), timeout=10) as connection:
            connection.sendall(head.encode() + content)
            held()
            received = b""
            while self.streamed and b"Once " not in received:
                received += connection.recv(4096)
        return monotonic()


class StreamedGemini(Gemini):
    """streamGenerateContent, as server-sent events"""

    streamed = True
    method = "streamGenerateContent"

    @property
    def url(self) -> str:
        return f"{super().url}?alt=sse"

    def chunks(self, response: httpx2.Response) -> list[Json]:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        *events, end = response.text.split("\n\n")
        assert end == ""
        return [json.loads(event.removeprefix("data: ")) for event in events if not event.startswith(":")]
