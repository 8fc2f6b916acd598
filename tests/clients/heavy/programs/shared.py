"""What the client programs share: the functions that they execute, the object that they ask for, the loop over cases.

A program defines one function per case and ends with ``serve(plain, streamed, …)``. Each is called with the parameters
of its line, and gives the members of the reply. Which functions a model made the client execute is told in each reply.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

BASE_URL = os.environ["OPENAI_BASE_URL"]
API_KEY = os.environ["OPENAI_API_KEY"]
MODEL = os.environ["BRIDGE_MODEL"]

Reply = dict[str, Any]


# The functions that are offered to the model

executed: list[tuple[str, dict[str, Any]]] = []
"""The calls of the case that is running."""


def look(q: str) -> str:
    """Look something up."""
    executed.append(("look", {"q": q}))
    return f"found {q}"


def add(a: int, b: int) -> str:
    """Add two numbers."""
    executed.append(("add", {"a": a, "b": b}))
    return f"sum {a + b}"


def clock() -> str:
    """Tell the time."""
    executed.append(("clock", {}))
    return "it is noon"


FUNCTIONS = (look, add, clock)


class City(BaseModel):
    """A city."""

    name: str
    people: int
    districts: list[str]


# The loop


def serve(*cases: Callable[..., Any]) -> None:
    """Answer line by line until the input ends. A case is called by its function's name."""
    asyncio.run(_serve({case.__name__: case for case in cases}))


async def _serve(cases: dict[str, Callable[..., Any]]) -> None:
    # What a library prints goes to stderr: standard output is for replies alone.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # The event loop runs on between two cases, as in an application: clients clean up in it.
    while line := await asyncio.to_thread(sys.stdin.readline):
        parameters = json.loads(line)
        reply = await _run(cases[parameters.pop("case")], parameters)
        print(json.dumps(reply), file=replies, flush=True)


async def _run(case: Callable[..., Any], parameters: dict[str, Any]) -> Reply:
    executed.clear()
    try:
        if inspect.iscoroutinefunction(case):
            result = await case(**parameters)
        else:
            result = await asyncio.to_thread(case, **parameters)
        return {"ok": {**result, "executed": executed}}
    except Exception as error:
        return {"error": {"type": type(error).__name__, "message": str(error), "status": _status(error)}}


def _status(error: Exception) -> int | None:
    return getattr(error, "status_code", None)
