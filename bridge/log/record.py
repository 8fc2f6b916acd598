"""The records of an event log, as lines. Pure: time comes in, bytes go out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from bridge import __version__, exact_json
from bridge.core.events import Choice, Finished, Rerouted, ToolCall, TurnEvent, Usage
from bridge.core.observer import Fallback, Observer, Owner, TurnFacts
from bridge.core.prices import NO_PRICES, Prices, amount
from bridge.errors import BridgeError, Forbidden, InvalidRequest, Unauthorized, UpstreamError
from bridge.exact_json import is_json
from bridge.redact import POLICY, Redactor

FORMAT = 2
"""2 has the run in every record, attempts of one request (`req_id#n`), and the head of each answer."""
TURNS_PER_MODEL = 1000
"""The numbers of attempts that belong to one model: those of the first fallback begin at 1000."""
GARBAGE_KEPT = 4096
TOKENS = {
    "input_tokens": "input",
    "cached_tokens": "cached",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
}
"""The counts of tokens in a log, and their names in `Usage`."""


class Recorder:
    """Builds the lines and passes them to `write`; also the tap of the child (see `bridge.appserver.connection`).

    `now()` returns (ISO time, monotonic seconds); `run` distinguishes this process from others that write to the same
    file. Lines of one read of the child share a time and a chunk number, so that a replay can read in the same pieces.
    """

    wants_lines = True
    keeps_answers = True

    def __init__(
        self,
        write: Callable[[bytes], None],
        now: Callable[[], tuple[str, float]],
        redactor: Redactor,
        run: str,
    ) -> None:
        self.run = run
        self.turns = 0
        """How many turns have ended, and `failed` of them."""
        self.failed = 0
        self._run = run.encode()
        self._write = write
        self._now = now
        self._redactor = redactor
        self._seq = 0
        self._chunk = 0
        self._stamp = b""
        self._reading = False
        self._parts: list[bytes] = []
        self._owners: dict[str, str] = {}
        self._delta_heads: dict[str, bytes] = {}

    def header(self, **members: Any) -> bytes:
        self._restamp()
        about = {"format": FORMAT, "program": f"turnbridge {__version__}", "redaction": POLICY, **members}
        head = {"phase": "header", "direction": "none", "kind": "header", "req_id": None}
        self._seq += 1
        return b"%b%d,%b}\n" % (self._stamp, self._seq - 1, orjson.dumps(head | about)[1:-1])

    def observers(self, prices: Prices) -> Sequence[Observer]:
        """What writes the arrival, start and end of each request."""
        return (LogObserver(self, prices),)

    # The child

    def connect(self) -> Recorder:
        return self

    def read(self, data: bytes, *, is_first: bool) -> None:
        """Its lines follow, each with what was found in it."""

    def begin_read(self) -> None:
        self._chunk += 1
        self._restamp(b'"chunk":%d,' % self._chunk)
        self._reading = True

    def end_read(self) -> None:
        self._reading = False
        self._flush()

    def deltas(self, lines: list[bytes], texts: list[str], owners: list[Owner]) -> None:
        suspicious = self._redactor.suspicious
        # Everything else in these lines is ids; one search of the joined texts is enough for most of them.
        if suspicious("".join(texts)):
            lines = [
                self._redactor.json(line) if suspicious(text) else line for line, text in zip(lines, texts, strict=True)
            ]
        first, count = owners[0], len(owners)
        if owners[-1] is first and owners.count(first) == count:
            heads = [self._delta_head(lines[0], first)] * count
        else:
            try:
                heads = [self._delta_heads[owner.key or ""] for owner in owners]
            except KeyError:
                heads = list(map(self._delta_head, lines, owners))
        # All pieces are joined once: building each line on its own would take twice the time.
        pieces = [b"}\n" + self._stamp] * (4 * count)
        pieces[0] = self._stamp
        pieces[1::4] = orjson.dumps(list(range(self._seq, self._seq + count)))[1:-1].split(b",")
        pieces[2::4] = heads
        pieces[3::4] = lines
        self._parts += pieces
        self._parts.append(b"}\n")
        self._seq += count

    def _delta_head(self, line: bytes, owner: Owner) -> bytes:
        key = owner.key or ""
        head = self._delta_heads.get(key)
        if head is None:
            method = orjson.loads(line)["method"]
            about = {"method": method, "conversation_id": owner.key}
            head = b"," + _head("backend_io", "in", "rpc_notification", owner.req_id, **about)
            self._delta_heads[key] = head
        return head

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
        if key is not None:
            if req_id is None:
                req_id = self._owners.get(key)
            else:
                self._owners[key] = req_id
        line, cut = self._redactor.json(line), None
        if kind == "garbage":
            cut = len(line) if len(line) > GARBAGE_KEPT else None
            line = orjson.dumps(line[:GARBAGE_KEPT].decode("utf-8", "replace"))
        about = {"method": method, "conversation_id": key, "rpc_id": rpc_id, "truncated": cut and True, "length": cut}
        phase = "backend_submission" if kind == "rpc_request" else "backend_io"
        self._add(phase, direction, kind, req_id, line, **about)

    def lifecycle(self, kind: str, payload: dict[str, Any]) -> None:
        self.event("backend_lifecycle", "none", kind, None, payload)

    # The client's side and the turn

    def event(self, phase: str, direction: str, kind: str, req_id: str | None, payload: Any) -> None:
        """Record a payload that is not encoded yet."""
        if kind == "turn_end":
            self.turns += 1
            self.failed += payload["outcome"] == "failed"
        self._add(phase, direction, kind, req_id, self._redactor.json(exact_json.dumps(payload)))

    def tool_calls(self, req_id: str) -> Callable[[str, dict[str, Any]], None]:
        """The function that records the notes on calls in the text of a request's answer."""
        return lambda kind, payload: self.event("tool_parse", "none", kind, req_id, payload)

    def upstream(self, req_id: str, direction: str, data: bytes) -> None:
        """Record a body that goes to a provider (`out`), or an event that came from it (`in`)."""
        try:
            payload = exact_json.dumps(exact_json.loads(data))
        except orjson.JSONDecodeError:
            payload = orjson.dumps(data[:GARBAGE_KEPT].decode("utf-8", "replace"))
        is_request = direction == "out"
        phase = "backend_submission" if is_request else "backend_io"
        kind = "upstream_request" if is_request else "upstream_event"
        self._add(phase, direction, kind, req_id, self._redactor.json(payload))

    def client_json(self, req_id: str, body: bytes) -> None:
        self._add("client_egress", "out", "client_json", req_id, self._redactor.json(body))

    def client_line(self, req_id: str, line: bytes) -> None:
        """Record one line of `exec --json`, without its newline."""
        self._add("client_egress", "out", "client_line", req_id, self._redactor.json(line))

    def client_sse(self, req_id: str, chunk: bytes, text: str | None = None) -> None:
        """Record one chunk of a stream to the client. `text`, where known, is the only text in it that is not ours."""
        if text is None:
            chunk = self._redactor.sse(chunk)
        elif self._redactor.suspicious(text):
            chunk = self._redactor.text(chunk)
        self._add("client_egress", "out", "client_sse", req_id, orjson.dumps(chunk.decode()))

    @property
    def threads(self) -> int:
        """How many threads it has state for."""
        return len(self._owners.keys() | self._delta_heads.keys())

    def claim(self, key: str, req_id: str | None) -> None:
        self.forget(key)
        if req_id is not None:
            self._owners[key] = req_id

    def forget(self, key: str) -> None:
        self._owners.pop(key, None)
        self._delta_heads.pop(key, None)

    def _restamp(self, more: bytes = b"") -> None:
        iso, mono = self._now()
        self._stamp = b'{"ts":"%b","mono":%.6f,"run":"%b",%b"seq":' % (iso.encode(), mono, self._run, more)

    def _add(self, phase: str, direction: str, kind: str, req_id: str | None, payload: bytes, **more: Any) -> None:
        if not self._reading:
            self._restamp()
        self._line(_head(phase, direction, kind, req_id, **more), payload)

    def _line(self, *members: bytes) -> None:
        # Payloads may be megabytes: they are joined once, in `_flush`.
        self._parts += (self._stamp, b"%d," % self._seq, *members, b"}\n")
        self._seq += 1
        if not self._reading:
            self._flush()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._write(b"".join(parts))


