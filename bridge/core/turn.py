"""Turn: one request for one answer, as every backend receives it; and an estimate of its tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bridge import exact_json
from bridge.core.items import (
    Document,
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Item,
    Message,
    OutputFormat,
    Tool,
    ToolChoice,
    WebSearchOptions,
)
from bridge.core.models import ModelChoice

AUTO = ToolChoice()
CODEX_TIERS = {"priority": "priority", "fast": "priority", "flex": "flex"}
"""The service tiers that Codex knows, and their names in the API. `fast` is Codex's own name."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. A parser sets both names of the model to the name in the body; `for_model` resolves it.

    The fields stay flat: backends read single fields, and nearly every reader would need two groups of them.
    """

    model: str
    """The model that the backend is asked for."""
    requested_model: str
    """The name that the client sent. The answer repeats it."""
    items: tuple[Item, ...]
    """The conversation; never empty."""
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AUTO
    effort: str | None = None
    """The reasoning effort: from the request, or from the name of the model."""
    summary: str | None = None
    output_format: OutputFormat | None = None
    stream: bool | None = None
    """None if the request does not say."""
    include_usage: bool = False
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    parallel: bool = True
    """Whether one answer may have several calls."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer. They are not part of it."""
    verbosity: str | None = None
    web_search: WebSearchOptions | None = None
    service_tier: str | None = None
    """`priority`, `flex`, … as the client sent it; None for the provider's default."""
    encrypted_reasoning: bool = False
    """Whether the client wants encrypted reasoning, to send it back later."""
    session: str | None = None
    """The conversation of this turn, for the provider's cache; None if the request names none."""
    provider: str | None = None
    """The provider in Codex's config.toml that serves the model; None for Codex's default."""
    provider_key: str | None = field(default=None, repr=False)
    """The client's own key for the provider, for this turn only."""
    backend: str = ""
    """The name of the backend that serves the model."""
    tool_text: str | None = None
    """The injected text for the tools if it was built in advance: many schemas can take seconds."""
    native: bool | None = None
    """Whether tools are offered natively if the backend can do both; None for the operator's setting."""
    verbatim: bool = False
    """Keep tool calls in the text as the model writes them."""

    system_messages_are_prompt: bool = False
    """Whether system and developer messages are the client's system prompt, because its protocol has no `instructions`.
    The operator can have that prompt ignored. In other protocols these messages are part of the conversation."""
    legacy_form: Literal["responses", "chat"] = "responses"
    """The form of the payloads in the legacy dialect. The two documented forms differ in where the effort and the
    sampling options are."""
    field_names: Mapping[str, str] = field(default_factory=dict)
    """The client's names of fields that have another name in the Responses API."""
    narrowed: Mapping[str, str] = field(default_factory=dict)
    """`sandbox`, `approval_policy` and `cwd` if the request narrows the operator's values."""

    def for_model(self, choice: ModelChoice, **changes: Any) -> Turn:
        """This turn for the model that its name resolves to. An effort in the request wins over one in the name.

        `changes` are further fields: one copy for all of them, since a turn has many fields.
        """
        return replace(
            self,
            **changes,
            model=choice.effective,
            requested_model=choice.requested,
            backend=choice.backend,
            provider=choice.provider,
            effort=self.effort or choice.effort,
        )

    def client_names(self, names: Iterable[str]) -> list[str]:
        """The client's names of these fields."""
        return [self.field_names.get(name, name) for name in names]

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        """The client's functions, in its order."""
        return tuple(tool for tool in self.tools if isinstance(tool, FunctionTool))

    @property
    def parses_tool_calls(self) -> bool:
        """Whether `<tool_call>` blocks are calls. Without functions, or with choice `none`, they are text."""
        return bool(self.functions) and self.tool_choice.mode != "none"


BYTES_PER_TOKEN = 4
PER_ITEM = 4
PER_IMAGE = 800
PER_DOCUMENT = 2_000
"""About a page of a PDF: the number of pages is not known."""


def estimate_text(text: str) -> int:
    """The tokens of a text: four bytes of UTF-8 each, which is near the truth for English and for most code."""
    return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)


def estimate_input(turn: Turn) -> int:
    """The tokens of all that a turn sends to the model, its tools included."""
    total = estimate_text(turn.instructions or "")
    for tool in turn.functions:
        total += estimate_text(tool.full_name + (tool.description or "")) + PER_ITEM
        total += math.ceil(len(exact_json.dumps(tool.parameters)) / BYTES_PER_TOKEN)
    for item in turn.items:
        total += PER_ITEM
        if isinstance(item, Message | FunctionOutput):
            total += estimate_text(item.text)
            total += PER_IMAGE * sum(isinstance(part, Image) for part in item.parts)
            total += PER_DOCUMENT * sum(isinstance(part, Document) for part in item.parts)
        elif isinstance(item, FunctionCall):
            total += estimate_text(item.name + item.arguments)
        else:
            total += estimate_text(_readable(item.data))
    return total


def _readable(data: Any) -> str:
    encrypted = data.get("encrypted_content") if hasattr(data, "get") else None
    return str(encrypted or data)
