"""Servers of the chat completions API that are known by name: their addresses and their differences.

Each difference has its source next to it: a page of the provider's documentation, a file of the server's own code, or
an entry of its issue tracker. Everything else is assumed to be as in OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


@dataclass(frozen=True, slots=True)
class Preset:
    """One kind of server. `base_url` ends with the version, without a slash; `key_env` is None where none is needed."""

    base_url: str | None = None
    key_env: str | None = None
    efforts: frozenset[str] = EFFORTS
    """The values of `reasoning_effort` that it knows; others are not sent."""
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Its name of the limit of output tokens."""
    tool_choice: Literal["any", "words", "ignored"] = "any"
    """`words`: it accepts none, auto and required, but not the name of a function. `ignored`: it has no effect."""
    parallel: bool = True
    """Whether it accepts `parallel_tool_calls`."""
    json_object: bool = True
    """Whether it accepts `response_format` json_object."""
    verbosity: bool = False
    """Whether it accepts `verbosity`."""
    service_tier: bool = False
    """Whether it accepts `service_tier`."""
    documents: Literal["file", "image_url"] | None = None
    """The part that holds a document such as a PDF, if it reads any."""
    one_system: bool = False
    """Whether the system messages at the beginning are sent as one."""
    signatures: bool = False
    """Whether calls have signatures that it needs back (see `calls`)."""
    longest_id: int | None = None
    """The maximum length of a call id."""


CUSTOM = Preset(one_system=True, documents="file")
"""An unknown server. It gets what the client asks for, and itself refuses what it does not support.

Its model may have a chat template that allows at most one system message, like many local models (see `vllm`); other
servers accept one, too.
"""

PRESETS: Mapping[str, Preset] = {
    # The base of all. Efforts and verbosity: its API reference. `max_tokens` is refused by its reasoning models.
    # Ids of calls have at most 40 characters ("string_above_max_length"), those of other providers have more:
    # github.com/vercel/ai/issues/5171.
    "openai": Preset(
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        limit="max_completion_tokens",
        verbosity=True,
        service_tier=True,
        documents="file",
        longest_id=40,
    ),
    # ai.google.dev/gemini-api/docs/openai: the address, and reasoning_effort none, minimal, low, medium, high.
    # ai.google.dev/gemini-api/docs/thought-signatures: calls come with a signature in extra_content.google, which
    # Gemini 3 wants back. `parallel_tool_calls` was refused as an unknown name (github.com/jackmpcollins/magentic,
    # pull request 382); its own API has no such setting, so nothing is lost without it.
    "gemini": Preset(
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
        efforts=frozenset({"none", "minimal", "low", "medium", "high"}),
        parallel=False,
        # Its surface has no `file` part; the type in the data URL of an `image_url` decides what it is.
        documents="image_url",
        signatures=True,
    ),
    # console.groq.com/docs/openai: the address, and what gets a 400 (logprobs, names of messages, n: never sent here).
    # console.groq.com/docs/api-reference: max_completion_tokens instead of max_tokens. console.groq.com/docs/reasoning:
    # none (Qwen), low, medium, high (GPT-OSS).
    "groq": Preset(
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        efforts=frozenset({"none", "low", "medium", "high"}),
        limit="max_completion_tokens",
    ),
    # openrouter.ai/docs/api-reference: the address, max_tokens, verbosity; its ChatRequestReasoningEffort lists the
    # efforts. Errors in the middle of a stream: openrouter.ai/docs/api/reference/streaming. Documents:
    # openrouter.ai/docs/features/multimodal/pdfs.
    "openrouter": Preset("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", verbosity=True, documents="file"),
    # github.com/ollama/ollama, openai/openai.go: no field for tool_choice, parallel_tool_calls and
    # max_completion_tokens; efforts other than high, medium, low and none are refused. Its Qwen models take one
    # system message (github.com/phuetz/code-buddy, pull request 75).
    "ollama": Preset(
        "http://127.0.0.1:11434/v1",
        efforts=frozenset({"none", "low", "medium", "high"}),
        tool_choice="ignored",
        parallel=False,
        one_system=True,
    ),
    # github.com/lmstudio-ai/lmstudio-bug-tracker, issues 670 (tool_choice takes words alone), 189 (no json_object) and
    # 988 (reasoning_effort does nothing in chat completions).
    "lmstudio": Preset(
        "http://127.0.0.1:1234/v1",
        efforts=frozenset(),
        tool_choice="words",
        json_object=False,
        one_system=True,
    ),
    # github.com/vllm-project/vllm, entrypoints/openai/chat_completion/protocol.py: the efforts, and both names of the
    # limit, of which older versions know max_tokens alone. Its issue 41114: Qwen's template refuses a second system
    # message.
    "vllm": Preset("http://127.0.0.1:8000/v1", one_system=True),
}
