"""What the bridge adds to a backend's answer: stop sequences, a token limit, and several answers to one request."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from bridge.core.backend import Backend, EventStream
from bridge.core.events import Choice, Finished, TurnEvent
from bridge.core.images import document_refusal
from bridge.core.items import Document, FunctionOutput, Message
from bridge.core.stages import CutStage, LimitStage, StagedStream, StopStage
from bridge.core.turn import Turn


async def start_answer(backend: Backend, turn: Turn, req_id: str, number: int = 0) -> EventStream:
    """Begin a turn, or one for each choice that the client wants. Raises a BridgeError if it cannot begin.

    `number` is that of the first of these turns in the log.
    """
    if turn.n is None or turn.n == 1:
        return await _start_one(backend, turn, attempt_id(req_id, number))
    streams: list[EventStream] = []
    try:
        for index in range(turn.n):
            streams.append(await _start_one(backend, turn, attempt_id(req_id, number + index)))
    except BaseException:
        for stream in streams:
            stream.close()
        raise
    return ChoicesStream(streams)


def attempt_id(req_id: str, index: int) -> str:
    """The id of one of several turns of a request in the log: the request's id and the turn's number."""
    return f"{req_id}#{index}" if index else req_id


async def _start_one(backend: Backend, turn: Turn, req_id: str) -> EventStream:
    if not backend.takes.documents:
        _check_documents(turn, backend.name)
    stream = await backend.start(turn, req_id)
    stages: list[CutStage] = []
    if turn.max_output_tokens is not None and backend.takes.counts_tokens:
        stages.append(CutStage(turn, LimitStage(turn.max_output_tokens)))
    if turn.stop:
        stages.append(CutStage(turn, StopStage(turn.stop)))
    if not stages:
        return stream
    return stream.then(stages) if isinstance(stream, StagedStream) else StagedStream(stream, stages)


def _check_documents(turn: Turn, backend: str) -> None:
    """Raise InvalidRequest if a turn has a document, for a backend that reads none."""
    for item in turn.items:
        if isinstance(item, Message | FunctionOutput):
            for part in item.parts:
                if isinstance(part, Document):
                    raise document_refusal(part, f"the backend {backend!r}")


class OnlyEnd:
    """The stream of an answer that has nothing but its end."""

    def __init__(self, end: Finished) -> None:
        self._end = end

    async def next(self) -> list[TurnEvent]:
        await trio.lowlevel.checkpoint()
        return [self._end]

    def close(self) -> None:
        pass


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
        # Choices that arrive with the same read always come in the same order.
        batches.sort(key=lambda choice: choice.index)
        if failure is not None:
            return [*batches, failure]
        return [*batches] if self._running else [*batches, Finished("completed")]

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
