"""What the battery wants of every provider: to answer in a certain way, and to tell what it was sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

Json = dict[str, Any]
Call = tuple[str, str]
"""A function's name, and its arguments as JSON."""

USAGE = (11, 3, 7)
"""Input, cached and output tokens of every answer."""
SIGNATURE = "c2lnbmVkLW9yLWVuY3J5cHRlZA=="
"""What the providers give with a thought, to have it back."""
RETRY_AFTER = 31
"""Seconds that a provider wants to be left alone: more than the bridge itself would wait."""


class Provider(ABC):
    """Answers are given in the order in which they were asked for here. `model` is a name that leads to it."""

    model: str
    usage = USAGE

    @abstractmethod
    def says(self, *pieces: str) -> str:
        """Will answer with a text; the text that is to be seen."""

    @abstractmethod
    def calls(self, *calls: Call) -> list[Call]:
        """Will call functions; the calls that are to be seen."""

    @abstractmethod
    def thinks(self, thought: str, *calls: Call) -> None:
        """Will think, with SIGNATURE where it signs, then call functions, or say `Done.`"""

    @abstractmethod
    def refuses(self, status: int, message: str) -> None:
        """Will refuse with 400, or with 429 and RETRY_AFTER."""

    @abstractmethod
    def cuts(self, text: str) -> None:
        """Will reach its limit of tokens after this text."""

    @abstractmethod
    def holds(self, text: str) -> None:
        """Will say this and then nothing more."""

    @abstractmethod
    def wait_until_held(self) -> None:
        """Until it has said that."""

    @abstractmethod
    def left_at(self) -> float:
        """Waits until nobody listens to it any more; when that was (`time.monotonic`)."""

    @abstractmethod
    def images(self) -> list[str]:
        """The images of the last request, as data URLs, read from where the API wants them."""

    @abstractmethod
    def outputs(self) -> list[str]:
        """The outputs of calls in the last request."""

    @abstractmethod
    def thoughts(self) -> list[str]:
        """The signatures of the thoughts in the last request."""

    @abstractmethod
    def settle(self) -> None:
        """At the end of a test: fails where something wrong was sent, or an answer was never asked for."""