def _head(phase: str, direction: str, kind: str, req_id: str | None, **more: Any) -> bytes:
    members = {"phase": phase, "direction": direction, "kind": kind, "req_id": req_id}
    members |= {name: value for name, value in more.items() if value is not None}
    return orjson.dumps(members)[1:-1] + b',"payload":'


class LogObserver(Observer):
    """Records the arrival, start and end of each request: `client_request`, `turn_start` and `turn_end`."""

    def __init__(self, recorder: Recorder, prices: Prices = NO_PRICES) -> None:
        self._recorder = recorder
        self._prices = prices

    def arrived(self, facts: TurnFacts, request: dict[str, Any]) -> None:
        self._recorder.event("http_ingress", "in", "client_request", facts.id, request)

    def starting(self, facts: TurnFacts) -> None:
        self._recorder.event("turn", "none", "turn_start", facts.id, turn_start(facts))

    def fell_back(self, facts: TurnFacts, fallback: Fallback) -> None:
        failed = {"model": fallback.model, "backend": fallback.backend, "to": fallback.to}
        about = {**failed, "error": error_record(fallback.error)}
        self._recorder.event("turn", "none", "turn_fallback", facts.id, about)

    def ended(self, facts: TurnFacts, end: Finished, usage: Usage | None, now: float) -> None:
        self._recorder.event("turn", "none", "turn_end", facts.id, turn_end(facts, end, usage, now, self._prices))


