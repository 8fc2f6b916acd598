"""The app-server as a backend: a supervised child, and the tool calls in its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import trio

from bridge.appserver.dialect import DialectName
from bridge.appserver.pool import Pool
from bridge.appserver.stream import TurnStream
from bridge.backends.base import EventStream
from bridge.errors import InvalidRequest, Overloaded, UpstreamError
from bridge.tools.instructions import build_instructions
from bridge.tools.schema import compact_json
from bridge.tools.stage import Record, ToolStage
from bridge.turn.events import TurnEvent
from bridge.turn.turn import Turn

LARGE_SCHEMAS = 32 * 1024
MAX_SCHEMAS = 4 * 1024 * 1024

NOT_LOGGED_IN = (
    "Codex is not logged in. Run `codex login` (add --device-auth on a machine without a browser; the Codex that "
    "scripts/serve installs is .venv/bin/codex), then try again. The mock models work without a login."
)


class ParsedStream:
    """A turn's events with the `<tool_call>` blocks of its text parsed."""

    def __init__(self, stream: TurnStream, stage: ToolStage) -> None:
        self._stream = stream
        self._stage = stage

    async def next(self) -> list[TurnEvent]:
        while not (events := self._stage.feed(await self._stream.next())):
            pass
        return events

    def close(self) -> None:
        self._stream.close()


class AppServerBackend:
    """Turns in the children of a pool.

    `configured` are models that the operator or CODEX_HOME name beside those that the child lists; `recorder(req_id)`
    gives the place where tool parsing is noted.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        *,
        new_id: Callable[[str], str],
        configured: Sequence[str] = (),
        max_turns: int = 256,
        recorder: Callable[[str], Record] | None = None,
    ) -> None:
        self.name = name
        self.pool = pool
        self._new_id = new_id
        self._configured = tuple(configured)
        self._max_turns = max_turns
        self._recorder = recorder

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        child = await self.pool.acquire()
        if await child.check_login() == "missing":
            raise UpstreamError(NOT_LOGGED_IN, code="codex_not_logged_in", http_status=401, kind="authentication_error")
        if turn.functions:
            turn = replace(turn, tool_text=await _tool_text(turn))
        record = self._recorder(req_id) if self._recorder else None
        stage = ToolStage(turn, self._new_id, record) if turn.parses_tool_calls else None
        # Nothing waits between this check and the start, so that the limit holds.
        if self.pool.turns >= self._max_turns:
            raise Overloaded(f"{self._max_turns} turns are running already; try again in a moment.", retry_after=1)
        stream = child.start(turn, req_id)
        return stream if stage is None else ParsedStream(stream, stage)

    def models(self) -> list[str]:
        listed = [entry["id"] for entry in self._listed() if entry.get("hidden") is not True]
        return list(dict.fromkeys([*listed, *self._configured]))

    def default_model(self, fallback: str) -> str:
        """The model for a request that names the default: the configured one, else the child's own default."""
        if self._configured:
            return self._configured[0]
        for entry in self._listed():
            if entry.get("isDefault"):
                return str(entry["id"])
        return fallback

    @property
    def dialect(self) -> DialectName | None:
        """How the child is spoken to, once that is known."""
        child = self.pool.child
        return child.info.dialect if child is not None and child.info is not None else None

    def status(self) -> tuple[bool, str]:
        state, reason = self.pool.status()
        return state == "handshake_complete", f"{state}: {reason}"

    def _listed(self) -> list[dict[str, Any]]:
        child = self.pool.child
        return child.models if child is not None else []


async def _tool_text(turn: Turn) -> str:
    """The injected text, built beside the event loop when the schemas are large: each gets an example made for it."""
    size = sum(len(compact_json(tool.parameters)) for tool in turn.functions)
    if size > MAX_SCHEMAS:
        raise InvalidRequest(f"The tools' schemas are larger than {MAX_SCHEMAS:,} bytes.", param="tools")
    if size < LARGE_SCHEMAS:
        return build_instructions(turn.functions, turn.tool_choice)
    return await trio.to_thread.run_sync(build_instructions, turn.functions, turn.tool_choice)
