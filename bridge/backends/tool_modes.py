"""How tools are offered to which model, and for which client: in text or natively. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from bridge.backends.routing import best_rule, make_rule
from bridge.errors import InvalidRequest

ToolMode = Literal["text", "native"]
HEADER = b"x-bridge-tool-mode"
NONE: Mapping[str, ToolMode] = {}


class ToolModes:
    """The operator's choices by model and by key, each a pattern as in routing. A key's choice wins over a model's."""

    def __init__(self, models: Mapping[str, ToolMode] = NONE, keys: Mapping[str, ToolMode] = NONE) -> None:
        self._models = [make_rule(pattern, mode) for pattern, mode in models.items()]
        self._keys = [make_rule(pattern, mode) for pattern, mode in keys.items()]

    def offers_natively(self, key: str, model: str, asked: bytes | None = None) -> bool | None:
        """Whether this request's tools are native; None where no choice matches, so that the general setting applies.

        `asked` is the value of the request's own header, which wins. Raises InvalidRequest for an unknown value.
        """
        if asked is not None:
            if asked not in (b"text", b"native"):
                raise InvalidRequest("Invalid X-Bridge-Tool-Mode. Use 'text' or 'native'.", code="invalid_tool_mode")
            return asked == b"native"
        found = best_rule(key, self._keys) or best_rule(model, self._models)
        return None if found is None else found.target == "native"
