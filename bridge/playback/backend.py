"""A recorded answer as a backend: what a child or a provider sent then, read by the current code.

Endpoint, encoders, tool parser and errors are the current code, so a difference to the recorded answer is a change of
behaviour. Only what ended a turn from outside (a crash, a time limit, a cancellation) is taken from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

import trio

from bridge import exact_json
from bridge.app.answers import OnlyEnd
from bridge.app.recorders import Sink
from bridge.core.backend import Abilities, Backend, EventStream
from bridge.core.events import Finished, Outcome, TurnEvent
from bridge.core.models import ModelChoice, effort_in_name
from bridge.core.turn import Turn
from bridge.errors import BackendProtocolError, BridgeError, Forbidden, InvalidRequest, UpstreamError
from bridge.log.read import request_of
from bridge.log.recording import Frame, Recording
from bridge.playback.child import ChildPlayback, UpstreamPlayback
from bridge.tools.stage import ToolStage

LIMITS = "account/rateLimits/updated"
CUT = "The recording ends here: its bridge was stopped, or its log cut, before the turn was over."


class Pace(NamedTuple):
    """When recorded moments come again: `speed` times as fast, or at once (0)."""

    speed: float
    then: float
    """The beginning of the recording, in its own time."""
    now: float
    """The beginning of the replay."""

    async def until(self, moment: float) -> None:
        """Wait until a moment of the recording."""
        if self.speed > 0:
            await trio.sleep_until(self.now + (moment - self.then) / self.speed)
        else:
            await trio.lowlevel.checkpoint()


class Order:
    """Lets the turns of one request continue in their recorded order, in whatever order their consumer asks."""

    def __init__(self) -> None:
        self._next: dict[int, float] = {}
        self._changed = trio.Event()

    def join(self, attempt: int) -> None:
        """A turn has begun. The others wait until it is known when it continues."""
        self._next[attempt] = -inf

    async def wait(self, attempt: int, moment: float) -> None:
        """Wait until no other turn has anything from before that moment."""
        self._next[attempt] = moment
        self._notify()
        while attempt in self._next and min((moment, index) for index, moment in self._next.items())[1] != attempt:
            await self._changed.wait()
            # The turn that has just continued may have been enough for the consumer: then it cancels us here.
            await trio.lowlevel.checkpoint()

    def leave(self, attempt: int) -> None:
        self._next.pop(attempt, None)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class ReplayBackend(Backend):
    """Plays one recording. `new_id` names the calls in its text.

    `recorder` records the played messages again, so that a log of played answers can be played, too.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        new_id: Callable[[str], str],
        speed: float = 0,
        recorder: Sink | None = None,
    ) -> None:
        self._start = recording.start or {}
        self.name = str(self._start.get("backend") or "replay")
        counts_tokens = self._start.get("counts_tokens") is True
        self.takes = Abilities(sampling=True, counts_tokens=counts_tokens, hosted_tools=True, documents=True)
        self.recording = recording
        self.new_id = new_id
        self.speed = speed
        self.recorder = recorder
        self.order = Order()

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        recording, attempt = self.recording, request_of(req_id)[1]
        if recording.attempts.get(attempt):
            return _RecordedStream(self, turn, req_id, attempt)
        if recording.end_mono is not None:
            await Pace(self.speed, recording.at, trio.current_time()).until(recording.end_mono)
        end = recorded_end(recording)
        if end.outcome in ("completed", "cancelled") and end.error is None:
            return OnlyEnd(end)
        raise end.error or BackendProtocolError("The recording has no message of a backend.")

    def models(self) -> list[str]:
        return [str(self._start[name]) for name in ("requested_model", "model") if self._start.get(name)]

    def resolve(self, name: str) -> ModelChoice:
        """The model of the recorded request, whatever its name now. Raises the error with which it was refused."""
        start = self._start
        if self.recording.start is None and self.recording.end is not None:
            error = recorded_end(self.recording).error
            if error is not None and error.code in ("model_not_found", "backend_not_ready"):
                raise error
        effort = start["effort"] if "effort" in start else effort_in_name(name)[1]
        provider = str(start["provider"]) if start.get("provider") else None
        return ModelChoice(name, str(start.get("model") or name), effort, self.name, provider)

    async def drops(self, turn: Turn) -> list[str]:
        dropped = self._start.get("dropped")
        return [name for name in dropped if isinstance(name, str)] if isinstance(dropped, list) else []

    def rate_limits(self) -> Mapping[str, Any] | None:
        return self.recording.limits


