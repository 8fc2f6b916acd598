"""What a browser gets while turns run: rows that change, and the text and the messages of one turn, as they come.

A client of the bridge never waits for a watcher. The ring only marks a turn as changed; each watcher's own task makes
the rows, at most ten times a second, and drops what it has no room for.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio

from bridge import exact_json
from bridge.errors import NotReady
from bridge.exact_json import text_of
from bridge.log.content import AnswerReader, BackendReader, sent_values
from bridge.log.export.html import wire_block
from bridge.log.recording import Recording
from bridge.log.request import Part
from bridge.page.records import News, RecordMaker, new_parts
from bridge.page.ring import HeldTurn
from bridge.page.turns import AT_ONCE, Turns, clients_side
from bridge.redact import Redactor
from bridge.threads import in_thread

PAUSE = 0.1
"""Seconds between two batches."""
SHARE = 5
"""A batch that took long to make is followed by a pause of this many times as long."""
KEEPALIVE = 15.0
MAX_WAITING = 512
"""Turns whose changes may wait for a watcher."""
MAX_WATCHERS, MAX_OF_CLIENT = 64, 16
"""All windows, and those of one key that is not the operator's."""

_GOES_ON = re.compile(r"(?:[:=\"'\\]|(?i:bearer))\s*\Z")
"""What follows may be a secret because of this."""
_LONGEST = 4096
"""Characters of a word that are held back: the longest secret that is recognised while it is written."""


def sse(event: str, data: Any) -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), exact_json.dumps(data))


COMMENT = b":\n\n"


class Watchers:
    """Everyone who watches the list of turns, or one turn."""

    def __init__(self) -> None:
        self._all: set[Visitor] = set()
        self.missed = 0
        """Updates that were dropped for slow watchers."""

    def __len__(self) -> int:
        return len(self._all)

    def note(self, turn: HeldTurn) -> None:
        """A turn has changed."""
        for watcher in self._all:
            self.missed += watcher.note(turn)

    def note_gone(self, turn: HeldTurn) -> None:
        """A turn has been dropped."""
        for watcher in self._all:
            self.missed += watcher.note(turn, gone=True)

    def end(self, label: str | None = None) -> None:
        """Send everyone off, or those with this key."""
        for watcher in self._all:
            if label is None or watcher.key == label:
                watcher.end()

    @contextmanager
    def having(self, watcher: Visitor) -> Iterator[None]:
        """Have this one among them during the block. Raises NotReady if there are too many."""
        own = sum(each.key == watcher.key for each in self._all)
        if len(self._all) >= MAX_WATCHERS or (watcher.label is not None and own >= MAX_OF_CLIENT):
            raise NotReady("Too many windows of this page are open. Close some.", code="overloaded", retry_after=5)
        self._all.add(watcher)
        try:
            yield
        finally:
            self._all.discard(watcher)


