"""What happens at the HTTP edge and to turns, counted as it happens; `metrics` reads it when somebody looks.

All names are bounded (see `bridge.counts`): routes, methods and protocols are ours, models are those that the router
lists, keys stand under their labels, and nothing is counted under what a client writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from bridge.counts import MAX_ROWS, OTHER, Tally, Timings, as_name
from bridge.errors import BridgeError, Overloaded, SlowClient, UpstreamError
from bridge.store.sqlite import UNAVAILABLE
from bridge.tools.stage import Record
from bridge.turn.events import Finished, Usage

METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
MAX_MODELS = 200

Side = Literal["client", "bridge", "backend"]

_OWN_CODES = ("shutdown_initiated", UNAVAILABLE)


def _rows() -> Tally:
    return Tally(MAX_ROWS)


@dataclass(slots=True)
class Counts:
    """One bridge's numbers."""

    requests: Tally = field(default_factory=_rows)
    """By method, route and status; the status of one whose client left before its answer is `none`."""
    seconds: Timings = field(default_factory=Timings)
    """How long requests took to their last byte, by route."""
    refusals: Tally = field(default_factory=Tally)
    """Requests that were refused without a turn, by code: by the gate, and by pages."""
    open: int = 0
    """Requests that are being answered now."""
    sockets: int = 0
    """WebSocket connections that are open now."""
    waiting: int = 0
    """Requests whose turn has not begun yet: for a child, a list of models, a place."""
    turns: Tally = field(default_factory=_rows)
    """By protocol, model and outcome."""
    keys: Tally = field(default_factory=_rows)
    """Turns by the label of the client's key and outcome."""
    failures: Tally = field(default_factory=Tally)
    """Turns that failed or whose client left, by code and whose side it was."""
    tokens: Tally = field(default_factory=_rows)
    """By model and kind."""
    first_event: Timings = field(default_factory=Timings)
    """From a request's arrival to the first event of its answer, by backend."""
    batches: int = 0
    events: int = 0
    keepalives: int = 0
    ignored: int = 0
    """Fields of requests that were left out."""
    repairs: Tally = field(default_factory=Tally)
    """What had to be mended in tool calls, by name."""
    rejections: Tally = field(default_factory=Tally)
    """Blocks that looked like a tool call and were none, by reason."""
    invalid_arguments: int = 0
    """Calls whose arguments are not JSON."""
    _models: set[str] = field(default_factory=set)

    def took_batch(self, size: int) -> None:
        """Some events of an answer were taken together."""
        self.batches += 1
        self.events += size

    def entered(self, is_http: bool) -> None:
        """A request has come, or a WebSocket."""
        self.open += is_http
        self.sockets += not is_http

    def left(self, is_http: bool) -> None:
        """It is over."""
        self.open -= is_http
        self.sockets -= not is_http

    def refused(self, code: str) -> None:
        """A request was refused without a turn."""
        self.refusals.add(as_name(code))

    def ended(self, protocol: str, key: str, model: str, end: Finished, usage: Usage) -> None:
        """A turn is over; `model` is a name that may be told, or `other`."""
        self.turns.add(protocol, model, end.outcome)
        self.keys.add(key or OTHER, end.outcome)
        for kind, tokens in (
            ("input", usage.input),
            ("cached", usage.cached),
            ("output", usage.output),
            ("reasoning", usage.reasoning),
        ):
            if tokens:
                self.tokens.add(model, kind, by=tokens)

    def failed(self, end: Finished) -> None:
        """A request for a turn did not get its answer."""
        if end.error is not None:
            self.failures.add(as_name(end.error.code), side_of(end.error))
        elif end.outcome == "cancelled":
            self.failures.add(as_name(end.reason or end.outcome), "client")

    def known_model(self, name: str, listed: Callable[[], Iterable[str]]) -> str:
        """The name under which a model is counted: its own if the router lists it, else `other`."""
        if name not in self._models:
            if len(self._models) >= MAX_MODELS or name not in listed():
                return OTHER
            self._models.add(name)
        return name

    def tool_calls(self, record: Callable[[str], Record] | None) -> Callable[[str], Record]:
        """What counts repairs and rejections of tool calls in a request's answer, and then tells `record`."""

        def counting(req_id: str) -> Record:
            tell = record(req_id) if record is not None else None

            def note(kind: str, payload: dict[str, Any]) -> None:
                if kind == "tool_repair":
                    for name in payload["repairs"]:
                        self.repairs.add(as_name(name))
                elif kind == "tool_reject":
                    self.rejections.add(as_name(payload["reason"]))
                if tell is not None:
                    tell(kind, payload)

            return note

        return counting


def side_of(error: BridgeError) -> Side:
    """Whose failure it is: the client's request, the bridge itself, or whoever should have answered."""
    if isinstance(error, UpstreamError):
        return "backend"
    if isinstance(error, SlowClient) or error.http_status < 500:
        return "client"
    own = isinstance(error, Overloaded) or type(error) is BridgeError or error.code in _OWN_CODES
    return "bridge" if own else "backend"


def method_of(method: str) -> str:
    """The method of a request as it is counted."""
    return method if method in METHODS else OTHER
