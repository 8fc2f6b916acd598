"""Many clients of every kind that read their streams at once, and what each of them was told in the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Literal

from harness import RunningBridge, read_sse
from server.prompted import ask, ask_chat, open_response
from server.talk import talking

Json = dict[str, Any]
Kind = Literal["responses", "chat", "websocket"]
KINDS: Sequence[Kind] = ("responses", "chat", "websocket")


@dataclass
class Reader:
    """One client; `begun` when it has heard the first word."""

    kind: Kind
    steps: Sequence[Any]
    begun: Event = field(default_factory=Event)

    def read(self, bridge: RunningBridge) -> list[Json]:
        """Ask, and read all events of the answer. Fails when the stream just breaks off."""
        events: list[Json] = []
        for event in self._events(bridge):
            events.append(event)
            if "delta" in event or event.get("choices"):
                self.begun.set()
        return events

    def _events(self, bridge: RunningBridge) -> Iterator[Json]:
        if self.kind == "websocket":
            with talking(bridge) as talk:
                talk.send(ask(*self.steps))
                while True:
                    event = talk.receive(60)
                    yield event
                    if is_end(event):
                        return
        body = (ask_chat if self.kind == "chat" else ask)(*self.steps, stream=True)
        path = "/v1/chat/completions" if self.kind == "chat" else "/v1/responses"
        connection, response = open_response(bridge, path, body)
        with closing(connection):
            assert response.status == 200, response.read()
            # A chunked body that is cut off raises IncompleteRead.
            yield from read_sse(line.decode().rstrip("\n") for line in iter(response.readline, b""))


@contextmanager
def reading(bridge: RunningBridge, readers: Sequence[Reader]) -> Iterator[list[Future[list[Json]]]]:
    """Let all of them read, each in a thread; in the block all have heard something."""
    with ThreadPoolExecutor(len(readers)) as pool:
        futures = [pool.submit(reader.read, bridge) for reader in readers]
        for reader, future in zip(readers, futures, strict=True):
            while not reader.begun.wait(0.05):
                assert not future.done(), future.result()
        yield futures


def is_end(event: Json) -> bool:
    """Whether an event ends a stream of any kind."""
    if "choices" in event:
        return any(choice["finish_reason"] for choice in event["choices"])
    return "error" in event or event.get("type") in ("response.completed", "response.incomplete", "response.failed")


def outcome_of(events: list[Json]) -> str:
    """How a stream ended: `completed`, or the bridge's code for its failure. Fails unless that is the last event, and
    the only one of its kind."""
    ends = [event for event in events if is_end(event)]
    assert ends == events[-1:], json.dumps(events[-3:])
    end = ends[0]
    error = end["response"]["error"] if "response" in end else end.get("error")
    return "completed" if error is None else str(error.get("bridge_code") or error["code"])
