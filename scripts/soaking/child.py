"""The child of a soak: the stand-in, which performs the steps that the client's own message holds (docs/standin.md)."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import trio

from bridge.appserver.standin import Prompt
from bridge.appserver.standin.server import Standin


def steps(mode: str, prompt: Prompt) -> list[dict[str, Any]]:
    """The steps in the last user message. With tools in the request, tags in it arrive escaped."""
    found: list[dict[str, Any]] = orjson.loads(prompt.user.replace("&lt;", "<"))["steps"]
    return found


dialect: Any = sys.argv[1]  # `running.py` passes a valid one
trio.run(Standin(dialect=dialect, steps=steps).run)