class _RecordedStream:
    """The events of one recorded turn, one read of its messages at a time."""

    def __init__(self, backend: ReplayBackend, turn: Turn, req_id: str, attempt: int) -> None:
        recording, recorder = backend.recording, backend.recorder
        frames = recording.attempts[attempt]
        self._recording = recording
        self._attempt = attempt
        # What came with one read was handed on together.
        self._reads = [list(read) for _, read in groupby(frames, lambda frame: frame.chunk or frame.mono)][::-1]
        self._playback: ChildPlayback | UpstreamPlayback
        if any(frame.kind.startswith("upstream") for frame in frames):
            self._playback = UpstreamPlayback(turn, frames, backend.name)
        else:
            self._playback = ChildPlayback(turn, frames, recording.used)
        self._stage = None
        if self._playback.in_text and turn.parses_tool_calls and not turn.verbatim:
            note = (lambda kind, payload: None) if recorder is None else recorder.tool_calls(req_id)
            self._stage = ToolStage(turn, backend.new_id, note)
        self._copy = None if recorder is None else _FrameCopy(recorder, req_id)
        self._pace = Pace(backend.speed, recording.at, trio.current_time())
        self._order = backend.order
        self._order.join(attempt)

    async def next(self) -> list[TurnEvent]:
        while True:
            events = self._playback.take()
            if self._stage is not None and events:
                events = self._stage.feed(events)
            if events:
                if isinstance(events[-1], Finished):
                    self._order.leave(self._attempt)
                return events
            moment = self._reads[-1][0].mono if self._reads else self._recording.end_mono
            if moment is not None:
                await self._pace.until(moment)
            await self._order.wait(self._attempt, inf if moment is None else moment)
            if not self._reads:
                self._playback.finish(recorded_end(self._recording))
                continue
            read = self._reads.pop()
            if self._copy is not None:
                self._copy.add(read)
            for frame in read:
                self._playback.feed(frame)

    def close(self) -> None:
        self._reads.clear()
        if self._copy is not None:
            self._copy.end()
        self._order.leave(self._attempt)


class _FrameCopy:
    """Records the messages of one turn again, for the request that they answer now."""

    def __init__(self, recorder: Sink, req_id: str) -> None:
        self._recorder = recorder
        self._req_id = req_id
        self._keys: set[str] = set()

    def add(self, read: Sequence[Frame]) -> None:
        """The messages of one read."""
        together = read[0].chunk is not None
        if together:
            self._recorder.begin_read()
        for frame in read:
            line = exact_json.dumps(frame.payload)
            if frame.kind.startswith("upstream"):
                self._recorder.upstream(self._req_id, frame.direction, line)
                continue
            if frame.key is not None:
                self._keys.add(frame.key)
            about = {"method": frame.method, "rpc_id": frame.rpc_id, "key": frame.key, "req_id": self._req_id}
            self._recorder.rpc(frame.direction, frame.kind, line, **about)
        if together:
            self._recorder.end_read()

    def end(self) -> None:
        for key in self._keys:
            self._recorder.forget(key)


def copy_limits(recorder: Sink, limits: dict[str, Any]) -> None:
    """Record the account's quota again, before the turn begins: the response headers depend on it."""
    message = {"method": LIMITS, "params": {"rateLimits": limits}}
    recorder.rpc("in", "rpc_notification", exact_json.dumps(message), method=LIMITS)


def recorded_end(recording: Recording) -> Finished:
    """How a recorded turn ended, in case its backend did not report an end."""
    end = recording.end
    if end is None:
        return Finished("failed", error=BackendProtocolError(CUT, code="recording_cut"))
    error = end.get("error")
    outcome: Outcome = end["outcome"] if end.get("outcome") in ("completed", "incomplete", "cancelled") else "failed"
    return Finished(outcome, end.get("reason"), read_error(error) if isinstance(error, dict) else None)


def read_error(record: dict[str, Any]) -> BridgeError:
    def text(name: str) -> str | None:
        return value if isinstance(value := record.get(name), str) else None

    status, retry_after = record.get("http_status"), record.get("retry_after")
    return _kind_of(record)(
        text("message") or "",
        code=text("code"),
        http_status=status if isinstance(status, int) and 400 <= status < 600 else 502,
        kind=text("type"),
        param=text("param"),
        severity="transient" if record.get("severity") == "transient" else None,
        retry_after=retry_after if isinstance(retry_after, int | float) else None,
        cause=text("cause"),
    )


def _kind_of(record: dict[str, Any]) -> type[BridgeError]:
    """The class of an error, by who caused it. Older logs do not record that."""
    side = record.get("side", "client" if record.get("type") == "invalid_request_error" else "bridge")
    if side == "client":
        return Forbidden if record.get("http_status") in (401, 403) else InvalidRequest
    return UpstreamError if side == "provider" else BridgeError
