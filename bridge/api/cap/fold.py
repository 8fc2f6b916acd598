"""A stream of packets folded into what it comes to: the answer that is not streamed is the same packets, folded."""

from __future__ import annotations

from typing import Any, Literal

from bridge.api.cap.stream import ClosePacket, DeltaPacket, ErrorPacket, StreamError, StreamPacket

INCOMPLETE = 206
"""The code of the notice that an answer was cut."""

ConversationState = Literal["new", "continued"]
"""Whether there are earlier turns in the conversation of a request."""


class TurnFold:
    """The packets of one turn, so far. After the close packet nothing is taken."""

    def __init__(self) -> None:
        self.closed = False
        self.error: StreamError | None = None
        self.metrics: dict[str, Any] | None = None
        self._pieces: list[str] = []
        self._status = "completed"
        self._lists: dict[str, list[Any]] = {"citations": [], "tool_calls": [], "reasoning": [], "notices": []}

    def __repr__(self) -> str:
        return f"<TurnFold pieces={len(self._pieces)} error={self.error is not None} closed={self.closed}>"

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(self._pieces)

    def add(self, packet: StreamPacket) -> None:
        """Take the next packet in. Raises ValueError for one after the close packet, or after an error."""
        if self.closed or (self.error is not None and not isinstance(packet, ClosePacket)):
            raise ValueError("a packet after the end of its stream")
        if isinstance(packet, DeltaPacket):
            self._pieces.append(packet.p)
        elif isinstance(packet, ErrorPacket):
            self.error = packet.p
        elif isinstance(packet, ClosePacket):
            self.closed = True
        elif isinstance(packet.p, dict) and isinstance(data := packet.p.get("data"), dict):
            self._event(packet.p.get("type"), data)

    def output(self, conversation: tuple[str, ConversationState] | None) -> dict[str, Any]:
        """The `output` of a ServiceResponse; the conversation's id and state are not in the stream."""
        about = (
            {} if conversation is None else dict(zip(("conversation_id", "conversation"), conversation, strict=True))
        )
        lists = {name: found for name, found in self._lists.items() if found}
        return {"text": self.text, **about, "status": self._status, **lists}

    def _event(self, kind: Any, data: dict[str, Any]) -> None:
        if kind == "citation_block":
            self._lists["citations"] += data.get("items", ())
        elif kind == "tool_call":
            if data.get("state") != "running":
                self._lists["tool_calls"].append(data)
        elif kind == "thought_trace":
            if data.get("final") is not False:
                self._lists["reasoning"].append({name: value for name, value in data.items() if name != "final"})
        elif kind == "user_error":
            self._lists["notices"].append(data)
            if data.get("code") == INCOMPLETE:
                self._status = "incomplete"
        elif kind == "metrics":
            self.metrics = data