class Visitor:
    """One of them, who sees one turn. `key` is its own, `label` the key whose turns it may see, None for all.

    Its session lasts for `seconds`.
    """

    def __init__(self, key: str, label: str | None, seconds: float = math.inf) -> None:
        self.key = key
        self.label = label
        self._expires = trio.current_time() + seconds
        self._ended = trio.Event()

    def is_over(self) -> bool:
        return self._ended.is_set() or trio.current_time() >= self._expires

    def end(self) -> None:
        """Its session is over, or the bridge stops."""
        self._ended.set()

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of its session."""
        with trio.move_on_at(min(trio.current_time() + seconds, self._expires)):
            await self._ended.wait()

    def note(self, turn: HeldTurn, *, gone: bool = False) -> bool:
        """A turn has changed. True: there is no room for this, so the change is missed."""
        return False


class Watcher(Visitor):
    """One who sees the list."""

    def __init__(self, key: str, label: str | None, seconds: float = math.inf) -> None:
        super().__init__(key, label, seconds)
        self._waiting: dict[HeldTurn, bool] = {}
        """Turns that have changed, and whether each is gone."""
        self._missed = 0
        self._news = trio.Event()

    def note(self, turn: HeldTurn, *, gone: bool = False) -> bool:
        if self.label is not None and turn.key != self.label:
            return False
        missed = len(self._waiting) >= MAX_WAITING and turn not in self._waiting
        if missed:
            self._missed += 1
        else:
            self._waiting[turn] = gone
        self._news.set()
        return missed

    def end(self) -> None:
        super().end()
        self._news.set()

    async def batches(self, turns: Turns) -> AsyncGenerator[bytes, None]:
        """The events for this watcher, until it is sent off."""
        yield COMMENT
        while True:
            with trio.move_on_at(min(trio.current_time() + KEEPALIVE, self._expires)):
                await self._news.wait()
            self._news = trio.Event()
            if self.is_over():
                yield sse("bye", {})
                return
            waiting, self._waiting, missed, self._missed = self._waiting, {}, self._missed, 0
            began = trio.current_time()
            out = []
            for turn, gone in waiting.items():
                await trio.lowlevel.checkpoint()
                out.append(sse("gone", {"id": turn.id}) if gone else sse("turn", await turns.row(turn)))
            if missed:
                out.append(sse("missed", {"count": missed}))
            if not self.is_over():
                yield b"".join(out) or COMMENT
            await self.pause(max(PAUSE, SHARE * (trio.current_time() - began)))


class LiveText:
    """The new text of an answer that is being written.

    A text goes out up to the last word that is complete and cannot be the beginning of a secret. A call goes out when
    it is complete, because its arguments are JSON whose members may be secrets.
    """

    def __init__(self, *, streams: bool, keys: tuple[str, ...]) -> None:
        self._client = AnswerReader() if streams else None
        self._backends: dict[int, BackendReader] = {}
        self._redactor = Redactor(keys)
        self._sent: dict[tuple[int, int], int] = {}
        """How many characters of a part went out, by choice and number."""
        self._open: dict[int, int] = {}
        """The part of each choice that grew last."""

    def take(self, recording: Recording, *, ended: bool) -> list[dict[str, Any]]:
        """What a recording of new records adds."""
        if self._client is not None:
            for piece in recording.client:
                for value in sent_values(piece.kind, piece.payload):
                    self._client.take(value)
            choices = [choice.parts for choice in self._client.answer().choices]
        else:
            for attempt, frames in recording.attempts.items():
                reader = self._backends.setdefault(attempt, BackendReader())
                for frame in frames:
                    reader.add(frame.kind, frame.payload)
            choices = [self._backends[attempt].parts for attempt in sorted(self._backends)]
        found = [
            event
            for number, parts in enumerate(choices)
            for at, part in enumerate(parts)
            if (event := self._event(number, at, part, whole=ended or at < len(parts) - 1)) is not None
        ]
        return [*found, *(event for kind, payload in recording.notes if (event := _note(kind, payload)) is not None)]

    def _event(self, choice: int, number: int, part: Part, *, whole: bool) -> dict[str, Any] | None:
        sent = self._sent.get((choice, number), 0)
        if part.kind == "call":
            if not whole or sent:
                return None
            shown, end = self._redactor.json(part.text.encode("utf-8", "replace")), len(part.text) + 1
        else:
            end = len(part.text) if whole else _complete(part.text, sent)
            if end <= sent:
                return None
            shown = self._redactor.text(part.text[sent:end].encode("utf-8", "replace"))
        self._sent[choice, number] = end
        event: dict[str, Any] = {"choice": choice, "kind": "thought" if part.kind == "reasoning" else part.kind}
        if part.name:
            event["name"] = part.name
        if self._open.get(choice) != number:
            self._open[choice] = number
            event["new"] = True
        return event | {"text": shown.decode("utf-8", "replace")}


def _note(kind: str, payload: dict[str, Any]) -> dict[str, Any] | None:
    """What the parser of tool calls did with a call."""
    if kind == "tool_repair" and isinstance(payload.get("repairs"), list):
        return {"choice": 0, "kind": "repair", "text": ", ".join(map(text_of, payload["repairs"]))}
    if kind == "tool_reject":
        return {"choice": 0, "kind": "reject", "text": text_of(payload.get("reason"))}
    return None


def _complete(text: str, start: int) -> int:
    """Where the part of a text ends that can be shown: after a space, unless a secret may follow it."""
    end = len(text)
    for _ in range(64):
        end = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
        if end < 0:
            break
        if not _GOES_ON.search(text, max(start, end - 16), end):
            return end + 1
    return start if len(text) - start <= _LONGEST else len(text)


async def follow(turn: HeldTurn, turns: Turns, visitor: Visitor) -> AsyncGenerator[bytes, None]:
    """The events of one turn: everything so far, then what comes, until it or the watcher's session has ended."""
    maker = RecordMaker(turn, turns.keys)
    text: LiveText | None = None
    yield sse("start", await turns.row(turn))
    silent_since = trio.current_time()
    while not visitor.is_over():
        began = trio.current_time()
        news = maker.visit()
        ended = news.end is not None
        if text is None and news.start is not None:
            text = LiveText(streams=turn.streams, keys=turns.keys)
        make = partial(_new_events, maker, news, text, visitor.label)
        size = sum(part.size for part in news.parts)
        out = make() if size <= AT_ONCE else await in_thread(make, abandon_on_cancel=True)
        if visitor.is_over():
            break
        if maker.missed:
            out.append(sse("missed", {"count": maker.missed}))
            maker.missed = 0
        if ended:
            yield b"".join([*out, sse("end", await turns.row(turn))])
            return
        now = trio.current_time()
        if out or now - silent_since >= KEEPALIVE:
            yield b"".join(out) or COMMENT
            silent_since = now
        await visitor.pause(max(PAUSE, SHARE * (trio.current_time() - began)))
    yield sse("bye", {})


def _new_events(maker: RecordMaker, news: News, text: LiveText | None, label: str | None) -> list[bytes]:
    recording = new_parts(maker.turn, maker.records(news))
    texts = [] if text is None else text.take(recording, ended=news.end is not None)
    out = [sse("text", event) for event in texts]
    block = wire_block(recording if label is None else clients_side(recording))
    if block["frames"] or block["client"]:
        out.append(sse("wire", {"frames": block["frames"], "client": block["client"]}))
    return out
