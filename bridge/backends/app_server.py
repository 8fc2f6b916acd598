"""The app-server as a backend: a supervised child, and the tool calls in its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge.appserver.pool import Pool
from bridge.appserver.stream import TurnStream
from bridge.backends.base import EventStream
from bridge.errors import Overloaded, UpstreamError
from bridge.tools.stage import Record, ToolStage
from bridge.turn.events import TurnEvent
from bridge.turn.turn import Turn

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
        if self.pool.turns >= self._max_turns:
            raise Overloaded(f"{self._max_turns} turns are running already; try again in a moment.", retry_after=1)
        child = await self.pool.acquire()
        if child.logged_in is False:
            raise UpstreamError(NOT_LOGGED_IN, code="codex_not_logged_in", http_status=401, kind="authentication_error")
        stream = child.start(turn, req_id)
        if not turn.parses_tool_calls:
            return stream
        try:
            record = self._recorder(req_id) if self._recorder else None
            return ParsedStream(stream, ToolStage(turn, self._new_id, record))
        except BaseException:
            stream.close()
            raise

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

    def status(self) -> tuple[bool, str]:
        state, reason = self.pool.status()
        return state == "handshake_complete", f"{state}: {reason}"

    def _listed(self) -> list[dict[str, Any]]:
        child = self.pool.child
        return child.models if child is not None else []
