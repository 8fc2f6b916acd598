"""A recorded answer as a backend: what a child or a provider said then, read by today's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import inf
from typing import Any, NamedTuple, Protocol

import trio

from bridge.backends.base import Abilities, EventStream, PlainBackend
from bridge.backends.replay.child import ChildPlayback
from bridge.backends.replay.copying import FrameCopy
from bridge.backends.replay.pace import Order, Pace
from bridge.backends.replay.upstream import UpstreamPlayback
from bridge.errors import BackendProtocolError, BridgeError, Forbidden, InvalidRequest, UpstreamError
from bridge.protolog.read import request_of
from bridge.protolog.record import Recorder
from bridge.protolog.recording import Frame, Recording
from bridge.tools.stage import ToolStage
from bridge.turn.events import Finished, Outcome, TurnEvent
from bridge.turn.models import ModelChoice, effort_in_name
from bridge.turn.turn import Turn

CUT = "The recording ends here: its bridge was stopped, or its log cut, before the turn was over."


class Playback(Protocol):
    """What turns recorded frames into events."""

    @property
    def in_text(self) -> bool:
        """Whether calls stand in the text."""

    def feed(self, frame: Frame) -> None:
        """What was said next."""

    def take(self) -> list[TurnEvent]:
        """The events since the last call."""

    def finish(self, end: Finished) -> None:
        """Nothing more was recorded."""


class ReplayBackend(PlainBackend):
    """Plays one recording. `new_id` names the calls in its text; `recorder` notes all, as for a live answer."""

    def __init__(
        self,
        recording: Recording,
        *,
        new_id: Callable[[str], str],
        speed: float = 0,
        recorder: Recorder | None = None,
    ) -> None:
        start = recording.start or {}
        self.name = str(start.get("backend") or "replay")
        self.takes = Abilities(sampling=True, counts_tokens=start.get("counts_tokens") is True, hosted_tools=True)
        self._recording = recording
        self._new_id = new_id
        self._speed = speed
        self._recorder = recorder
        self._order = Order()

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        recording = self._recording
        attempt = request_of(req_id)[1]
        frames = recording.attempts.get(attempt, [])
        pace = Pace(self._speed, recording.at, trio.current_time())
        end = recorded_end(recording)
        if not frames:
            if recording.end_mono is not None:
                await pace.until(recording.end_mono)
            if end.outcome in ("completed", "cancelled") and end.error is None:
                return Silence(end)
            raise end.error or BackendProtocolError("The recording holds nothing that a backend said.")
        playback: Playback
        if any(frame.kind.startswith("upstream") for frame in frames):
            playback = UpstreamPlayback(turn, frames, self.name)
        else:
            playback = ChildPlayback(turn, frames, recording.used)
        in_text = playback.in_text and turn.parses_tool_calls and not turn.verbatim
        recorder, copy, note = self._recorder, None, None
        if recorder is not None:
            copy = FrameCopy(recorder, req_id)
            note = partial(_note, recorder, req_id)
        stage = ToolStage(turn, self._new_id, note) if in_text else None
        finish = Finish(end, recording.end_mono)
        return RecordedStream(playback, frames, pace, stage, finish, self._order, attempt, copy)

    def models(self) -> list[str]:
        start = self._recording.start or {}
        return [str(start[name]) for name in ("requested_model", "model") if start.get(name)]

    def resolve(self, name: str) -> ModelChoice:
        """The model that this request was for, whatever it is called now. Raises why it was refused then."""
        start = self._recording.start
        if start is None and self._recording.end is not None:
            error = recorded_end(self._recording).error
            if error is not None and error.code in ("model_not_found", "backend_not_ready"):
                raise error
        start = start or {}
        effort = start["effort"] if "effort" in start else effort_in_name(name)[1]
        provider = str(start["provider"]) if start.get("provider") else None
        return ModelChoice(name, str(start.get("model") or name), effort, self.name, provider)

    async def drops(self, turn: Turn) -> list[str]:
        dropped = (self._recording.start or {}).get("dropped")
        return [name for name in dropped if isinstance(name, str)] if isinstance(dropped, list) else []

    def rate_limits(self) -> Mapping[str, Any] | None:
        return self._recording.limits


class Finish(NamedTuple):
    """How a recorded turn ended, and when."""

    end: Finished
    mono: float | None


class RecordedStream:
    """The events of one recorded turn, read by read."""

    def __init__(
        self,
        playback: Playback,
        frames: Sequence[Frame],
        pace: Pace,
        stage: ToolStage | None,
        finish: Finish,
        order: Order,
        attempt: int,
        copy: FrameCopy | None = None,
    ) -> None:
        self._playback = playback
        # What came with one read was handed on together.
        self._reads = [list(read) for _, read in groupby(frames, lambda frame: frame.chunk or frame.mono)]
        self._reads.reverse()
        self._pace = pace
        self._stage = stage
        self._finish = finish
        self._order = order
        self._attempt = attempt
        self._copy = copy
        order.join(attempt)

    async def next(self) -> list[TurnEvent]:
        while True:
            events = self._playback.take()
            if self._stage is not None and events:
                events = self._stage.feed(events)
            if events:
                if isinstance(events[-1], Finished):
                    self._order.leave(self._attempt)
                return events
            await self._go_on()

    async def _go_on(self) -> None:
        if not self._reads:
            end = self._finish.mono
            if end is not None:
                await self._pace.until(end)
            await self._order.wait(self._attempt, inf if end is None else end)
            self._playback.finish(self._finish.end)
            return
        await self._pace.until(self._reads[-1][0].mono)
        await self._order.wait(self._attempt, self._reads[-1][0].mono)
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


class Silence:
    """The answer to a request that wanted none, or not any more, and so asked nobody."""

    def __init__(self, end: Finished) -> None:
        self._end = end

    async def next(self) -> list[TurnEvent]:
        await trio.lowlevel.checkpoint()
        return [self._end]

    def close(self) -> None:
        """There is nothing to give back."""


def _note(recorder: Recorder, req_id: str, kind: str, payload: dict[str, Any]) -> None:
    recorder.event("tool_parse", "none", kind, req_id, payload)


def recorded_end(recording: Recording) -> Finished:
    """How a recorded turn ended, for what ended it from outside of what was said."""
    end = recording.end
    if end is None:
        return Finished("failed", error=BackendProtocolError(CUT, code="recording_cut"))
    error = end.get("error")
    outcome: Outcome = end["outcome"] if end.get("outcome") in ("completed", "incomplete", "cancelled") else "failed"
    return Finished(outcome, end.get("reason"), read_error(error) if isinstance(error, dict) else None)


def read_error(record: dict[str, Any]) -> BridgeError:
    """An error, from all that the log says of it."""

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
    """The kind of error, by whose fault it was; older logs do not tell that."""
    side = record.get("side", "client" if record.get("type") == "invalid_request_error" else "bridge")
    if side == "client":
        return Forbidden if record.get("http_status") in (401, 403) else InvalidRequest
    return UpstreamError if side == "provider" else BridgeError
