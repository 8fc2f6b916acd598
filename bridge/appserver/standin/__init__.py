"""The stand-in is an app-server without Codex. Here are its modes and scripts: the steps of its turns. Pure.

`server` performs them; `replay` plays a recorded child instead.

A script is `{"turns": [{"steps": [...]}, …]}` (the last turn repeats), with optional process-wide members;
`docs/standin.md` lists them all. A mode looks at the prompt, as a model would, and answers with steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.errors import ConfigError

MODES = ("echo", "text", "tool-call", "tool-loop")
MOCK_TEXT = "mock response text"
NOTHING_TO_ECHO = "(nothing to echo)"
STEP_KINDS = frozenset(
    {
        "deltas", "text", "chunk", "reasoning", "raw_reasoning", "usage", "error", "retry", "sleep", "garbage",
        "exit", "signal", "hang", "flood", "stderr", "close_stdout", "request", "no_delta", "interrupted", "unended",
        "times",
    }
)  # fmt: skip

MEMBERS = frozenset({"turns", "startup", "mute", "refuse", "split", "ignore_sigterm", "ignore_eof", "user_agent"})

_EXAMPLE = re.compile(
    r"^Tool: (?P<name>.+?)$.*?^Example tool_call:\n(?P<call><tool_call>.*?</tool_call>)$", re.M | re.S
)
_FORCED = re.compile(r'^Tool choice is forced: you MUST call "(.+)"\.$', re.M)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The input of a turn: the developer text, the last user text, and the outputs of tools since then."""

    developer: str = ""
    user: str = ""
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script; without turns, the mode decides. docs/standin.md explains the members."""

    turns: tuple[tuple[dict[str, Any], ...], ...]
    startup: tuple[dict[str, Any], ...] = ()
    mute: frozenset[str] = frozenset()
    refuse: dict[str, dict[str, Any]] = field(default_factory=dict)
    split: int = 0
    ignore_sigterm: bool = False
    ignore_eof: bool = False
    user_agent: str | None = None

    def steps(self, turn: int) -> tuple[dict[str, Any], ...]:
        """The steps of the n-th turn; the last one repeats."""
        return self.turns[min(turn, len(self.turns) - 1)]


def parse_script(text: bytes) -> Script:
    """Read a script. Raises ConfigError naming what is wrong."""
    try:
        # Not orjson: a byte that is not UTF-8 is a lone surrogate in a script.
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"The script is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("turns"), list) or not data["turns"]:
        raise ConfigError('A script is an object with a non-empty list "turns".')
    unknown = set(data) - MEMBERS
    if unknown:
        raise ConfigError(f"Unknown members {sorted(unknown)}; known: {', '.join(sorted(MEMBERS))}")
    turns = tuple(_steps(turn.get("steps") if isinstance(turn, dict) else None) for turn in data.pop("turns"))
    startup = _steps(data.pop("startup", []))
    mute = frozenset(data.pop("mute", ()))
    return Script(turns, startup, mute, **data)


def _steps(steps: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(steps, list):
        raise ConfigError('Each turn has a list "steps".')
    for step in steps:
        if not isinstance(step, dict) or not step or set(step) - STEP_KINDS:
            raise ConfigError(f"Unknown step {step!r}; known: {', '.join(sorted(STEP_KINDS))}")
    return tuple(steps)


def steps_for_mode(mode: str, prompt: Prompt) -> list[dict[str, Any]]:
    if mode == "echo":
        text = prompt.user or NOTHING_TO_ECHO
    elif mode == "tool-call" or (mode == "tool-loop" and not prompt.outputs):
        text = _tool_call(prompt)
    elif mode == "tool-loop":
        text = tool_result(prompt.outputs)
    else:
        text = MOCK_TEXT
    return [{"text": text, "chunk": 6}, {"usage": _usage(prompt, text)}]


def tool_result(outputs: Sequence[str]) -> str:
    """The answer of a mock after tool calls: their outputs, or `ok` without any."""
    return f"mock tool result: {'; '.join(outputs) if outputs else 'ok'}"


def read_items(items: Iterable[dict[str, Any]]) -> tuple[str | None, tuple[str, ...]]:
    """(the last user message of a conversation, the outputs of tools since then). They may have any shape."""
    user: str | None = None
    outputs: list[str] = []
    for item in items:
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            outputs.append(_text_of(item.get("output")))
        elif item.get("role") == "user":
            user, outputs = _text_of(item.get("content")), []
    return user, tuple(outputs)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "\n".join(part for part in parts if isinstance(part, str))


def mode_of(model: str | None, default: str) -> str:
    """The mode in the name of a mock model."""
    name = (model or "").removeprefix("mock-")
    return name if name in MODES else default


def _tool_call(prompt: Prompt) -> str:
    """The first offered tool's own example (or the forced tool's), exactly as a model would copy it."""
    examples = {found["name"]: found["call"] for found in _EXAMPLE.finditer(prompt.developer)}
    forced = _FORCED.search(prompt.developer)
    if forced and forced[1] in examples:
        return examples[forced[1]]
    if examples:
        return next(iter(examples.values()))
    return '<tool_call>{"name":"mock_tool","arguments":"{\\"value\\":42}"}</tool_call>'


def _usage(prompt: Prompt, text: str) -> dict[str, int]:
    """Four characters a token, roughly; the same for the same request."""
    return {"input": (len(prompt.developer) + len(prompt.user)) // 4 + 1, "output": len(text) // 4 + 1}
