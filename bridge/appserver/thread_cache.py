"""A conversation keeps its thread, so that the provider finds its prompt in its cache.

Codex uses the thread's id as the provider's cache key, and a thread's prompt only ever grows at its end. A request
whose items begin with the whole content of a kept thread, the answer included, continues that thread: only what is new
is injected. Any other request gets a thread of its own. Contents are compared by digest, so an edited message, other
instructions, other tools or another client never reach the wrong thread.

(A fork of a stored thread would keep the cache key too, but it writes files into the user's sessions.)

An answer with calls is continued, too. Calls that the model wrote as text are text in the thread, so they are injected
again as items, with their outputs: Codex drops an output without its call. A turn with native calls is left waiting for
their outputs, and the next request answers it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import orjson

from bridge import exact_json
from bridge.appserver.connection import Reply
from bridge.appserver.turn import Call, RunningTurn
from bridge.core.events import Finished, ReasoningDelta, Restarted, TextDelta, ToolCall, TurnEvent, Usage, WebSearch
from bridge.core.items import FunctionCall, FunctionOutput, Image, Item, Message, Text
from bridge.errors import BackendProtocolError

KEEP_SECONDS = 600.0
"""Providers forget a prompt after about as long."""
WARM_SECONDS = 60.0
"""How long a thread waits for a conversation."""
AHEAD = "startedAhead"
"""A member of such a thread's result that Codex does not know."""


def interrupt(thread: str, turn: str) -> Call:
    """The call that stops a turn."""
    return Call("turn/interrupt", {"threadId": thread, "turnId": turn})


def unsubscribe(thread: str) -> Call:
    """The call that lets Codex unload a thread. Otherwise it stays loaded for a while after its turn."""
    return Call("thread/unsubscribe", {"threadId": thread})


# Threads that are started ahead


class WarmThreads:
    """At most `limit` threads, by the digest of the parameters that they were started with.

    `thread/start` takes real Codex 5 ms, about half of the time to the first token that is not the provider's. Agents
    begin conversation after conversation with the same instructions and tools, and a new thread is still empty, so one
    that was started with equal parameters will do. One thread is kept ahead for each of the last few parameters; each
    holds about 0.75 MB in Codex.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._params: OrderedDict[bytes, dict[str, Any]] = OrderedDict()
        """The last few parameters."""
        self._ready: dict[bytes, tuple[dict[str, Any], float]] = {}
        """The results of their `thread/start`, and when they expire."""
        self._starting: dict[bytes, Callable[[Reply], None] | None] = {}
        """Threads that are being started, and the turn that already waits for one."""

    def __len__(self) -> int:
        return len(self._ready)

    def take(self, call: Call, done: Callable[[Reply], None]) -> bool:
        """Whether there is a thread for a turn that begins with this call: `done` gets the reply of its start.

        That may be at once. One that is just being started is waited for, unless another turn does already.
        """
        digest = call.warm
        if not self._limit or digest is None:
            return False
        self._params[digest] = call.params
        self._params.move_to_end(digest)
        if len(self._params) > self._limit:
            self._params.popitem(last=False)
        if (ready := self._ready.pop(digest, None)) is not None:
            done(Reply({**ready[0], AHEAD: True}))
            return True
        if digest in self._starting and self._starting[digest] is None:
            self._starting[digest] = done
            return True
        return False

    def begin(self, digest: bytes) -> dict[str, Any] | None:
        """The parameters to start another thread with; None where there is one, or none is wanted any more."""
        if digest in self._ready or digest in self._starting or digest not in self._params:
            return None
        self._starting[digest] = None
        return self._params[digest]

    def started(self, digest: bytes, reply: Reply, now: float) -> list[str]:
        """A thread has been started, or could not be; the threads to release because there are too many."""
        waiter = self._starting.pop(digest)
        if reply.error is None:
            try:
                _thread_id(reply.result)
            except (KeyError, TypeError) as error:
                reply = Reply(error=BackendProtocolError(f"Unexpected reply to thread/start: {error!r}"))
        if waiter is not None:
            waiter(reply)
            return []
        if reply.error is not None:
            return []
        gone = [self._ready.pop(each)[0] for each in list(self._ready) if each not in self._params]
        self._ready[digest] = reply.result, now + WARM_SECONDS
        return list(map(_thread_id, gone))

    def expire(self, now: float) -> list[str]:
        """The threads to release because no conversation has come for them."""
        late = [digest for digest, (_, until) in self._ready.items() if until <= now]
        return [_thread_id(self._ready.pop(digest)[0]) for digest in late]

    def deadline(self) -> float:
        """When the next one expires."""
        return min((until for _, until in self._ready.values()), default=math.inf)


def _thread_id(result: Any) -> str:
    return str(result["thread"]["id"])


# Threads that are kept


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

    def end(self) -> list[Call]:
        """The calls that release it."""
        stop = [] if self.turn is None else [interrupt(self.id, self.turn)]
        return [*stop, unsubscribe(self.id)]

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
class ThreadMatch:
    """Where in its conversation a turn stands: the thread to continue and how many items it has, and its own digest."""

    digest: bytes
    thread: KeptThread | None = None
    known: int = 0


def conversation_number(items: Sequence[Item]) -> int:
    """The same number for all turns of a conversation: it always begins in the same way."""
    return int.from_bytes(reduce(_extend, items[:2], b"")[:4])


class KeptThreads:
    """The threads that may be continued, at most `limit`. Each is taken by one turn at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_digest: dict[bytes, KeptThread] = {}
        self._in_order: OrderedDict[str, KeptThread] = OrderedDict()

    def __len__(self) -> int:
        return len(self._in_order)

    def find(
        self, start: bytes, items: Sequence[Item], now: float, options: Mapping[str, Any] | None = None
    ) -> ThreadMatch:
        """The match for a turn whose thread would begin with `start`, and itself with `options`.

        The thread found is taken out.
        """
        digests = list(_digests(start, items))
        # The last item is new: a thread never has to answer its own answer.
        for known in range(len(items) - 1, 0, -1):
            kept = self._by_digest.get(digests[known])
            if kept is not None and kept.until > now and kept.fits(items[:known], items[known:], options or {}):
                self._remove(kept)
                return ThreadMatch(digests[-1], kept, known)
        return ThreadMatch(digests[-1])

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
        """Remove threads that have waited too long."""
        gone = [kept for kept in self._in_order.values() if kept.until <= now]
        for kept in gone:
            self._remove(kept)
        return gone

    def waits(self, thread_id: str) -> bool:
        """Whether a thread's turn waits for the outputs of its calls."""
        kept = self._in_order.get(thread_id)
        return kept is not None and kept.turn is not None

    def take_waiting(self, thread_id: str | None) -> list[KeptThread]:
        """Forget and return the thread whose turn waited for outputs and has ended; empty if no turn waited on it."""
        gone = [self._in_order[thread_id]] if thread_id is not None and self.waits(thread_id) else []
        for kept in gone:
            self._remove(kept)
        return [replace(kept, turn=None) for kept in gone]

    def _remove(self, kept: KeptThread) -> None:
        self._in_order.pop(kept.id, None)
        for digest in kept.digests:
            if self._by_digest.get(digest) is kept:
                del self._by_digest[digest]


_hasher = partial(blake2b, digest_size=16)


class AnswerDigest:
    """What an answer adds to its conversation, digested while it comes: a long one is not kept for that."""

    __slots__ = ("_item", "_items", "_message", "_text", "calls")

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._items: list[blake2b | bytes] = []
        """The texts of its messages and the digests of its calls, in order."""
        self._item: str | None = None
        """The item whose text came last."""
        self._message: blake2b | None = None
        """The text of that item. Like the next hash it is made with the first text: a hash takes 450 bytes, and
        thousands of streams may wait."""
        self._text: blake2b | None = None
        """The text of all its messages."""
        self.calls: list[bytes] = []

    def add(self, events: Iterable[TurnEvent]) -> None:
        for event in events:
            if isinstance(event, TextDelta):
                self._text = self._text or _hasher()
                if event.item != self._item or self._message is None:
                    self._item, self._message = event.item, _hasher()
                    self._items.append(self._message)
                text = _encode("".join(event.pieces))
                self._message.update(text)
                self._text.update(text)
            elif isinstance(event, ToolCall):
                call = FunctionCall(event.call_id, event.name, event.arguments, event.namespace, event.custom)
                self.calls.append(_digest(_written(call) or b""))
                self._items.append(self.calls[-1])
                self._item = None
            elif isinstance(event, Restarted):
                self._forget()
            elif isinstance(event, ReasoningDelta | WebSearch):
                self._item = None

    def after(self, digest: bytes) -> tuple[bytes, ...]:
        """The digests of a conversation after this answer, for each form in which clients send it back.

        The items of a response come back one by one. In a chat all text is one message, before the calls. An
        answer without text may come back with an empty message.
        """
        one_message: list[blake2b | bytes] = [self._text or _hasher(), *self.calls]
        return tuple(reduce(_join, map(_answer_item, items), digest) for items in (self._items, one_message))


def _answer_item(item: blake2b | bytes) -> bytes:
    """The digest of a call, or of a message of the assistant with this text."""
    return item if isinstance(item, bytes) else _digest(orjson.dumps(["assistant", ["text", item.hexdigest()]]))


class KeepThread:
    """Digests what the client gets, so that the conversation's next turn finds its thread again."""

    __slots__ = ("_answer", "_keep", "_running")

    def __init__(self, running: RunningTurn, keep: Callable[[RunningTurn, AnswerDigest], None]) -> None:
        self._running = running
        self._keep = keep
        self._answer = AnswerDigest()

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        if events:
            self._answer.add(events)
            end = events[-1]
            if isinstance(end, Finished) and end.outcome == "completed":
                self._keep(self._running, self._answer)
        return events


def _digests(start: bytes, items: Sequence[Item]) -> Iterator[bytes]:
    """The digest of the beginning, and after each item."""
    return accumulate(items, _extend, initial=_digest(start))


def _extend(digest: bytes, item: Item) -> bytes:
    written = _written(item)
    return digest if written is None else _join(digest, _digest(written))


def _join(digest: bytes, item: bytes) -> bytes:
    return _digest(digest + item)


def _digest(data: bytes) -> bytes:
    return _hasher(data).digest()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _written(item: Item) -> bytes | None:
    """The content of an item without what clients may leave out, such as reasoning, which stays in the thread."""
    if isinstance(item, Message):
        return orjson.dumps([item.role, *_parts(item)])
    if isinstance(item, FunctionCall):
        return orjson.dumps(["call", item.call_id, item.full_name, _canonical(item.arguments)])
    if isinstance(item, FunctionOutput):
        return orjson.dumps(["output", item.call_id, *_parts(item)])
    return None if item.type == "reasoning" else exact_json.dumps([item.type, dict(item.data)])


def _parts(item: Message | FunctionOutput) -> list[list[str | None]]:
    """Texts as their digests: an answer's text comes in pieces (`AnswerDigest`)."""
    return [
        ["text", _digest(_encode(part.text)).hex()]
        if isinstance(part, Text)
        else ["image", part.url, part.detail]
        if isinstance(part, Image)
        else ["document", part.url]
        for part in item.parts
    ]


def _canonical(arguments: str) -> str:
    """Arguments in one spelling: some clients parse them and serialise them again."""
    try:
        return exact_json.dumps(exact_json.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments
