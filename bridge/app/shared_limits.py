"""What admission needs of limits that several bridges count together; `bridge/shared` implements it."""

from __future__ import annotations

from typing import Protocol


class SharedLimits(Protocol):
    """The limits of keys, counted over several bridges."""

    known: int
    """How many bridges there are."""
    failures: int
    fault: str | None
    """Why this bridge counts alone."""

    @property
    def alone(self) -> int:
        """Among how many bridges a limit is divided that this one enforces alone."""

    async def take_request(self, label: str, per_minute: int, left: float) -> tuple[bool, float] | None:
        """Whether a request may begin, and how many are left; None if this bridge must decide by its own count."""

    async def take_turns(self, label: str, turns: int, limit: int) -> bool:
        """Count turns of a key unless there are too many over all bridges."""

    def hold_turns(self, label: str, turns: int) -> None:
        """Count turns of a key in any case: they take the place of others."""

    def free_turns(self, label: str, turns: int) -> None:
        """Turns of a key have ended."""
