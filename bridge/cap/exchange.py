"""One CAP request: parsed, answered in packets that are kept for a while, and stored in its conversation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import trio

from bridge.app.continuation import session_of
from bridge.app.exchange import Exchange
from bridge.app.service import Service
from bridge.core.collect import TextOutput
from bridge.core.events import CLIENT_GONE, Finished, TurnEvent
from bridge.core.items import Message, Text
from bridge.errors import BridgeError, InvalidRequest, NotReady
from bridge.http.request import Headers
from bridge.ids import is_ours
from bridge.protocols.cap import ConversationState
from bridge.protocols.cap.encoder import CapEncoder, Form
from bridge.protocols.cap.failures import failure_from
from bridge.protocols.cap.models import ServiceRequest
from bridge.protocols.cap.request import conversation_of, owner_of, parse_assist, time_limit, wanted_model
from bridge.protocols.responses.build import build_stored_items
from bridge.store.base import Conversation

HEADERS: Headers = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
"""Headers of every answer that is not an error."""
RING_BYTES = 1024 * 1024


class Ring:
    """The last packets of a stream, numbered from 1. About `limit` bytes of packets that were `read` are kept."""

    def __init__(self, limit: int = RING_BYTES) -> None:
        self.last = 0
        """The number of the last packet."""
        self.read = 0
        """The number of the last packet that all readers have received."""
        self.size = 0
        """Bytes."""
        self._limit = limit
        self._packets: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Ring {self.first}..{self.last} size={self.size}>"

    @property
    def first(self) -> int:
        """The number of the oldest packet that is kept, or of the next packet if the ring is empty."""
        return self.last - len(self._packets) + 1

    @property
    def is_full(self) -> bool:
        """Whether the unread packets alone reach the limit."""
        unread = self._packets[max(0, self.read - self.first + 1) :]
        return self.size >= self._limit and sum(map(len, unread)) >= self._limit

    def add(self, packets: list[bytes]) -> None:
        """Append packets, and drop the oldest packets beyond the limit that have been read."""
        self._packets += packets
        self.last += len(packets)
        self.size += sum(map(len, packets))
        # Not for every packet, because the rest of the list is moved each time.
        if self.size <= self._limit + self._limit // 4:
            return
        gone = 0
        for packet in self._packets[: max(0, self.read - self.first + 1)]:
            if self.size <= self._limit:
                break
            self.size -= len(packet)
            gone += 1
        del self._packets[:gone]

    def after(self, number: int) -> list[bytes] | None:
        """All packets after this one; None if the next packet has been dropped."""
        index = number - self.first + 1
        return None if index < 0 else self._packets[index:]


log = logging.getLogger("bridge.server")


class AssistExchange(Exchange):
    """An exchange in CAP. Its packets go into `ring`, one by one; in the form `json`, all at the end.

    `open` raises BridgeError if the turn cannot be prepared or started. Call `publish` after each `next`, or
    `conclude`. `busy` holds the conversations with a running turn. `on_cut` is called when the answer is cut short.
    """

    def __init__(
        self,
        service: Service,
        key: str,
        url: str,
        request: ServiceRequest,
        data: Mapping[str, Any],
        form: Form,
        busy: set[tuple[str, str]],
    ) -> None:
        super().__init__(service, key, url)
        own_id = str(request.request_id).encode()
        self.headers = [(b"x-request-id", own_id), (b"x-bridge-request-id", self.id.encode())]
        self.request = request
        self.form: Form = form
        self.ring = Ring()
        self.conversation: str | None = None
        """The conversation's id, once the request is open; None if nothing is stored."""
        self.on_cut: Callable[[], None] = lambda: None
        self._data = data
        self._busy = busy
        self._held = False
        """Whether this request has reserved the conversation."""
        self._fresh: list[bytes] = []
        """Packets that are not published yet."""
        self._owner = f"{key}/{owner_of(request.context)}"
        """The owner of stored conversations: this key, user and session."""
        self._known = False
        """Whether the conversation exists in the store."""
        self._continues = False
        """Whether it has earlier turns."""

    @property
    def protocol(self) -> str:
        return "cap"

    @property
    def _encoder(self) -> CapEncoder:
        assert isinstance(self.encoder, CapEncoder)
        return self.encoder

    def refuse(self, error: BridgeError) -> None:
        """The request ended before its turn could: record the answer that its client gets."""
        self.fail(error)
        failure = failure_from(error, now=self._settings.now(), request_id=self.request.request_id)
        self.record_start(failure.status, [*HEADERS, *self.headers])
        self.record_json(failure.body)

    @property
    def hold(self) -> float:
        """Seconds for which an answer is held back, so that a failure can be an HTTP status."""
        return self._settings.hold

    def find_recording(self) -> None:
        """Choose the recording that answers, if recordings are replayed. Called first. Raises BridgeError."""
        self._choose("cap", dict(self._data))

    def time_limit(self) -> float:
        """Seconds that the answer may take; no limit in a replay, which ends as recorded. Raises BridgeError."""
        if self._settings.forgiving:
            return math.inf
        return time_limit(self.request, self._settings.cap.rules)

    async def open(self) -> None:
        """Parse the request and start its turn. If it is `cut` meanwhile, the answer is only its end."""
        with trio.CancelScope() as self._waiting:
            if self._cut is None:
                await self._open()
        if self.encoder is None:
            self.encoder = self._new_encoder()

    async def _open(self) -> None:
        settings, request = self._settings, self.request
        rules = settings.cap.rules
        name = wanted_model(request, rules)
        if name is None:
            name = await settings.router.default_model()
            rules = replace(rules, default_model=name)
        await self._wait_for_model(name)
        context = await self._begin_conversation(conversation_of(request))
        assist = parse_assist(request, self._resolve, rules, context, data=self._data)
        if self._conversation is not None:
            names = (b"x-conversation-id", b"x-conversation")
            self.headers += zip(names, map(str.encode, self._conversation), strict=True)
        backend = settings.router.backend(assist.turn.backend)
        turn = replace(
            assist.turn,
            stream=self.form != "json",
            session=session_of({"prompt_cache_key": self.conversation}, assist.turn, self._owner),
            provider_key=self.provider_key if backend.takes.provider_key else None,
        )
        await self._start(turn, self._new_encoder(assist.events), backend, lambda turn, backend: assist.ignored)

    def _new_encoder(self, events: frozenset[str] = frozenset()) -> CapEncoder:
        settings = self._settings
        return CapEncoder(
            self.request.request_id,
            now=settings.now,
            started_at=settings.now(),
            form=self.form,
            events=events,
            conversation=self._conversation,
            keeps_empty=settings.keeps_empty,
        )

    @property
    def _conversation(self) -> tuple[str, ConversationState] | None:
        # A replay gives the recorded state, even if the earlier turns are not in the log.
        state = self._settings.recorded_state or ("continued" if self._continues else "new")
        return None if self.conversation is None else (self.conversation, state)

    async def _begin_conversation(self, name: str | None) -> list[dict[str, Any]]:
        """The items of the conversation, which is reserved for this request until its end."""
        service, settings = self._service, self._settings
        if not service.keeps_responses:
            if name is None:
                return []
            raise InvalidRequest(
                "This service stores no conversations (PROXY_STORE=off). Leave 'payload.conversation_id' out.",
                param="payload.conversation_id",
                code="unsupported_parameter",
                http_status=422,
            )
        self.conversation = name or settings.new_id("conv")
        while name is None and (self._owner, self.conversation) in self._busy:
            # A replay gives the recorded id to every client that sends the same request.
            self.conversation = settings.new_id("conv")
        if (self._owner, self.conversation) in self._busy:
            self.conversation = None
            raise BridgeError(
                "A turn is running in this conversation. Wait until it has ended.",
                param="payload.conversation_id",
                code="turn_busy",
                http_status=409,
                retry_after=1,
                severity="transient",
            )
        self._busy.add((self._owner, self.conversation))
        self._held = True
        items = None if name is None else await service.store.list_items(self._owner, name)
        self._known = items is not None
        self._continues = bool(items)
        # A client that sends an id made by the bridge means an existing conversation, not an empty one.
        must_exist = name is not None and (settings.cap.strict or is_ours(name, "conv"))
        if items is None and must_exist and not settings.forgiving:
            raise InvalidRequest(
                "Unknown or expired conversation, or one of another user or session. Leave 'payload.conversation_id' "
                "out to begin a new one.",
                param="payload.conversation_id",
                code="conversation_not_found",
                http_status=404,
            )
        return [orjson.loads(item) for item in items or ()]

    def _encode(self, events: list[TurnEvent]) -> bytes:
        encoder = self._encoder
        try:
            packets = encoder.packets(events)
        except Exception:
            packets = encoder.fail(self.mistake())
        out = encoder.write(packets) if self._recorder.keeps_answers or self.form == "json" else b""
        if self.form != "json":
            self._fresh += packets
        elif encoder.finished:
            self._fresh = list(encoder.kept)
        return out

    def cut(self, end: Finished) -> None:
        super().cut(end)
        self.on_cut()

    def publish(self) -> None:
        """Hand the packets of `next` to the readers. A client that sees the end may continue the conversation."""
        if self.finished:
            self._release()
        self.ring.add(self._fresh)
        self._fresh = []

    def conclude(self, error: BridgeError) -> None:
        """Fail an answer of which packets have been published."""
        encoder = self._encoder
        if not encoder.finished:
            packets = encoder.fail(error)
            self._fresh += packets
            self.record_sse(encoder.write(packets))
        self._ready = None
        self.publish()

    async def _store(self) -> None:
        if self.conversation is None or self.turn is None:
            return
        encoder = self._encoder
        # Of a turn that failed, or that its client abandoned, only the empty conversation is stored: the client has
        # its id.
        is_kept = encoder.failure is None and (self._end is None or self._end.reason != CLIENT_GONE)
        if self._known and not is_kept:
            return
        # Without calls: CAP cannot send the output of a call, and providers refuse a call without its output.
        texts = [out.text for out in encoder.result.outputs if isinstance(out, TextOutput) and out.text]
        answer = [Message("assistant", (Text(text),)) for text in texts]
        new = [self.turn.items[-1], *answer] if is_kept else []
        items = [orjson.dumps(item) for item in build_stored_items(new, self._settings.new_id)]
        store = self._service.store
        try:
            if self._known:
                await store.add_items(self._owner, self.conversation, items)
            else:
                begun = Conversation(self.conversation, int(self._settings.now()), {})
                await store.create_conversation(self._owner, begun, items)
                self._known = True
        except NotReady as error:
            # The client already has its answer, except the end.
            log.warning("the conversation of request %s was not extended: %s", self.id, error.message)

    def _release(self) -> None:
        if self._held and self.conversation is not None:
            self._held = False
            self._busy.discard((self._owner, self.conversation))
