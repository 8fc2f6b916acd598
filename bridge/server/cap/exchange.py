"""A CAP request: read, continued, answered in packets that are kept for a while, and stored."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import trio

from bridge.api.cap.envelope import ServiceRequest
from bridge.api.cap.events import CapEncoder, Form
from bridge.api.cap.fold import ConversationState
from bridge.api.cap.request import conversation_of, owner_of, parse_assist, time_limit, wanted_model
from bridge.errors import BridgeError, InvalidRequest, NotReady
from bridge.ids import is_ours
from bridge.server.cap.ring import Ring
from bridge.server.continuation import item_objects
from bridge.server.exchange import Exchange, wait_for_model
from bridge.server.service import Service
from bridge.server.session import session_of
from bridge.store.base import Conversation
from bridge.turn.collect import TextOutput
from bridge.turn.events import CLIENT_GONE, Finished, TurnEvent
from bridge.turn.items import Item, Message, Text

log = logging.getLogger("bridge.server")


class AssistExchange(Exchange):
    """An exchange in CAP. What it says goes into its `ring`, packet by packet; in the form `json`, all at the end.

    `open` raises BridgeError when the turn cannot be prepared or begun; `publish` after each `next`, or `conclude`.
    `busy` holds the conversations in which a turn runs. `on_cut` is called when the answer is to end before its time.
    """

    __slots__ = (
        "_busy",
        "_continues",
        "_data",
        "_fresh",
        "_held",
        "_known",
        "_owner",
        "conversation",
        "form",
        "on_cut",
        "request",
        "ring",
    )

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
        """The conversation's name, once the request is open; None when nothing is stored here."""
        self.on_cut: Callable[[], None] = _nothing
        self._data = data
        self._busy = busy
        self._held = False
        """Whether the conversation is this request's."""
        self._fresh: list[bytes] = []
        """Packets that nobody may see yet."""
        self._owner = f"{key}/{owner_of(request.context)}"
        """What is stored is this client's, this user's and this session's."""
        self._known = False
        """Whether the store has the conversation."""
        self._continues = False
        """Whether there are earlier turns in it."""

    @property
    def protocol(self) -> str:
        return "cap"

    @property
    def hold(self) -> float:
        """Seconds for which an answer is held back, so that a failure can be a status."""
        return self._service.hold

    def find_recording(self) -> None:
        """Be answered by a recording, where recordings are played; before anything else. Raises BridgeError."""
        self._choose("cap", dict(self._data))

    def time_limit(self) -> float:
        """Seconds that the answer may take; what is played ends when it did. Raises BridgeError."""
        if self._service.forgiving:
            return math.inf
        return time_limit(self.request, self._service.cap.rules)

    async def open(self) -> None:
        """Read the request and start its turn; what is `cut` meanwhile has nothing but its end to tell."""
        with trio.CancelScope() as self._waiting:
            if self._cut is None:
                await self._open()
        if self.encoder is None:
            self.encoder = self._new_encoder()

    async def _open(self) -> None:
        service, request = self._service, self.request
        rules = service.cap.rules
        name = wanted_model(request, rules)
        if name is None:
            name = await service.router.default_model()
            rules = replace(rules, default_model=name)
        await wait_for_model(service.router, name)
        context = await self._begin_conversation(conversation_of(request))
        assist = parse_assist(request, self._resolve, rules, context, data=self._data)
        if self.conversation is not None:
            self.headers.append((b"x-conversation-id", self.conversation.encode()))
            self.headers.append((b"x-conversation", self._state.encode()))
        turn = replace(assist.turn, stream=self.form != "json", narrowed=assist.narrowed)
        named = {"prompt_cache_key": self.conversation}
        turn = replace(turn, session=session_of(named, turn, self._owner))
        backend = service.router.backend(turn.backend)
        if backend.takes.provider_key:
            turn = replace(turn, provider_key=self.provider_key)
        await self._start(turn, self._new_encoder(assist.events), backend, assist.ignored)

    def _new_encoder(self, events: frozenset[str] = frozenset()) -> CapEncoder:
        now = self._service.now
        return CapEncoder(
            self.request.request_id,
            now=now,
            started_at=now(),
            form=self.form,
            events=events,
            conversation=None if self.conversation is None else (self.conversation, self._state),
            keeps_empty=self._service.cap.keeps_empty,
        )

    @property
    def _state(self) -> ConversationState:
        # What is played is told as it was, even where the earlier turns are not in the log.
        return self._service.cap.recorded_state or ("continued" if self._continues else "new")

    def now(self) -> float:
        """Seconds since 1970."""
        return self._service.now()

    async def _begin_conversation(self, name: str | None) -> list[dict[str, Any]]:
        """What has been said in the conversation. From here on it is this request's, until its end."""
        service = self._service
        if not service.keeps_responses:
            if name is None:
                return []
            raise InvalidRequest(
                "Conversations are not stored here (PROXY_STORE=off): leave 'payload.conversation_id' out.",
                param="payload.conversation_id",
                code="unsupported_parameter",
                http_status=422,
            )
        self.conversation = name or service.new_id("conv")
        while name is None and (self._owner, self.conversation) in self._busy:
            # The name that a recording gives is given to everybody who asks the same.
            self.conversation = service.new_id("conv")
        if (self._owner, self.conversation) in self._busy:
            self.conversation = None
            raise BridgeError(
                "A turn runs in this conversation: wait for its end.",
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
        # A client that sends an id of ours means the conversation that it got the id for, and not an empty one.
        must_exist = name is not None and (service.cap.strict or is_ours(name, "conv"))
        if items is None and must_exist and not service.forgiving:
            raise InvalidRequest(
                "Unknown or expired conversation, or another user's or session's. Leave 'payload.conversation_id' "
                "out to begin a new one.",
                param="payload.conversation_id",
                code="conversation_not_found",
                http_status=404,
            )
        return [orjson.loads(item) for item in items or ()]

    def _encode(self, events: list[TurnEvent]) -> bytes:
        encoder = self.encoder
        assert isinstance(encoder, CapEncoder)
        try:
            packets = encoder.packets(events)
        except Exception:
            packets = encoder.fail(self.mistake())
        out = encoder.write(packets) if self._recorder is not None or self.form == "json" else b""
        if self.form != "json":
            self._fresh += packets
        elif encoder.finished:
            self._fresh = list(encoder.kept)
        return out

    def cut(self, end: Finished) -> None:
        super().cut(end)
        self.on_cut()

    def publish(self) -> None:
        """Show readers what `next` has made. Whoever sees the end can go on with the conversation."""
        if self.finished:
            self._release()
        self.ring.add(self._fresh)
        self._fresh = []

    def conclude(self, error: BridgeError) -> None:
        """End an answer that readers have seen something of, and that cannot go on."""
        encoder = self.encoder
        assert isinstance(encoder, CapEncoder)
        if not encoder.finished:
            packets = encoder.fail(error)
            self._fresh += packets
            self.record_sse(encoder.write(packets))
        self._ready = None
        self.publish()

    async def _store(self) -> None:
        encoder = self.encoder
        if self.conversation is None or self.turn is None or not isinstance(encoder, CapEncoder):
            return
        # Of a turn that failed, or that its client did not come back for, nothing is kept but the conversation itself:
        # the client has got its id.
        is_kept = encoder.failure is None and (self._end is None or self._end.reason != CLIENT_GONE)
        if self._known and not is_kept:
            return
        said = [self.turn.items[-1], *_said(encoder)] if is_kept else []
        items = [orjson.dumps(item) for item in item_objects(said, self._service.new_id)]
        store = self._service.store
        try:
            if self._known:
                await store.add_items(self._owner, self.conversation, items)
            else:
                begun = Conversation(self.conversation, int(self._service.now()), {})
                await store.create_conversation(self._owner, begun, items)
                self._known = True
        except NotReady as error:
            # The client has its answer already, all but the end.
            log.warning("the conversation of request %s was not extended: %s", self.id, error.message)

    def _release(self) -> None:
        if self._held and self.conversation is not None:
            self._held = False
            self._busy.discard((self._owner, self.conversation))


def _nothing() -> None:
    pass


def _said(encoder: CapEncoder) -> list[Item]:
    """The answer as items that the next turn begins with.

    Without calls: CAP has no way to send the output of one, and providers refuse a call without its output.
    """
    outputs = encoder.result.outputs
    return [Message("assistant", (Text(out.text),)) for out in outputs if isinstance(out, TextOutput) and out.text]
