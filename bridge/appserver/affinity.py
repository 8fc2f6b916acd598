"""A conversation keeps its thread, so that the provider finds its prompt in its cache.

Codex uses the thread's id as the provider's cache key, and a thread's prompt only ever grows at its end. A request
whose items begin with all that was said in a kept thread, the answer included, continues that thread: only what is new
is injected. Anything else gets a thread of its own. What a conversation has come to is compared by digest, so an edited
message, other instructions, other tools or another client never meet the wrong thread.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from bridge.turn.events import ReasoningDelta, Restarted, TextDelta, ToolCall, TurnEvent, Usage, WebSearch
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Item, Message

KEEP_SECONDS = 600.0
"""Providers forget a prompt after about as long."""


@dataclass(frozen=True, slots=True)
class KeptThread:
    """A thread that waits for the next turn of its conversation."""

    id: str
    usage: Usage
    """What it has used so far: Codex counts a thread's usage from its beginning."""
    digests: tuple[bytes, ...]
    until: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where in its conversation a turn stands: the thread to continue and how many items it has, and its own digest."""

    digest: bytes
    thread: KeptThread | None = None
    known: int = 0


def conversation_number(items: Sequence[Item]) -> int:
    """The same number for all turns of a conversation: it always begins in the same way."""
    return int.from_bytes(_extend(b"", items[:2])[:4])


class KeptThreads:
    """The threads that may be continued, at most `limit`. Each is taken by one turn at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_digest: dict[bytes, KeptThread] = {}
        self._in_order: collections.OrderedDict[str, KeptThread] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._in_order)

    def find(self, start: dict[str, Any], items: Sequence[Item], now: float) -> Place:
        """The place of a turn that would begin its thread with `start`. The thread found is taken out."""
        digests = list(_digests(orjson.dumps(start), items))
        # The last item is new: a thread is never asked to answer its own answer.
        for known in range(len(items) - 1, 0, -1):
            kept = self._by_digest.get(digests[known])
            if kept is not None and kept.until > now:
                self._remove(kept)
                return Place(digests[-1], kept, known)
        return Place(digests[-1])

    def keep(self, thread: KeptThread) -> list[str]:
        """Keep a thread; the ids of those that have to go for it."""
        gone = [kept for digest in thread.digests if (kept := self._by_digest.get(digest)) is not None]
        if self._limit > 0:
            self._in_order[thread.id] = thread
            self._by_digest |= dict.fromkeys(thread.digests, thread)
        while len(self._in_order) > self._limit:
            gone.append(next(iter(self._in_order.values())))
            self._remove(gone[-1])
        for kept in gone:
            self._remove(kept)
        removed = {kept.id for kept in gone} - {thread.id}
        return sorted(removed) if self._limit > 0 else [thread.id]

    def expire(self, now: float) -> list[str]:
        """Forget what has waited too long; the ids."""
        gone = [kept for kept in self._in_order.values() if kept.until <= now]
        for kept in gone:
            self._remove(kept)
        return [kept.id for kept in gone]

    def _remove(self, kept: KeptThread) -> None:
        self._in_order.pop(kept.id, None)
        for digest in kept.digests:
            if self._by_digest.get(digest) is kept:
                del self._by_digest[digest]


class AnswerDigest:
    """What an answer adds to its conversation, digested while it comes: a long one is not kept for that."""

    __slots__ = ("_called", "_item", "_joined", "_messages")

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._messages: list[blake2b] = []
        self._joined: blake2b | None = None
        """Of all text as one message, where there are several."""
        self._item: str | None = None
        """Whose text came last."""
        self._called = False

    def add(self, events: Iterable[TurnEvent]) -> None:
        """Take further events in."""
        for event in events:
            if isinstance(event, TextDelta):
                self._add_text(event)
            elif isinstance(event, ToolCall):
                self._called = True
            elif isinstance(event, Restarted):
                self._forget()
            elif isinstance(event, ReasoningDelta | WebSearch):
                self._item = None

    def _add_text(self, event: TextDelta) -> None:
        if event.item != self._item:
            self._item = event.item
            if self._messages and self._joined is None:
                self._joined = self._messages[0].copy()
            self._messages.append(blake2b(_BEFORE_TEXT, digest_size=16))
        # Within a JSON string every piece stands for itself.
        written = orjson.dumps("".join(event.pieces))[1:-1]
        self._messages[-1].update(written)
        if self._joined is not None:
            self._joined.update(written)

    def after(self, digest: bytes) -> tuple[bytes, ...]:
        """The digests of a conversation after this answer, for each way in which clients give it back.

        A response's messages come back one by one, in a chat all text is one message. Calls stand in the thread as the
        model wrote them, in its text, and their outputs could not be injected without them: with calls there are none.
        """
        if self._called:
            return ()
        joined = self._joined or (self._messages or [blake2b(_BEFORE_TEXT, digest_size=16)])[0]
        one_by_one = digest
        for message in self._messages:
            one_by_one = _joined_to(one_by_one, _ended(message))
        return tuple(dict.fromkeys((one_by_one, _joined_to(digest, _ended(joined)))))


_BEFORE_TEXT, _AFTER_TEXT = b'["assistant",["text","', b'"]]'
"""As `_written` writes a message of the assistant's."""


def _ended(message: blake2b) -> bytes:
    whole = message.copy()
    whole.update(_AFTER_TEXT)
    return whole.digest()


def _digests(start: bytes, items: Sequence[Item]) -> Iterator[bytes]:
    """The digest of the beginning, and after each item."""
    digest = blake2b(start, digest_size=16).digest()
    yield digest
    for item in items:
        digest = _extend(digest, (item,))
        yield digest


def _extend(digest: bytes, items: Iterable[Item]) -> bytes:
    for item in items:
        written = _written(item)
        if written is not None:
            digest = _joined_to(digest, blake2b(written, digest_size=16).digest())
    return digest


def _joined_to(digest: bytes, item: bytes) -> bytes:
    return blake2b(digest + item, digest_size=16).digest()


def _written(item: Item) -> bytes | None:
    """What an item says, without what clients may leave out: reasoning, for one, stays in the thread."""
    if isinstance(item, Message):
        return orjson.dumps([item.role, *_parts(item)])
    if isinstance(item, FunctionCall):
        return orjson.dumps(["call", item.call_id, item.full_name, item.arguments])
    if isinstance(item, FunctionOutput):
        return orjson.dumps(["output", item.call_id, *_parts(item)])
    return None if item.type == "reasoning" else orjson.dumps([item.type, dict(item.data)])


def _parts(item: Message | FunctionOutput) -> list[list[str | None]]:
    return [["image", part.url, part.detail] if isinstance(part, Image) else ["text", part.text] for part in item.parts]