def turn_start(facts: TurnFacts) -> dict[str, Any]:
    turn = facts.turn
    assert turn is not None
    return {
        "model": turn.model,
        "requested_model": turn.requested_model,
        "effort": turn.effort,
        "backend": facts.backend,
        **({} if turn.provider is None else {"provider": turn.provider}),
        "dropped": list(facts.dropped),
        **({"counts_tokens": True} if facts.counts_tokens and turn.max_output_tokens is not None else {}),
    }


def turn_end(
    facts: TurnFacts, end: Finished, usage: Usage | None, now: float, prices: Prices = NO_PRICES
) -> dict[str, Any]:
    """The payload of `turn_end`: outcome, tokens, calls and cost. Times in seconds."""
    about: dict[str, Any] = {} if facts.rerouted is None else {"rerouted_to": facts.rerouted}
    if invalid := invalid_arguments(facts.calls):
        about["invalid_arguments"] = invalid
    cost = None if facts.turn is None or usage is None else amount(prices.cost(facts.turn.model, usage))
    costs = {} if cost is None else {"cost": cost, "currency": prices.currency}
    return about | {
        "outcome": end.outcome,
        "reason": end.reason,
        "error": error_record(end.error) if end.error else None,
        "usage": None if usage is None else usage_record(usage),
        "calls": [call.name for call in facts.calls],
        "repairs": [repair for call in facts.calls for repair in call.repairs],
        "first_event_s": None if facts.first is None else round(facts.first - facts.arrived, 6),
        "total_s": round(now - facts.arrived, 6),
        **costs,
    }


def usage_record(usage: Usage) -> dict[str, int]:
    return {name: getattr(usage, count) for name, count in TOKENS.items()}


def calls_in(events: list[TurnEvent]) -> tuple[ToolCall, ...]:
    return tuple(event for event in _in_choices(events) if isinstance(event, ToolCall))


def rerouted_in(events: list[TurnEvent]) -> str | None:
    """The model that answers instead of the requested one, if these events name it."""
    return next((event.model for event in _in_choices(events) if isinstance(event, Rerouted)), None)


def _in_choices(events: list[TurnEvent]) -> Iterator[TurnEvent]:
    for event in events:
        if isinstance(event, Choice):
            yield from _in_choices(event.events)
        else:
            yield event


def invalid_arguments(calls: Sequence[ToolCall]) -> list[str]:
    """The tools that were called with arguments that are not JSON. A custom tool accepts any text."""
    return [call.name for call in calls if not call.custom and not is_json(call.arguments)]


def error_record(error: BridgeError) -> dict[str, Any]:
    """All members of an error, so that a replay can send it again. `side` is who caused it: CAP reports that."""
    client = isinstance(error, InvalidRequest | Unauthorized | Forbidden)
    provider = isinstance(error, UpstreamError)
    return {
        "code": error.code,
        "message": error.message,
        "http_status": error.http_status,
        "type": error.kind,
        "param": error.param,
        "severity": error.severity,
        "retry_after": error.retry_after,
        "side": "client" if client else "provider" if provider else "bridge",
        **({} if error.cause is None else {"cause": error.cause}),
    }
