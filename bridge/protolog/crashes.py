"""How a child ended, beside the turns that it took along. Pure.

Its exit code and its last words are known once it has been waited for. That may be seconds after its turns failed.
"""

from __future__ import annotations

import re
import signal
from typing import Any

from bridge.protolog.loose import member, text_of
from bridge.protolog.read import request_of

EXIT = "backend_exit"
_CRASHED = "backend_crashed"
BEFORE, AFTER = 1.0, 15.0
"""Seconds around the end of a turn in which the exit of its child is recorded."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def is_crash(end: Any) -> bool:
    """Whether a turn with this `turn_end` failed because its child ended."""
    return bool(member(end, "error", "code") == _CRASHED)


def ends_turn(exit: dict[str, Any], name: str, run: str, end: float) -> bool:
    """Whether the child with this exit record took the request along, which ended at `end`.

    Older logs do not name the requests: there it is the exit next to their end.
    """
    named = member(exit.get("payload"), "ended_requests")
    if isinstance(named, list):
        return name in {request_of(each)[0] for each in named if isinstance(each, str)}
    return bool(exit.get("run", "") == run and -BEFORE <= exit["mono"] - end <= AFTER)


def exit_cause(exit: Any) -> str:
    """How the child ended, in words that follow "The child"."""
    code = member(exit, "code")
    if not isinstance(code, int):
        return "has ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def last_words(exit: Any) -> str:
    """What it wrote to stderr last, without colours."""
    return _ESCAPES.sub("", text_of(member(exit, "stderr"))).strip()
