"""What the bridge itself does around a backend's answer: where it ends early, and several answers to one request."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from bridge.backends.base import Backend, EventStream
from bridge.turn.estimate import estimate_input, estimate_text
from bridge.turn.events import Choice, Finished, TextDelta, TurnEvent, Usage, UsageUpdate
from bridge.turn.limit import LimitStage
from bridge.turn.stop import StopStage
from bridge.turn.turn import Turn


async def start_answer(backend: Backend, turn: Turn, req_id: str) -> EventStream:
    """Begin a turn, or as many as the client wants choices. Raises a BridgeError when it cannot even begin."""
    if turn.n is None or turn.n == 1:
        return await _start_one(backend, turn, req_id)
    streams: list[EventStream] = []
    try:
        for index in range(turn.n):
            streams.append(await _start_one(backend, turn, attempt_id(req_id, index)))
    except BaseException:
        for stream in streams:
            stream.close()
        raise
    return ChoicesStream(streams)


def attempt_id(req_id: str, index: int) -> str:
    """What the log calls one of several turns of a request: they share its id, and have their numbers after it."""
    return f"{req_id}#{index}" if index else req_id


async def _start_one(backend: Backend, turn: Turn, req_id: str) -> EventStream:
    stream = await backend.start(turn, req_id)
    if turn.max_output_tokens is not None and backend.takes.counts_tokens:
        stream = CutStream(stream, turn, LimitStage(turn.max_output_tokens))
    return CutStream(stream, turn, StopStage(turn.stop)) if turn.stop else stream


class CutStream:
    """A turn that ends where `stage` says, at a stop sequence or a limit; the model's work is interrupted there."""

    def __init__(self, stream: EventStream, turn: Turn, stage: StopStage | LimitStage) -> None:
        self._stream = stream
        self._turn = turn
        self._stage = stage
        self._said: list[str] = []

    async def next(self) -> list[TurnEvent]:
        while True:
            events = self._stage.feed(await self._stream.next())
            self._said += [piece for event in events if isinstance(event, TextDelta) for piece in event.pieces]
            if self._stage.hit:
                self._stream.close()
                # The model had no time to count.
                said = max(estimate_text("".join(self._said)), self._stage.least)
                usage = Usage(estimate_input(self._turn), 0, said, estimated=True)
                return [*events, UsageUpdate(usage), self._stage.end]
            if events:
                return events

    def close(self) -> None:
        self._stream.close()


class ChoicesStream:
    """Several turns at once. Each batch is of one of them; it ends when all have ended, or one has failed."""

    def __init__(self, streams: Sequence[EventStream]) -> None:
        self._streams = streams
        self._running = set(range(len(streams)))

    async def next(self) -> list[TurnEvent]:
        batches: list[Choice] = []
        failure: Finished | None = None

        async def wait(index: int) -> None:
            nonlocal failure
            events = await self._streams[index].next()
            batches.append(Choice(index, events))
            end = events[-1]
            if isinstance(end, Finished):
                self._running.discard(index)
                if end.outcome in ("failed", "cancelled"):
                    failure = failure or end
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for index in sorted(self._running):
                nursery.start_soon(wait, index)
        # Those that came with the same read are told in the same order every time.
        batches.sort(key=lambda choice: choice.index)
        if failure is not None:
            return [*batches, failure]
        return [*batches] if self._running else [*batches, Finished("completed")]

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
