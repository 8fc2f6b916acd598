"""The APIs of providers, as backends use them: the body of a request, and the decoder of its answer. Pure."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from bridge.core.backend import Abilities
from bridge.core.thoughts import seal
from bridge.core.turn import CODEX_TIERS, Turn
from bridge.protocols.chat import build as chat
from bridge.protocols.chat.decoder import ChatBuffer
from bridge.protocols.chat.presets import CUSTOM, Preset
from bridge.protocols.messages import build as messages
from bridge.protocols.messages.decoder import MessagesBuffer
from bridge.protocols.responses import build as responses
from bridge.protocols.responses.decoder import ResponsesBuffer
from bridge.protocols.upstream import UpstreamBuffer


class Api(Protocol):
    """The API of one kind of provider."""

    @property
    def takes(self) -> Abilities:
        """The optional features that it supports."""

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        """The body of a request, which is always streamed. Raises InvalidRequest for a turn that it cannot express."""

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        """The decoder of the answer's events."""

    def drops(self, turn: Turn) -> list[str]:
        """The fields of a turn that the body cannot express, for a response header."""


class ResponsesApi:
    """The Responses API as Codex uses it (seed 001), streamed and not stored. Items are passed on as they are."""

    takes = Abilities(counts_tokens=True, hosted_tools=True, documents=True, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        responses.check_pairs(turn.items)
        return responses.build_codex_request(turn, session)

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        return ResponsesBuffer(turn.functions, partial(seal, turn))

    def drops(self, turn: Turn) -> list[str]:
        return ["service_tier"] if turn.service_tier is not None and turn.service_tier not in CODEX_TIERS else []


class PlainResponsesApi(ResponsesApi):
    """The Responses API of other servers: without what Codex adds to each request."""

    takes = Abilities(sampling=True, hosted_tools=True, documents=True, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        responses.check_pairs(turn.items)
        return responses.build_provider_request(turn, session)

    def drops(self, turn: Turn) -> list[str]:
        return []


class ChatApi:
    """Chat completions, streamed: Gemini, Groq, OpenRouter, Ollama, LM Studio, vLLM, OpenAI, …"""

    def __init__(self, preset: Preset = CUSTOM) -> None:
        self._preset = preset
        self.takes = Abilities(sampling=True, documents=preset.documents is not None, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        return chat.build_body(turn, self._preset)

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        signs = self._preset.signatures and turn.encrypted_reasoning
        return ChatBuffer(turn.functions, parallel=turn.parallel, signs=signs)

    def drops(self, turn: Turn) -> list[str]:
        return chat.dropped(turn, self._preset)


def chat_url(base_url: str) -> str:
    """The URL of chat completions. The base URL includes the version, as in OpenAI's clients."""
    return f"{base_url.rstrip('/')}/chat/completions"


class MessagesApi:
    """Anthropic's Messages API, streamed."""

    takes = Abilities(sampling=True, documents=True, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        return messages.build_body(turn)

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        return MessagesBuffer(turn)

    def drops(self, turn: Turn) -> list[str]:
        return messages.dropped(turn)
