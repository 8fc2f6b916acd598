"""Which backend serves a model, and under which name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import trio

from bridge.appserver.standin.script import MODES
from bridge.backends.app_server import AppServerBackend
from bridge.backends.base import Backend
from bridge.errors import ModelNotFound, NotReady
from bridge.turn.models import DEFAULT_ALIASES, EFFORT_SUFFIXES, ModelChoice, resolve_model

MOCK_MODELS = tuple(f"mock-{mode}" for mode in MODES)
FALLBACK_MODEL = "gpt-5.2-codex"


class Router:
    """The mock models go to the stand-in, everything else to Codex (None when there is only the stand-in)."""

    def __init__(
        self,
        mock: Backend,
        codex: AppServerBackend | None,
        aliases: Mapping[str, str] = DEFAULT_ALIASES,
    ) -> None:
        self.mock = mock
        self.codex = codex
        self._aliases = aliases

    def resolve(self, requested: str) -> ModelChoice:
        """The model behind a name. Raises ModelNotFound naming some that exist."""
        if requested.lower() in MOCK_MODELS:
            return ModelChoice(requested, requested.lower())
        if self.codex is not None:
            choice = resolve_model(
                requested,
                known=self.codex.models(),
                default=self.codex.default_model(FALLBACK_MODEL),
                aliases=self._aliases,
            )
            if choice is not None:
                return choice
        raise ModelNotFound(requested, self.models())

    def backend(self, model: str) -> Backend:
        """The backend of an effective model."""
        return self.mock if self.codex is None or model in MOCK_MODELS else self.codex

    def models(self) -> list[str]:
        """All names that a request may use: listed models, with their efforts, aliases, mock models.

        Where it is known that nobody is logged in, Codex's models are left out: none of them could answer.
        """
        if self.codex is None or not self.codex.can_answer:
            return list(MOCK_MODELS)
        with_efforts = [
            f"{model}-{effort}"
            for model, efforts in self.codex.efforts().items()
            for effort in efforts
            if f"-{effort}" in EFFORT_SUFFIXES
        ]
        return list(dict.fromkeys([*self.codex.models(), *MOCK_MODELS, *self._aliases, *with_efforts]))

    async def wait_until_known(self, patience: float | None = None) -> None:
        """Until Codex has told its models. Raises NotReady, unless only so much `patience` was asked for."""
        if self.codex is None:
            return
        if patience is None:
            await self.codex.wait_until_known()
            return
        with trio.move_on_after(patience), suppress(NotReady):
            await self.codex.wait_until_known()

    async def read_rate_limits(self) -> Mapping[str, Any] | None:
        """What Codex knows of its account's quota now."""
        return None if self.codex is None else await self.codex.read_rate_limits()
