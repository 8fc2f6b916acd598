"""TurnEvents as a Responses event stream, and as a response object.

The order is the API's: created, in_progress, then for each item added, its parts and deltas, done; one terminal event.
A call is cut off, and incomplete, if anything but its arguments follows its beginning. `sequence_number` counts from 0
without gaps. A delta costs one bytes template and one `orjson.dumps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from orjson import dumps

from bridge import exact_json
from bridge.core.events import CANCELLED, Finished, Restarted, TurnEvent
from bridge.core.turn import Turn
from bridge.protocols.client import AnswerContext, ClientProtocol, Json, NewId
from bridge.protocols.dropped import dropped_fields
from bridge.protocols.reading import parse_request
from bridge.protocols.responses.item_encoder import TEXT_DELTA, DeltaFrame, ItemEncoder
from bridge.protocols.responses.response import Echo, echo_of, error_object, usage_object
from bridge.protocols.sse import interrupted, join_events


class ResponsesEncoder(ItemEncoder):
    """One response. If not `streaming`, no events are written: there is only a `body`, and the upstream may restart."""

    def __init__(
        self,
        echo: Echo,
        new_id: NewId,
        *,
        created_at: int,
        streaming: bool = True,
        now: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(new_id, streaming=streaming)
        self.id = new_id("resp")
        self.created_at = created_at
        self.final: Json | None = None
        """The response object at its end."""
        self._echo = echo
        self._now = now or (lambda: created_at)
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<ResponsesEncoder {self.id} items={len(self.output)} finished={self.finished}>"

    def begin(self) -> bytes:
        response = self.snapshot()
        self._emit("response.created", response=response)
        self._emit("response.in_progress", response=response)
        return self._take()

    def feed(self, events: list[TurnEvent]) -> bytes:
        self._encode(events)
        return self._take()

    def body(self) -> bytes:
        assert self.final is not None
        return exact_json.dumps(self.final)

    def snapshot(self) -> Json:
        """The response object so far."""
        return self._response("in_progress")

    @property
    def text(self) -> str:
        """The text of all finished messages."""
        messages = [item["content"] for item in self.output if item["type"] == "message"]
        return "".join(part["text"] for content in messages for part in content)

    def _delta_frame(self, kind: str, where: Json) -> DeltaFrame:
        # `sequence_number` is the only other member that changes from one delta to the next.
        name, members = kind.encode(), dumps(where)[1:-1]
        head = b'event: %b\ndata: {"type":"%b",' % (name, name)
        if kind == TEXT_DELTA:
            return head + members + b',"sequence_number":', b',"delta":'
        return head + b'"sequence_number":', b"," + members + b',"delta":'

    def _write_deltas(self, frame: DeltaFrame, pieces: list[str]) -> None:
        if not self._streaming:
            return
        out, number = self._out, self._sequence
        head, middle = frame
        for piece in pieces:
            out.append(b"%b%d%b%b}\n\n" % (head, number, middle, dumps(piece)))
            number += 1
        self._sequence = number

    def _restart(self, event: Restarted) -> None:
        if self._streaming:
            super()._restart(event)
        else:
            self.output.clear()
            self._open = None
            self.visible = False

    def _finish(self, end: Finished) -> None:
        self._close_open("completed" if end.outcome == "completed" else "incomplete")
        self.finished = True
        # A cancelled response has a status but no event of its own in the API.
        kind, status, members = "incomplete", "incomplete", Json()
        if end.outcome == "completed":
            kind = status = "completed"
            members["completed_at"] = int(self._now())
        elif end.outcome == "cancelled" and end.reason == CANCELLED:
            status = "cancelled"
        elif end.outcome == "incomplete":
            members["incomplete_details"] = {"reason": end.reason or "unknown"}
        else:
            kind = status = "failed"
            self.failure = end.error or interrupted()
            members["error"] = error_object(self.failure)
        self.final = self._response(status, **members)
        self._emit(f"response.{kind}", response=self.final)

    def _response(self, status: str, **members: Any) -> Json:
        usage = usage_object(self.usage) if status != "in_progress" and self.usage else None
        return self._echo.response(
            self.id, self.created_at, status=status, output=list(self.output), usage=usage, **members
        )

    def _emit(self, kind: str, **members: Any) -> None:
        if not self._streaming:
            return
        payload = {"type": kind, "sequence_number": self._sequence, **members}
        self._sequence += 1
        # Not joined here: a text may be large, and would be copied twice.
        self._out += (b"event: %b\ndata: " % kind.encode(), exact_json.dumps(payload), b"\n\n")

    def _take(self) -> bytes:
        out, self._out = self._out, []
        return join_events(out)


def make_encoder(turn: Turn, data: Json, context: AnswerContext) -> ResponsesEncoder:
    """The encoder of the answer to a body."""
    echo = echo_of(data, turn, store=context.stored)
    return ResponsesEncoder(
        echo, context.new_id, created_at=int(context.now()), streaming=bool(turn.stream), now=context.now
    )


def _parse(data: Json, context: Sequence[Json]) -> Turn:
    # A chat body may ask for several choices, but a response is one answer.
    turn = parse_request(data, "responses", context)
    return turn if turn.n is None else replace(turn, n=None)


RESPONSES = ClientProtocol(
    "responses",
    "/v1/responses",
    parse=_parse,
    make_encoder=make_encoder,
    dropped_fields=lambda data, turn, takes: dropped_fields(data, turn, "responses", takes),
    operation="createResponse",
    summary="Create a response",
    description="A response, streamed or not. A WebSocket at the same path accepts `response.create` messages.",
    answer="Response",
    tag="Responses",
    keeps_answers=True,
)
