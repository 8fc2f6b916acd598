"""Counts requests and turns as they happen, for `GET /metrics`.

The number of label values is bounded (see `bridge.counts`): routes, methods and protocols are the bridge's own, models
are those that the router lists, keys appear under their labels, and no client can choose a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bridge.core.events import Finished, Usage
from bridge.counts import MAX_ROWS, OTHER, Tally, Timings, as_name
from bridge.errors import BridgeError, Overloaded, SlowClient, UpstreamError
from bridge.store.queued import UNAVAILABLE

if TYPE_CHECKING:
    from bridge.tools.stage import Record

METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
MAX_MODELS = 200

Side = Literal["client", "bridge", "backend"]

_OWN_CODES = ("shutdown_initiated", UNAVAILABLE)


def _rows() -> Tally:
    return Tally(MAX_ROWS)


@dataclass(slots=True)
class Counts:
    """The counters of one bridge."""

    requests: Tally = field(default_factory=_rows)
    """By method, route and status, which is `none` if the client left before the answer."""
    seconds: Timings = field(default_factory=Timings)
    """Time to the last byte, by route."""
    refusals: Tally = field(default_factory=Tally)
    """Requests refused without a turn, by code."""
    open: int = 0
    """Requests being answered."""
    sockets: int = 0
    """Open WebSocket connections."""
    waiting: int = 0
    """Requests whose turn has not begun: they wait for a child, a list of models or a slot."""
    turns: Tally = field(default_factory=_rows)
    """By protocol, model and outcome."""
    keys: Tally = field(default_factory=_rows)
    """Turns by the label of the client's key and outcome."""
    failures: Tally = field(default_factory=Tally)
    """Turns that failed or whose client left, by code and responsible side."""
    tokens: Tally = field(default_factory=_rows)
    """By model and kind."""
    first_event: Timings = field(default_factory=Timings)
    """From the arrival of a request to the first event of its answer, by backend."""
    batches: int = 0
    events: int = 0
    keepalives: int = 0
    ignored: int = 0
    """Fields of requests that had no effect."""
    costs: Tally = field(default_factory=Tally)
    """What models have cost, as `Prices.cost` counts it."""
    repairs: Tally = field(default_factory=Tally)
    """Repairs of tool calls, by name."""
    rejections: Tally = field(default_factory=Tally)
    """Blocks that looked like a tool call but were not, by reason."""
    invalid_arguments: int = 0
    """Calls whose arguments are not JSON."""
    _models: set[str] = field(default_factory=set)

    def took_batch(self, size: int) -> None:
        """Count the events that one `next` returned."""
        self.batches += 1
        self.events += size

    def entered(self, is_http: bool) -> None:
        """A request or a WebSocket begins."""
        self.open += is_http
        self.sockets += not is_http

    def left(self, is_http: bool) -> None:
        """A request or a WebSocket ends."""
        self.open -= is_http
        self.sockets -= not is_http

    def refused(self, code: str) -> None:
        """Count a request refused without a turn."""
        self.refusals.add(as_name(code))

    def ended(self, protocol: str, key: str, model: str, end: Finished, usage: Usage) -> None:
        """Count a finished turn; `model` comes from `known_model`."""
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
        """Count the failure of a turn, if it failed."""
        if end.error is not None:
            self.failures.add(as_name(end.error.code), side_of(end.error))
        elif end.outcome == "cancelled":
            self.failures.add(as_name(end.reason or end.outcome), "client")

    def known_model(self, name: str, listed: Callable[[], Iterable[str]]) -> str:
        """The label of a model: its name if the router lists it, otherwise `other`."""
        if name not in self._models:
            if len(self._models) >= MAX_MODELS or name not in listed():
                return OTHER
            self._models.add(name)
        return name

    def tool_calls(self, record: Callable[[str], Record] | None) -> Callable[[str], Record]:
        """A `record` for a request's tool calls that counts repairs and rejections before it passes them on."""

        def counting(req_id: str) -> Record:
            pass_on = record(req_id) if record is not None else None

            def note(kind: str, payload: dict[str, Any]) -> None:
                if kind == "tool_repair":
                    for name in payload["repairs"]:
                        self.repairs.add(as_name(name))
                elif kind == "tool_reject":
                    self.rejections.add(as_name(payload["reason"]))
                if pass_on is not None:
                    pass_on(kind, payload)

            return note

        return counting


def side_of(error: BridgeError) -> Side:
    """The side responsible for a failure: the client, the bridge itself, or the backend."""
    if isinstance(error, UpstreamError):
        return "backend"
    if isinstance(error, SlowClient) or error.http_status < 500:
        return "client"
    own = isinstance(error, Overloaded) or type(error) is BridgeError or error.code in _OWN_CODES
    return "bridge" if own else "backend"


def method_of(method: str) -> str:
    """The label of a request's method."""
    return method if method in METHODS else OTHER
