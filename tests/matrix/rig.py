"""One bridge with every backend, each in front of a scripted provider, and every client protocol to talk to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from anthropic import Anthropic
from cli.exec.command import Command, environment
from harness import RunningBridge, running_bridge
from matrix.child import AppServer
from matrix.client import Conversation
from matrix.gemini_clients import Gemini, StreamedGemini
from matrix.messages_clients import MESSAGES_OPTIONS, Messages, StreamedMessages
from matrix.mock import Mock
from matrix.openai_clients import OPTIONS, Chat, Responses, StreamedChat, StreamedResponses
from matrix.other_clients import Exec, WebSocket
from matrix.provider import Provider
from matrix.upstreams import (
    AnthropicProvider,
    ChatProvider,
    PlainResponsesProvider,
    ResponsesProvider,
    serving_plain_responses,
)
from upstream import anthropic_server, chatgpt, openai_chat

_OVER_HTTP: dict[str, Callable[..., Conversation]] = {
    "responses_stream": StreamedResponses,
    "responses": Responses,
    "chat_stream": StreamedChat,
    "chat": Chat,
}

_GEMINI = {"gemini_stream": StreamedGemini, "gemini": Gemini}
_MESSAGES = {"messages_stream": StreamedMessages, "messages": Messages}

_CONFIG = """
[backends.direct]
type = "codex"

[backends.plain]
type = "responses"
base_url = "{plain}"
key = "{plain_key}"

[backends.claude]
type = "anthropic"
base_url = "{claude}"
key_env = "CLAUDE_KEY"

[backends.some]
type = "openai"
base_url = "{chat}"
key_env = "CHAT_KEY"

[routing.patterns]
direct = ["direct-"]
plain = ["plain-*"]
some = ["some-"]
"""


@dataclass(frozen=True)
class Rig:
    """The bridge, and the providers by the battery's names of their backends."""

    bridge: RunningBridge
    client: openai.OpenAI
    anthropic: Anthropic
    warm: Command
    providers: dict[str, Provider]

    def conversation(self, protocol: str, model: str, **options: Any) -> Conversation:
        """A new one in this protocol."""
        if protocol == "websocket":
            return WebSocket(self.bridge, model, **options)
        if protocol == "exec":
            return Exec(self.warm, model, **options)
        if protocol in _MESSAGES:
            return _MESSAGES[protocol](self.anthropic, model, **options)
        if protocol in _GEMINI:
            return _GEMINI[protocol](self.bridge.root, model, **options)
        return _OVER_HTTP[protocol](self.client, model, **options)


@contextmanager
def start_rig(directory: Path) -> Iterator[Rig]:
    """All of it, while the block runs."""
    with ExitStack() as stack:
        direct = stack.enter_context(chatgpt.serving_in_thread())
        plain = stack.enter_context(serving_plain_responses())
        claude = stack.enter_context(anthropic_server.serving_in_thread())
        chat = stack.enter_context(openai_chat.serving_in_thread())
        child = AppServer(directory / "child")
        config = directory / "config.toml"
        config.write_text(
            _CONFIG.format(plain=plain.api_base_url, plain_key=plain.logins.key, claude=claude.url, chat=chat.base_url)
        )
        variables = {
            **direct.environment(direct.home(directory)),
            "PROXY_CONFIG": str(config),
            "CODEX_BIN": str(child.program),
            "PROXY_MODELS": AppServer.model,
            "PROXY_KEPT_THREADS": "0",  # else the child is told of a conversation's new items alone
            "CLAUDE_KEY": anthropic_server.KEY,
            "CHAT_KEY": chat.key or "",
        }
        bridge = stack.enter_context(running_bridge(directory, **variables))
        runs = directory / "exec"
        runs.mkdir()
        settings = environment(runs, **variables)
        warm = Command(runs, settings)
        providers: dict[str, Provider] = {
            "app_server": child,
            "codex": ResponsesProvider(direct),
            "responses": PlainResponsesProvider(plain),
            "anthropic": AnthropicProvider(claude),
            "openai": ChatProvider(chat),
            "mock": Mock(),
        }
        client = stack.enter_context(openai.OpenAI(base_url=bridge.url, **OPTIONS))
        anthropic = stack.enter_context(Anthropic(base_url=bridge.root, **MESSAGES_OPTIONS))
        yield Rig(bridge, client, anthropic, warm, providers)
