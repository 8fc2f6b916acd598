"""Turn: one request for one answer, as every backend receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bridge.turn.items import FunctionTool, Item, OutputFormat, Tool, ToolChoice, WebSearchOptions

Endpoint = Literal["responses", "chat"]
AUTO = ToolChoice()
CODEX_TIERS = {"priority": "priority", "fast": "priority", "flex": "flex"}
"""The service tiers that Codex knows, and what the API calls them. `fast` is Codex's own name."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `model` is the effective model; `requested_model` is what the client wrote and gets echoed.

    `stream` is None when the client did not say. `effort` is the explicit or implied reasoning effort.
    `items` is never empty.
    """

    endpoint: Endpoint
    model: str
    requested_model: str
    items: tuple[Item, ...]
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AUTO
    effort: str | None = None
    summary: str | None = None
    output_format: OutputFormat | None = None
    stream: bool | None = None
    include_usage: bool = False
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    parallel: bool = True
    """Whether one answer may hold several calls."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""
    verbosity: str | None = None
    web_search: WebSearchOptions | None = None
    service_tier: str | None = None
    """`priority`, `flex`, … as the client wrote it; None for the provider's usual one."""
    encrypted_reasoning: bool = False
    """The client wants to give the reasoning back later, as the provider encrypts it."""
    session: str | None = None
    """The conversation that this turn belongs to, for a provider's cache; None when the client named none."""
    provider: str | None = None
    """The provider of Codex's config.toml that serves the model; None: the one that Codex uses anyway."""
    provider_key: str | None = field(default=None, repr=False)
    """The client's own key for the provider, for this turn alone."""
    backend: str = ""
    """The name of the backend that was chosen for its model."""
    tool_text: str | None = None
    """The injected text for the tools, where it has been built beforehand (it can take seconds for many schemas)."""
    native: bool | None = None
    """Whether the tools are offered natively, where that can be chosen; None: as the operator has decided."""
    verbatim: bool = False
    """The text is wanted as the model writes it: calls in it are left there."""

    narrowed: Mapping[str, str] = field(default_factory=dict)
    """`sandbox`, `approval_policy` and `cwd`, where they are to be narrower than the operator's."""

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        """The client's functions, in its order."""
        return tuple(tool for tool in self.tools if isinstance(tool, FunctionTool))

    @property
    def parses_tool_calls(self) -> bool:
        """Whether `<tool_call>` blocks are calls. Without functions, or with choice `none`, they are text."""
        return bool(self.functions) and self.tool_choice.mode != "none"
