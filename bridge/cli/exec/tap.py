"""What --trace, --log-requests and --log-events see of a Codex app-server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.appserver.requests import TOOL_CALL
from bridge.appserver.tap import Owner, Tap

_PROMPTING = frozenset(
    {"thread/start", "thread/inject_items", "turn/start", "newConversation", "sendUserTurn", "sendUserMessage"}
)
"""The calls that make up a turn, in both dialects."""


class ExecTap:
    """Hands each line from the child to `trace`, and each call of a turn, and each output that it gets, to `sent`."""

    def __init__(self, *, sent: Callable[[bytes], None], trace: Callable[[bytes], None]) -> None:
        self._sent = sent
        self._trace = trace

    def begin_read(self) -> None:
        pass

    def end_read(self) -> None:
        pass

    def deltas(self, lines: list[bytes], texts: list[str], owners: list[Owner]) -> None:
        for line in lines:
            self._trace(line)

    def rpc(
        self,
        direction: str,
        kind: str,
        line: bytes,
        *,
        method: str | None = None,
        rpc_id: int | str | None = None,
        key: str | None = None,
        req_id: str | None = None,
    ) -> None:
        if direction == "in":
            self._trace(line)
        elif (kind == "rpc_request" and method in _PROMPTING) or (kind == "server_reply" and method == TOOL_CALL):
            self._sent(line)

    def claim(self, key: str, req_id: str | None) -> None:
        pass

    def forget(self, key: str) -> None:
        pass

    def lifecycle(self, kind: str, payload: dict[str, Any]) -> None:
        pass


class Taps:
    """Several taps that see the same."""

    def __init__(self, *taps: Tap) -> None:
        self._taps = taps

    def begin_read(self) -> None:
        for tap in self._taps:
            tap.begin_read()

    def end_read(self) -> None:
        for tap in self._taps:
            tap.end_read()

    def deltas(self, lines: list[bytes], texts: list[str], owners: list[Owner]) -> None:
        for tap in self._taps:
            tap.deltas(lines, texts, owners)

    def rpc(
        self,
        direction: str,
        kind: str,
        line: bytes,
        *,
        method: str | None = None,
        rpc_id: int | str | None = None,
        key: str | None = None,
        req_id: str | None = None,
    ) -> None:
        for tap in self._taps:
            tap.rpc(direction, kind, line, method=method, rpc_id=rpc_id, key=key, req_id=req_id)

    def claim(self, key: str, req_id: str | None) -> None:
        for tap in self._taps:
            tap.claim(key, req_id)

    def forget(self, key: str) -> None:
        for tap in self._taps:
            tap.forget(key)

    def lifecycle(self, kind: str, payload: dict[str, Any]) -> None:
        for tap in self._taps:
            tap.lifecycle(kind, payload)
