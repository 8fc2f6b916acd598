"""Any server that speaks the Responses API as a backend: the turn's items go to it as they are."""

from __future__ import annotations

from functools import partial
from typing import Any

from bridge.backends.base import Abilities
from bridge.backends.responses.body import build_body, build_plain, check_pairs
from bridge.backends.responses.decode import ResponsesBuffer
from bridge.backends.upstream.backend import Door, UpstreamBackend
from bridge.backends.upstream.buffer import UpstreamBuffer
from bridge.backends.upstream.client import Upstream
from bridge.turn.thoughts import seal
from bridge.turn.turn import CODEX_TIERS, Turn


class ResponsesApi:
    """The Responses API as Codex uses it (seed 001), streamed and not stored."""

    takes = Abilities(counts_tokens=True, hosted_tools=True, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        check_pairs(turn.items)
        return build_body(turn, session)

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        return ResponsesBuffer(turn.functions, partial(seal, turn))

    def drops(self, turn: Turn) -> list[str]:
        return ["service_tier"] if turn.service_tier is not None and turn.service_tier not in CODEX_TIERS else []


class PlainResponsesApi(ResponsesApi):
    """The Responses API as others have it: nothing is asked for that the client did not ask for."""

    takes = Abilities(sampling=True, hosted_tools=True, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        return build_plain(super().build(turn, session), turn)

    def drops(self, turn: Turn) -> list[str]:
        return []


class ResponsesBackend(UpstreamBackend):
    """Turns over a server of the Responses API."""

    def __init__(self, name: str, upstream: Upstream, door: Door, **options: Any) -> None:
        super().__init__(name, upstream, ResponsesApi(), door, **options)
