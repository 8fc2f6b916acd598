"""Any server of the chat completions API as a backend: Gemini, Groq, OpenRouter, Ollama, LM Studio, vLLM, OpenAI, …

The request goes to `{base_url}/chat/completions`; the base URL has the version in it, as in OpenAI's clients.
"""

from __future__ import annotations

from typing import Any

from bridge.backends.base import Abilities
from bridge.backends.openai_compatible.body import build_body, dropped
from bridge.backends.openai_compatible.decode import ChatBuffer
from bridge.backends.openai_compatible.presets import CUSTOM, Preset
from bridge.backends.upstream.buffer import UpstreamBuffer
from bridge.turn.turn import Turn


class ChatApi:
    """Chat completions, streamed."""

    takes = Abilities(sampling=True, provider_key=True)

    def __init__(self, preset: Preset = CUSTOM) -> None:
        self._preset = preset

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        return build_body(turn, self._preset)

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        return ChatBuffer(turn, self._preset)

    def drops(self, turn: Turn) -> list[str]:
        return dropped(turn, self._preset)


def chat_url(base_url: str) -> str:
    """Where the requests go."""
    return f"{base_url.rstrip('/')}/chat/completions"
