"""What the stand-in does in a turn: a list of steps, from a mode or from a JSON script. Pure.

A script is `{"turns": [{"steps": [...]}, …]}` (the last turn repeats), with optional process-wide members;
`docs/standin.md` lists them all. A mode looks at the prompt, as a model would, and answers with steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from bridge.errors import ConfigError

MODES = ("echo", "text", "tool-call", "tool-loop")
MOCK_TEXT = "mock response text"
MOCK_RESULT = "mock tool result: ok"
STEP_KINDS = frozenset(
    {
        "deltas", "text", "chunk", "reasoning", "raw_reasoning", "usage", "error", "retry", "sleep", "garbage",
        "exit", "signal", "hang", "flood", "stderr", "close_stdout", "request", "no_delta", "interrupted",
    }
)  # fmt: skip

_EXAMPLE = re.compile(
    r"^Tool: (?P<name>.+?)$.*?^Example tool_call:\n(?P<call><tool_call>.*?</tool_call>)$", re.M | re.S
)
_FORCED = re.compile(r'^Tool choice is forced: you MUST call "(.+)"\.$', re.M)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a turn was asked: the developer text, the last user text, and whether a tool has answered since."""

    developer: str = ""
    user: str = ""
    has_output: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script. `mute` methods are never answered, `refuse` ones get that error; `split` cuts all output."""

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
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"The script is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("turns"), list) or not data["turns"]:
        raise ConfigError('A script is an object with a non-empty list "turns".')
    turns = tuple(tuple(turn["steps"]) for turn in data["turns"])
    startup = tuple(data.get("startup", ()))
    for step in (*startup, *(step for turn in turns for step in turn)):
        unknown = set(step) - STEP_KINDS
        if unknown or not step:
            raise ConfigError(f"Unknown step {step!r}; known: {', '.join(sorted(STEP_KINDS))}")
    return Script(
        turns,
        startup,
        frozenset(data.get("mute", ())),
        data.get("refuse", {}),
        data.get("split", 0),
        data.get("ignore_sigterm", False),
        data.get("ignore_eof", False),
        data.get("user_agent"),
    )


def steps_for_mode(mode: str, prompt: Prompt) -> list[dict[str, Any]]:
    """The steps of one turn in a mode."""
    if mode == "echo":
        text = prompt.user or "(nothing to echo)"
    elif mode == "tool-call" or (mode == "tool-loop" and not prompt.has_output):
        text = _tool_call(prompt)
    elif mode == "tool-loop":
        text = MOCK_RESULT
    else:
        text = MOCK_TEXT
    return [{"text": text, "chunk": 6}, {"usage": _usage(prompt, text)}]


def mode_of(model: str | None, default: str) -> str:
    """The mode that a mock model's name asks for."""
    name = (model or "").removeprefix("mock-")
    return name if name in MODES else default


def _tool_call(prompt: Prompt) -> str:
    """The first offered tool's own example (or the forced tool's), word for word, as a model would copy it."""
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
