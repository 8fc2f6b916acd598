"""A conversation keeps its thread, so that the provider finds its prompt in its cache.

Codex uses the thread's id as the provider's cache key, and a thread's prompt only ever grows at its end. A request
whose items begin with all that was said in a kept thread, the answer included, continues that thread: only what is new
is injected. Anything else gets a thread of its own. What a conversation has come to is compared by digest, so an edited
message, other instructions, other tools or another client never meet the wrong thread.

An answer with calls is continued, too. Calls that the model wrote as text stand in the thread as it wrote them, so
they are injected once more, as items, with their outputs: Codex drops an output without its call. A turn with native
calls is left waiting for their outputs, and the next request answers it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import orjson

from bridge import exact_json
from bridge.turn.events import ReasoningDelta, Restarted, TextDelta, ToolCall, TurnEvent, Usage, WebSearch
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Item, Message

KEEP_SECONDS = 600.0
"""Providers forget a prompt after about as long."""


_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class KeptThread:
    """A thread that waits for the next turn of its conversation."""

    id: str
    usage: Usage
    """What it has used so far: Codex counts a thread's usage from its beginning."""
    digests: tuple[bytes, ...]
    until: float
    calls: int = 0
    """How many calls its last answer made."""
    turn: str | None = None
    """The turn that waits for the outputs of these calls; None where it is over."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What that turn was started with. It cannot be changed while the turn runs."""

    def fits(self, known: Sequence[Item], rest: Sequence[Item], options: Mapping[str, Any]) -> bool:
        """Whether a request can continue the thread, which has the `known` items; `rest` is new.

        A waiting turn needs the outputs of all its calls first. After them only messages may come: Codex reports what
        is added to a running turn like the model's own output, so a call would be taken for a new one.
        """
        if self.turn is None:
            return True
        made = [item.call_id for item in known if isinstance(item, FunctionCall)][-self.calls :]
        outputs, others = rest[: self.calls], rest[self.calls :]
        answered = [item.call_id for item in outputs if isinstance(item, FunctionOutput)]
        only_messages = all(isinstance(item, Message) for item in others)
        return sorted(answered) == sorted(made) and only_messages and options == self.options


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

    def find(
        self, start: dict[str, Any], items: Sequence[Item], now: float, options: Mapping[str, Any] = _NONE
    ) -> Place:
        """The place of a turn that would begin its thread with `start`, and itself with `options`.

        The thread found is taken out.
        """
        digests = list(_digests(exact_json.dumps(start), items))
        # The last item is new: a thread is never asked to answer its own answer.
        for known in range(len(items) - 1, 0, -1):
            kept = self._by_digest.get(digests[known])
            if kept is not None and kept.until > now and kept.fits(items[:known], items[known:], options):
                self._remove(kept)
                return Place(digests[-1], kept, known)
        return Place(digests[-1])

    def keep(self, thread: KeptThread) -> list[KeptThread]:
        """Keep a thread; returns those that it replaces, and the oldest where there are too many."""
        if self._limit == 0:
            return [thread]
        gone = [kept for digest in thread.digests if (kept := self._by_digest.get(digest)) is not None]
        self._in_order[thread.id] = thread
        self._by_digest |= dict.fromkeys(thread.digests, thread)
        if len(self._in_order) > self._limit:
            gone.append(next(iter(self._in_order.values())))
        for kept in gone:
            self._remove(kept)
        return list({kept.id: kept for kept in gone if kept is not thread}.values())

    def expire(self, now: float) -> list[KeptThread]:
        """Forget what has waited too long."""
        gone = [kept for kept in self._in_order.values() if kept.until <= now]
        for kept in gone:
            self._remove(kept)
        return gone

    def waits(self, thread_id: str) -> bool:
        """Whether a thread's turn waits for the outputs of its calls."""
        kept = self._in_order.get(thread_id)
        return kept is not None and kept.turn is not None

    def take_waiting(self, thread_id: str | None) -> list[KeptThread]:
        """Forget a thread whose turn waited for outputs, and is over; empty where there is none."""
        gone = [self._in_order[thread_id]] if thread_id is not None and self.waits(thread_id) else []
        for kept in gone:
            self._remove(kept)
        return [replace(kept, turn=None) for kept in gone]

    def _remove(self, kept: KeptThread) -> None:
        self._in_order.pop(kept.id, None)
        for digest in kept.digests:
            if self._by_digest.get(digest) is kept:
                del self._by_digest[digest]


class AnswerDigest:
    """What an answer adds to its conversation, digested while it comes: a long one is not kept for that."""

    __slots__ = ("_item", "_items", "_joined", "calls")

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._items: list[blake2b] = []
        """Its messages and calls, in order."""
        self._joined: blake2b | None = None
        """Of all its text as one message."""
        self._item: str | None = None
        """Whose text came last."""
        self.calls: list[blake2b] = []

    def add(self, events: Iterable[TurnEvent]) -> None:
        """Take further events in."""
        for event in events:
            if isinstance(event, TextDelta):
                self._add_text(event)
            elif isinstance(event, ToolCall):
                call = FunctionCall(event.call_id, event.name, event.arguments, event.namespace, event.custom)
                self.calls.append(blake2b(_written(call) or b"", digest_size=16))
                self._items.append(self.calls[-1])
                self._item = None
            elif isinstance(event, Restarted):
                self._forget()
            elif isinstance(event, ReasoningDelta | WebSearch):
                self._item = None

    def _add_text(self, event: TextDelta) -> None:
        if event.item != self._item:
            self._item = event.item
            if self._joined is None:
                self._joined = blake2b(_BEFORE_TEXT, digest_size=16)
            self._items.append(blake2b(_BEFORE_TEXT, digest_size=16))
        # Within a JSON string every piece stands for itself.
        written = orjson.dumps("".join(event.pieces))[1:-1]
        self._items[-1].update(written)
        if self._joined is not None:
            self._joined.update(written)

    def after(self, digest: bytes) -> tuple[bytes, ...]:
        """The digests of a conversation after this answer, for each way in which clients give it back.

        The items of a response come back one by one. In a chat all text is one message, before the calls; where there
        is none, it may be an empty one.
        """
        text = self._joined or blake2b(_BEFORE_TEXT, digest_size=16)
        return tuple(dict.fromkeys(self._after(digest, way) for way in (self._items, [text, *self.calls])))

    def _after(self, digest: bytes, items: Iterable[blake2b]) -> bytes:
        for item in items:
            digest = _joined_to(digest, item.digest() if item in self.calls else _ended(item))
        return digest


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
        return orjson.dumps(["call", item.call_id, item.full_name, _canonical(item.arguments)])
    if isinstance(item, FunctionOutput):
        return orjson.dumps(["output", item.call_id, *_parts(item)])
    return None if item.type == "reasoning" else exact_json.dumps([item.type, dict(item.data)])


def _parts(item: Message | FunctionOutput) -> list[list[str | None]]:
    return [["image", part.url, part.detail] if isinstance(part, Image) else ["text", part.text] for part in item.parts]


def _canonical(arguments: str) -> str:
    """Arguments in one spelling: some clients parse them and serialise them again."""
    try:
        return exact_json.dumps(exact_json.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments
