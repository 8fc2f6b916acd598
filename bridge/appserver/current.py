"""The current dialect: thread/start, thread/inject_items, turn/start (Codex 0.79 and later).

A turn is stateless: an ephemeral thread, the whole history injected item by item, a turn with empty input. A child
without `thread/inject_items` gets the conversation as text instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

from bridge import exact_json
from bridge.appserver.failures import COMPACTED, RpcError, finished_from_error
from bridge.appserver.prompt import (
    NativeTools,
    build_items,
    build_thread_start,
    build_tool_result,
    build_turn_start,
    split_input,
)
from bridge.appserver.thread_cache import (
    AHEAD,
    AnswerDigest,
    KeptThread,
    KeptThreads,
    ThreadMatch,
    interrupt,
    unsubscribe,
)
from bridge.appserver.turn import Call, ChildSettings, Flow, Resume, RunningTurn, usage_from
from bridge.core.events import Acted, Finished, ReasoningDone, Rerouted, Usage, UsageUpdate, search_action
from bridge.core.items import FunctionCall, FunctionOutput, Item
from bridge.core.thoughts import seal
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest

log = logging.getLogger("bridge.child")

Steps = Generator[Call | Resume, Any, Any]
"""A part of a turn's flow."""


ACTIONS = ("commandExecution", "fileChange", "mcpToolCall")
"""Items that do something."""


class CurrentTurn(RunningTurn):
    """One turn in the current dialect. With `native` tools its calls come as raw items, and end it.

    With `threads`, the conversation's thread is continued where there is one, and may be kept for the next turn. A turn
    that `needs_input` has no such threads.
    """

    # Only native turns use these. As class attributes they cost other turns no memory (see `RunningTurn`).
    _calls = 0
    _other_calls = False
    """The model has made calls that are withheld from the client, so their outputs will never come."""
    _usage_of_calls: Usage | None = None
    """Usage of the response that made the calls. The thread adds it to its total once they are answered."""
    _outputs: Mapping[str, dict[str, Any]] = MappingProxyType({})

    def __init__(
        self,
        turn: Turn,
        settings: ChildSettings,
        *,
        can_inject: bool,
        needs_input: bool = False,
        native: bool = False,
        threads: KeptThreads | None = None,
        now: float = 0.0,
    ) -> None:
        super().__init__()
        self._turn = turn
        self._settings = settings
        self._can_inject = can_inject
        self._needs_input = needs_input and can_inject
        self._turn_id: str | None = None
        # With the choice `none` nothing is offered, but the history may still hold calls.
        offered = turn.functions if turn.parses_tool_calls else ()
        self._native = NativeTools(offered) if native and turn.functions else None
        self._raw = self._native is not None or turn.encrypted_reasoning
        self._start = build_thread_start(
            turn, settings, history_as_text=not can_inject, native=self._native, raw=self._raw
        )
        begin = exact_json.dumps(self._start)
        self._digest = blake2b(begin, digest_size=16).digest()
        self._match: ThreadMatch | None = None
        if threads is not None and can_inject:
            # The session belongs to one client: no other client continues its thread, not even with the same text.
            owned = begin + (turn.session or "").encode()
            self._match = threads.find(owned, turn.items, now, self._options)
        self._used = self._continued.usage if self._continued is not None else Usage()
        self._thread_total = self._used

    @property
    def _continued(self) -> KeptThread | None:
        """The conversation's thread, where this turn continues it."""
        return self._match.thread if self._match is not None else None

    @property
    def begins_with(self) -> bytes | None:
        return self._digest if self._continued is None and self._can_inject else None

    @property
    def resumes(self) -> str | None:
        thread = self._continued
        return thread.id if thread is not None and thread.turn is not None else None

    def give_up_thread(self) -> None:
        self._match = None

    @property
    def _options(self) -> dict[str, Any]:
        return build_turn_start(self._turn, "", history_as_text=False)

    @property
    def ends_with_usage(self) -> bool:
        return self._native is None and not self._settings.native_tools

    @property
    def parks_tool_calls(self) -> bool:
        return self._native is not None

    def begin(self) -> Flow:
        if (yield from self._resume_turn()):
            return
        items = build_items(self._turn, self._settings, self._native) if self._can_inject else []
        if self._can_inject and not items:
            raise InvalidRequest("The request has only system messages, which are dropped. Add a user message.")
        items, new_input = split_input(items) if self._needs_input else (items, [])
        thread_id = yield from self._continue_thread()
        if thread_id is not None:
            yield self._turn_start(thread_id, new_input)
            return
        start, self._start = self._start, {}
        thread = yield from self._start_thread(start, self._digest)
        try:
            yield from self._prompt(thread["thread"]["id"], items, new_input)
        except RpcError:
            # If Codex refuses the items, the turn has still begun: it is interrupted once this one has failed.
            if AHEAD not in thread or self._turn_id is not None:
                raise
            # Codex has forgotten a thread that was started ahead. A new one will do.
            thread = yield from self._start_thread(start, None)
            yield from self._prompt(thread["thread"]["id"], items, new_input)

    def _start_thread(self, params: dict[str, Any], warm: bytes | None) -> Steps:
        try:
            found = yield Call("thread/start", params, claim=lambda result: str(result["thread"]["id"]), warm=warm)
        except RpcError as error:
            if self._native is not None and "dynamic tool" in error.rpc_message:
                raise InvalidRequest(f"Codex cannot offer a tool: {error.rpc_message}", param="tools") from error
            raise
        return dict(found)

    def _prompt(self, thread_id: str, items: list[dict[str, Any]], new_input: list[dict[str, Any]]) -> Steps:
        """Give a new thread its history, and start the turn: in one write, since Codex keeps the order of calls."""
        if items:
            yield Call("thread/inject_items", {"threadId": thread_id, "items": items}, waits=False)
        yield self._turn_start(thread_id, new_input)

    def _turn_start(self, thread_id: str, new_input: list[dict[str, Any]]) -> Call:
        params = build_turn_start(self._turn, thread_id, history_as_text=not self._can_inject)
        if new_input:
            params["input"] = new_input

        def learn(result: Any) -> str:
            # At once, and also where the call before it fails: then there is a turn to interrupt.
            self._turn_id = result["turn"]["id"]
            return thread_id

        return Call("turn/start", params, claim=learn)

    def _resume_turn(self) -> Steps:
        """Continue the turn that waits for the outputs in this request; False where there is none."""
        match = self._match
        if match is None or match.thread is None or match.thread.turn is None:
            return False
        thread, rest = match.thread, self._turn.items[match.known :]
        self._turn_id = thread.turn
        # All of them before the first is sent: an image that cannot be passed on fails this turn here. Later it would
        # fail the reader, on which all turns depend.
        outputs = {item.call_id: build_tool_result(item) for item in rest if isinstance(item, FunctionOutput)}
        if others := rest[thread.calls :]:
            yield self._injection(thread.id, others)
        self._outputs = outputs
        yield Resume(thread.id)
        return True

    def _continue_thread(self) -> Steps:
        """Send the conversation's thread the new items; None if the thread does not exist, or no longer does."""
        match = self._match
        if match is None or match.thread is None:
            return None
        known, rest = self._turn.items[: match.known], self._turn.items[match.known :]
        # To Codex, calls that the model wrote as text are only text.
        calls = [item for item in known if isinstance(item, FunctionCall)][-match.thread.calls or len(known) :]
        try:
            yield self._injection(match.thread.id, (*calls, *rest))
        except RpcError:
            # Codex has forgotten it. A new one will do.
            self._used = self._thread_total = Usage()
            self._match = ThreadMatch(match.digest)
            return None
        return match.thread.id

    def _injection(self, thread_id: str, items: Sequence[Item]) -> Call:
        """The call that adds items to a kept thread."""
        new_items = build_items(replace(self._turn, items=tuple(items)), self._settings, self._native)
        return Call("thread/inject_items", {"threadId": thread_id, "items": new_items}, claim=lambda _: thread_id)

    def output_of(self, call_id: str) -> dict[str, Any] | None:
        return self._outputs.get(call_id)

    def kept(self, answer: AnswerDigest, until: float) -> KeptThread | None:
        if self.key is None or self._match is None:
            return None
        digests, calls = answer.after(self._match.digest), len(answer.calls)
        if self.ended and not self._calls:
            return KeptThread(self.key, self._thread_total, digests, until, calls)
        # A turn that has ended after its native calls was stopped: their outputs cannot be given to it any more.
        if self.ended or self._usage_of_calls is None or self._other_calls or not self._calls:
            return None
        used = self._thread_total + self._usage_of_calls
        return KeptThread(self.key, used, digests, until, calls, self._turn_id, self._options)

    def interrupt(self) -> Call | None:
        return interrupt(self.key, self._turn_id) if self.key is not None and self._turn_id is not None else None

    def end(self) -> list[Call]:
        thread = self.key or (self._continued.id if self._continued is not None else None)
        return [] if thread is None else [unsubscribe(thread)]

    def receive(self, method: str, params: dict[str, Any]) -> None:
        read = _NOTIFICATIONS.get(method)
        if read is not None:
            read(self, params)

    def _text(self, params: dict[str, Any]) -> None:
        if not isinstance(params["delta"], str):
            raise TypeError(params["delta"])
        self.text(params["itemId"], params["delta"])

    def _summary(self, params: dict[str, Any]) -> None:
        self.reasoning(params["itemId"], params.get("summaryIndex", 0), params["delta"], raw=False)

    def _thought(self, params: dict[str, Any]) -> None:
        self.reasoning(params["itemId"], params.get("contentIndex", 0), params["delta"], raw=True)

    def _item_started(self, params: dict[str, Any]) -> None:
        if params["item"]["type"] in ACTIONS:
            self.add(Acted())

    def _usage(self, params: dict[str, Any]) -> None:
        # A thread counts from its beginning; however many model calls a turn made, it is the difference.
        self._thread_total = read_counts(params["tokenUsage"]["total"])
        self.usage(UsageUpdate(self._thread_total - self._used))

    def _turn_started(self, params: dict[str, Any]) -> None:
        self._turn_id = params["turn"]["id"]

    def _response_completed(self, params: dict[str, Any]) -> None:
        """A response of the provider is complete. Where it made calls, it is the client's answer."""
        if not self._calls:
            return
        if isinstance(params.get("usage"), dict):
            # The thread's own count comes when the calls have been answered.
            self._usage_of_calls = read_counts(params["usage"])
            self.usage(UsageUpdate(self._thread_total - self._used + self._usage_of_calls))
        # Codex waits for the outputs of the calls, and the client has them to come.
        self.finish(Finished("completed"))

    def _rerouted(self, params: dict[str, Any]) -> None:
        requested, model, reason = params["fromModel"], params["toModel"], params.get("reason")
        log.warning("request %s: %r answers instead of %r (%s)", self.req_id, model, requested, reason)
        self.add(Rerouted(str(model)))

    def _item_completed(self, params: dict[str, Any]) -> None:
        item = params["item"]
        if item["type"] == "agentMessage":
            self.text_done(item["id"], item["text"])
        elif item["type"] == "reasoning":
            self.reasoning_done(
                item["id"], item.get("summary") or [], item.get("content") or [], more_to_come=self._raw
            )
        elif item["type"] == "webSearch":
            self.searched(item["id"], _search_action(item))
        elif item["type"] == "contextCompaction":
            self._compacted(item)

    def _compacted(self, _: dict[str, Any]) -> None:
        if not self._settings.native_tools:
            self.fail(COMPACTED)

    def _raw_item(self, params: dict[str, Any]) -> None:
        # What was injected comes back too, under another turn's id.
        if params["turnId"] != self._turn_id:
            return
        item = params["item"]
        if item["type"] == "function_call" and self._native is not None:
            call = self._native.call_of(item)
            if call is not None and (self._turn.parallel or not self._calls):
                self._calls += 1
                self.called(call)
            else:
                self._other_calls = True
        elif item["type"] == "reasoning":
            if not isinstance(item["id"], str):
                raise TypeError(item["id"])
            content = item.get("encrypted_content") if self._turn.encrypted_reasoning else None
            self.add(ReasoningDone(item["id"], seal(self._turn, content) if isinstance(content, str) else None))

    def _error(self, params: dict[str, Any]) -> None:
        error = params["error"]
        if params.get("willRetry"):
            self._calls = 0
            self._other_calls = False
            self.restart(str(error.get("message")))
        else:
            self.fail_later(_failure(error))

    def _turn_completed(self, params: dict[str, Any]) -> None:
        turn = params["turn"]
        status = turn.get("status")
        if status == "interrupted":
            self.cancelled()
            return
        if status != "completed":
            self.fail_later(_failure(turn.get("error")))
        for item in turn.get("items") or ():
            # Only what no notification brought: a message is complete once, and then known.
            if item.get("type") == "agentMessage" and item.get("id") not in self._streamed:
                self._item_completed({"item": item})
        self.complete()


