"""A Turn as the body of a Messages request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.backends.anthropic.content import text_block
from bridge.backends.anthropic.formats import build_format
from bridge.backends.anthropic.history import build_messages, can_resume, split_system
from bridge.backends.anthropic.models import traits_of
from bridge.backends.anthropic.thinking import Thinking, plan_thinking
from bridge.backends.anthropic.tools import ToolNames, build_choice, build_tools, choice_text
from bridge.backends.responses.body import check_pairs
from bridge.turn.turn import Turn

CACHED = {"type": "ephemeral"}
CACHED_MESSAGES = 2
"""How many of the user's last messages end a part worth caching: what is new now, and what was new last time."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a turn comes to, before it is put together."""

    names: ToolNames
    system: list[str]
    messages: list[dict[str, Any]]
    max_tokens: int
    thinking: Thinking


def build_body(turn: Turn) -> dict[str, Any]:
    """What is sent. Raises InvalidRequest for an output without its call, and for what cannot be given at all."""
    check_pairs(turn.items)
    plan = _plan(turn)
    enforced, words = build_format(turn)
    system = [text_block(text) for text in (turn.instructions or "", *plan.system, words) if text.strip()]
    tools = build_tools(turn, plan.names)
    _mark_cached(tools, system, plan.messages)
    if said := choice_text(turn, plan.names):
        # After what is cached: in the next request it is gone.
        plan.messages[-1]["content"].append(text_block(said))
    output = {"effort": plan.thinking.effort, "format": enforced}
    config = {name: value for name, value in output.items() if value is not None}
    return {
        "model": turn.model,
        "max_tokens": plan.max_tokens,
        **({"system": system} if system else {}),
        "messages": plan.messages,
        **({"tools": tools, "tool_choice": build_choice(turn, plan.names)} if tools else {}),
        **({"thinking": plan.thinking.config} if plan.thinking.config is not None else {}),
        **({"output_config": config} if config else {}),
        **_sampling(turn, plan.thinking),
        "stream": True,
    }


def dropped(turn: Turn) -> list[str]:
    """What a turn asks for that the model cannot be asked, by the names that the client used."""
    chat = turn.endpoint == "chat"
    thinking = _plan(turn).thinking
    sent = _sampling(turn, thinking)
    names = []
    if thinking.lost:
        names.append("reasoning_effort" if chat else "reasoning.effort")
    if turn.temperature not in (None, 1, sent.get("temperature")):
        names.append("temperature")
    if turn.top_p not in (None, 1, sent.get("top_p")):
        names.append("top_p")
    if choice_text(turn, ToolNames(turn)):
        names.append("tool_choice")
    if turn.verbosity is not None:
        names.append("verbosity" if chat else "text.verbosity")
    if turn.service_tier is not None:
        names.append("service_tier")
    if turn.web_search is not None and turn.web_search.context_size is not None:
        names.append("search_context_size")
    return names


def _plan(turn: Turn) -> _Plan:
    names = ToolNames(turn)
    system, items = split_system(turn.items)
    max_tokens = turn.max_output_tokens or traits_of(turn.model).max_tokens
    messages = build_messages(items, names, model=turn.model, thinking=True)
    thinking = plan_thinking(turn, max_tokens, can_resume=can_resume(messages))
    if not thinking.on:
        messages = build_messages(items, names, model=turn.model, thinking=False)
    return _Plan(names, system, messages, max_tokens, thinking)


def _sampling(turn: Turn, thinking: Thinking) -> dict[str, float]:
    """Temperature or top_p: who thinks takes neither, and nobody takes both."""
    if thinking.on or not traits_of(turn.model).sampling:
        return {}
    if turn.temperature is not None:
        return {"temperature": min(turn.temperature, 1.0)}
    return {} if turn.top_p is None else {"top_p": turn.top_p}


def _mark_cached(tools: list[dict[str, Any]], system: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    """Say where a part ends that the next request will have in common with this one. Four such places are allowed."""
    users = [message["content"] for message in messages if message["role"] == "user"]
    for blocks in (tools, system, *users[-CACHED_MESSAGES:]):
        if blocks:
            blocks[-1] = {**blocks[-1], "cache_control": CACHED}
