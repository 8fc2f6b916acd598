"""Where everything goes that the bridge records: the event log, the recent turns in memory, both, or nowhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bridge.core.observer import Observer, Owner, Tap
from bridge.core.prices import Prices

Note = Callable[[str, dict[str, Any]], None]


class Sink(Tap, Protocol):
    """Gets what passes between clients, the bridge and its backends. Implemented by the recorder of `bridge.log`.

    One without `wants_lines` keeps what it gets as it is. Nothing is looked up, joined or encoded for it.
    """

    keeps_answers: bool
    """Whether `client_sse` has an effect, so that what it gets must be made."""

    def observers(self, prices: Prices) -> Sequence[Observer]:
        """What follows the steps of each request for this sink. `prices` tell what its tokens cost."""

    def event(self, phase: str, direction: str, kind: str, req_id: str | None, payload: Any) -> None:
        """A record whose payload is not encoded yet."""

    def tool_calls(self, req_id: str) -> Note:
        """The function that gets the notes on calls in the text of a request's answer."""

    def upstream(self, req_id: str, direction: str, data: bytes) -> None:
        """A body that goes to a provider (`out`), or an event that came from it (`in`)."""

    def client_json(self, req_id: str, body: bytes) -> None:
        """A whole answer."""

    def client_sse(self, req_id: str, chunk: bytes, text: str | None = None) -> None:
        """A piece of a stream. `text`, where known, is the only text in it that is not ours."""


class Taps:
    """Passes what children send and get on to each of `taps`."""

    def __init__(self, *taps: Tap) -> None:
        self._taps = taps
        self._line_taps = tuple(tap for tap in taps if tap.wants_lines)
        self.wants_lines = bool(self._line_taps)

    def connect(self) -> Tap:
        return Taps(*(tap.connect() for tap in self._taps))

    def read(self, data: bytes, *, is_first: bool) -> None:
        for tap in self._taps:
            tap.read(data, is_first=is_first)

    def begin_read(self) -> None:
        for tap in self._line_taps:
            tap.begin_read()

    def end_read(self) -> None:
        for tap in self._line_taps:
            tap.end_read()

    def deltas(self, lines: list[bytes], texts: list[str], owners: list[Owner]) -> None:
        for tap in self._line_taps:
            tap.deltas(lines, texts, owners)

    def rpc(self, direction: str, kind: str, line: bytes, **about: Any) -> None:
        for tap in self._taps:
            tap.rpc(direction, kind, line, **about)

    def claim(self, key: str, req_id: str | None) -> None:
        for tap in self._taps:
            tap.claim(key, req_id)

    def forget(self, key: str) -> None:
        for tap in self._taps:
            tap.forget(key)

    def lifecycle(self, kind: str, payload: dict[str, Any]) -> None:
        for tap in self._taps:
            tap.lifecycle(kind, payload)


class Recorders(Taps):
    """Passes everything on to each of `sinks`; without any it is a recorder that records nothing."""

    def __init__(self, *sinks: Sink) -> None:
        super().__init__(*sinks)
        self._sinks = sinks
        self.keeps_answers = bool(sinks)

    def observers(self, prices: Prices) -> Sequence[Observer]:
        return [observer for sink in self._sinks for observer in sink.observers(prices)]

    def event(self, phase: str, direction: str, kind: str, req_id: str | None, payload: Any) -> None:
        for sink in self._sinks:
            sink.event(phase, direction, kind, req_id, payload)

    def tool_calls(self, req_id: str) -> Note:
        notes = [sink.tool_calls(req_id) for sink in self._sinks]

        def note(kind: str, payload: dict[str, Any]) -> None:
            for each in notes:
                each(kind, payload)

        return note

    def upstream(self, req_id: str, direction: str, data: bytes) -> None:
        for sink in self._sinks:
            sink.upstream(req_id, direction, data)

    def client_json(self, req_id: str, body: bytes) -> None:
        for sink in self._sinks:
            sink.client_json(req_id, body)

    def client_sse(self, req_id: str, chunk: bytes, text: str | None = None) -> None:
        for sink in self._sinks:
            sink.client_sse(req_id, chunk, text)


def joined(sinks: Sequence[Sink]) -> Sink:
    """One recorder for all of them."""
    return sinks[0] if len(sinks) == 1 else Recorders(*sinks)
