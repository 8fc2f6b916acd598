"""The mock models in the words of the battery: what they will say is known, but they cannot be told."""

from __future__ import annotations

from typing import Any

from matrix.provider import Call, Provider


class Mock(Provider):
    """The mock models. Only `says`, `calls` and `usage` make sense for them."""

    model = "mock-text"

    def says(self, *pieces: str) -> str:
        return "mock response text" if self.model == "mock-text" else "mock tool result: sunny, 21 °C"

    def calls(self, *calls: Call) -> list[Call]:
        self.model = "mock-tool-loop"
        # An example of the schema, which has one for its only property.
        return list(calls)

    def settle(self) -> None:
        self.model = Mock.model

    def _impossible(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a mock model does no such thing")

    thinks = refuses = cuts = holds = wait_until_held = _impossible
    left_at = images = outputs = thoughts = _impossible
