"""The child of a soak: the stand-in, which performs the steps that the client's own message holds (docs/standin.md)."""

from __future__ import annotations

import sys

import orjson
import trio

from bridge.appserver.standin import server
from bridge.appserver.standin.script import Prompt


def steps(mode: str, prompt: Prompt) -> list[dict]:
    """The steps in the last user message. With tools in the request, tags in it arrive escaped."""
    return orjson.loads(prompt.user.replace("&lt;", "<"))["steps"]


server.steps_for_mode = steps
trio.run(server.Standin(dialect=sys.argv[1]).run)