_NOTIFICATIONS: dict[str, Callable[[CurrentTurn, dict[str, Any]], None]] = {
    "item/agentMessage/delta": CurrentTurn._text,
    "item/reasoning/summaryTextDelta": CurrentTurn._summary,
    "item/reasoning/textDelta": CurrentTurn._thought,
    "item/started": CurrentTurn._item_started,
    "item/completed": CurrentTurn._item_completed,
    "rawResponseItem/completed": CurrentTurn._raw_item,
    "rawResponse/completed": CurrentTurn._response_completed,
    "thread/tokenUsage/updated": CurrentTurn._usage,
    "thread/compacted": CurrentTurn._compacted,
    "model/rerouted": CurrentTurn._rerouted,
    "error": CurrentTurn._error,
    "turn/started": CurrentTurn._turn_started,
    "turn/completed": CurrentTurn._turn_completed,
}
"""Every notification that a turn reads. Text deltas usually take the shorter path through `CurrentDecoder`."""


def _failure(error: Any) -> Finished:
    if not isinstance(error, dict):
        return finished_from_error(str(error or "The turn failed; Codex did not say why."), None)
    return finished_from_error(str(error.get("message")), error.get("codexErrorInfo"), error.get("additionalDetails"))


def read_counts(counts: dict[str, Any]) -> Usage:
    """Usage as Codex counts it for a thread. Raises KeyError or TypeError for anything else."""
    return usage_from(
        counts["inputTokens"],
        counts.get("cachedInputTokens", 0),
        counts["outputTokens"],
        counts.get("reasoningOutputTokens", 0),
        cache_write=counts.get("cacheWriteInputTokens", 0),
    )


def _search_action(item: dict[str, Any]) -> dict[str, Any]:
    """What was searched for, in the words of the Responses API."""
    given = item.get("action")
    action: dict[str, Any] = given if isinstance(given, dict) else {}
    if action.get("type") == "openPage":
        return search_action({"type": "open_page", "url": action.get("url")})
    if action.get("type") == "findInPage":
        return search_action({"type": "find_in_page", "url": action.get("url"), "pattern": action.get("pattern")})
    query = action.get("query") or item.get("query") or ""
    return search_action({"type": "search", "query": query, "queries": action.get("queries") or [query]})
