"""What the client's functions are called upstream, and back.

Chat completions know no namespaces and no dots: a name has up to 64 letters, digits, underscores and dashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bridge.turn.items import FunctionTool

MAX_NAME = 64
_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ODD = re.compile(r"[^A-Za-z0-9_-]")


class ToolNames:
    """The functions of one request under names that are legal and that no two of them share."""

    def __init__(self, functions: Iterable[FunctionTool]) -> None:
        functions = tuple(functions)
        self._names: dict[str, str] = {}
        # Whoever has a legal name keeps it, wherever it stands in the list.
        for tool in sorted(functions, key=lambda tool: _LEGAL.fullmatch(tool.full_name) is None):
            self._names[tool.full_name] = self._free(legal_name(tool.full_name))
        self.tools = {self._names[tool.full_name]: tool for tool in functions}
        """By their names upstream, in the client's order."""

    def of(self, full_name: str) -> str:
        """What a function is called upstream; also one of the past, which is not offered any more."""
        return self._names.get(full_name) or legal_name(full_name)

    def _free(self, name: str) -> str:
        taken = set(self._names.values())
        free, number = name, 2
        while free in taken:
            ending = f"_{number}"
            free = name[: MAX_NAME - len(ending)] + ending
            number += 1
        return free


def legal_name(full_name: str) -> str:
    """The nearest name that is legal; two may become the same."""
    return _ODD.sub("_", full_name.replace(".", "__"))[:MAX_NAME] or "_"
