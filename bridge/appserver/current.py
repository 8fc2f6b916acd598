"""The current dialect: thread/start, thread/inject_items, turn/start (Codex 0.79 and later).

A turn is stateless: an ephemeral thread, the whole history injected item by item, a turn with empty input. A child
without `thread/inject_items` gets the conversation as text instead.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson

from bridge import exact_json
from bridge.appserver.affinity import AnswerDigest, KeptThread, KeptThreads, Place
from bridge.appserver.failures import COMPACTED, finished_from_error
from bridge.appserver.native import NativeTools, wire_name
from bridge.appserver.routes import Call, Flow, Resume, RunningTurn, usage_from
from bridge.appserver.rpc import RpcError
from bridge.appserver.settings import ChildSettings
from bridge.appserver.transcript import client_instructions, flatten, system_texts, tool_text
from bridge.errors import InvalidRequest
from bridge.tools.freeform import arguments_of
from bridge.tools.instructions import join_developer_text
from bridge.tools.output import can_enforce, format_text
from bridge.tools.schema import compact_json
from bridge.tools.tags import neutralise, neutralise_parts
from bridge.turn.events import Acted, Finished, ReasoningDone, Rerouted, Usage, UsageUpdate
from bridge.turn.images import inspect_image
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Item, Message, Part, Text
from bridge.turn.searches import search_action
from bridge.turn.thoughts import own_items, seal
from bridge.turn.turn import CODEX_TIERS, Turn

log = logging.getLogger("bridge.child")

OPT_OUT = (
    "warning",
    "deprecationNotice",
    "remoteControl/status/changed",
    "thread/started",
    "thread/status/changed",
    "thread/readState/changed",
    "item/started",
)
"""Notifications that say nothing we use; where Codex has its own tools, `item/started` does."""
ACTIONS = ("commandExecution", "fileChange", "mcpToolCall")
"""Items that do something."""


class CurrentDecoder:
    """Reads the current dialect from the wire. Its `codex/event/*` twins (0.79 to 0.107) are skipped."""

    delta = b'{"method":"item/agentMessage/delta","params":{'
    skip = (b'{"method":"codex/event/',)

    def read_delta(self, line: bytes) -> tuple[str, str, str]:
        params = orjson.loads(line)["params"]
        item, delta = params["itemId"], params["delta"]
        if type(delta) is not str or type(item) is not str:
            raise TypeError(params)
        return params["threadId"], item, delta


class CurrentTurn(RunningTurn):
    """One turn in the current dialect. With `native` tools its calls come as raw items, and end it.

    With `threads`, the conversation's thread is continued where there is one, and may be kept for the next turn. A turn
    that `needs_input` has no such threads.
    """

    # Only native turns use these. As class attributes they cost other turns no memory (see `RunningTurn`).
    _calls = 0
    _other_calls = False
    """The model has made calls that are withheld from the client, so their outputs will never come."""
    _asked_for: Usage | None = None
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
        # The session is a client's own: nobody goes on in another's thread, not even with the same words.
        whose = {**self._start, "session": turn.session}
        self._place = (
            threads.find(whose, turn.items, now, self._options) if threads is not None and can_inject else None
        )
        self._used = self._place.thread.usage if self._place is not None and self._place.thread else Usage()
        self._thread_total = self._used

    @property
    def resumes(self) -> str | None:
        thread = self._place.thread if self._place is not None else None
        return thread.id if thread is not None and thread.turn is not None else None

    def give_up_thread(self) -> None:
        self._place = None

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
            raise InvalidRequest("Nothing but system messages, which are left out here: there is nothing to answer.")
        items, spoken = split_input(items) if self._needs_input else (items, [])
        thread_id = yield from self._continue_thread()
        if thread_id is None:
            start, self._start = self._start, {}
            try:
                result = yield Call("thread/start", start, claim=lambda result: str(result["thread"]["id"]))
            except RpcError as error:
                if self._native is not None and "dynamic tool" in error.rpc_message:
                    raise InvalidRequest(f"Codex cannot offer a tool: {error.rpc_message}", param="tools") from error
                raise
            thread_id = str(result["thread"]["id"])
            if items:
                yield Call("thread/inject_items", {"threadId": thread_id, "items": items})
        params = build_turn_start(self._turn, thread_id, history_as_text=not self._can_inject)
        if spoken:
            params["input"] = spoken
        result = yield Call("turn/start", params)
        self._turn_id = result["turn"]["id"]

    def _resume_turn(self) -> Generator[Call | Resume, Any, bool]:
        """Continue the turn that waits for the outputs in this request; False where there is none."""
        place = self._place
        if place is None or place.thread is None or place.thread.turn is None:
            return False
        thread, rest = place.thread, self._turn.items[place.known :]
        self._turn_id = thread.turn
        # All of them before the first is sent: an image that cannot be passed on fails this turn here. Later it would
        # fail the reader, on which all turns depend.
        outputs = {item.call_id: _tool_result(item) for item in rest if isinstance(item, FunctionOutput)}
        if others := rest[thread.calls :]:
            yield self._injection(thread.id, others)
        self._outputs = outputs
        yield Resume(thread.id)
        return True

    def _continue_thread(self) -> Generator[Call | Resume, Any, str | None]:
        """Give the conversation's thread what is new; None where there is none (any more)."""
        place = self._place
        if place is None or place.thread is None:
            return None
        known, rest = self._turn.items[: place.known], self._turn.items[place.known :]
        # To Codex, calls that the model wrote as text are only text.
        calls = [item for item in known if isinstance(item, FunctionCall)][-place.thread.calls or len(known) :]
        try:
            yield self._injection(place.thread.id, (*calls, *rest))
        except RpcError:
            # Codex has forgotten it. A new one will do.
            self._used = self._thread_total = Usage()
            self._place = Place(place.digest)
            return None
        return place.thread.id

    def _injection(self, thread_id: str, items: Sequence[Item]) -> Call:
        """The call that adds items to a kept thread."""
        news = build_items(replace(self._turn, items=tuple(items)), self._settings, self._native)
        return Call("thread/inject_items", {"threadId": thread_id, "items": news}, claim=lambda _: thread_id)

    def output_of(self, call_id: str) -> dict[str, Any] | None:
        return self._outputs.get(call_id)

    def kept(self, answer: AnswerDigest, until: float) -> KeptThread | None:
        if self.key is None or self._place is None:
            return None
        digests, calls = answer.after(self._place.digest), len(answer.calls)
        if self.ended and not self._calls:
            return KeptThread(self.key, self._thread_total, digests, until, calls)
        # A turn that has ended after its native calls was stopped: their outputs cannot be given to it any more.
        if self.ended or self._asked_for is None or self._other_calls or not self._calls:
            return None
        used = self._thread_total + self._asked_for
        return KeptThread(self.key, used, digests, until, calls, self._turn_id, self._options)

    def interrupt(self) -> Call | None:
        if self.key is None or self._turn_id is None:
            return None
        return interrupt(self.key, self._turn_id)

    def end(self) -> list[Call]:
        taken = self._place.thread if self._place is not None else None
        thread = self.key or (taken.id if taken is not None else None)
        return [] if thread is None else [unsubscribe(thread)]

    def receive(self, method: str, params: dict[str, Any]) -> None:
        if method == "item/agentMessage/delta":
            if not isinstance(params["delta"], str):
                raise TypeError(params["delta"])
            self.text(params["itemId"], params["delta"])
        elif method == "item/reasoning/summaryTextDelta":
            self.reasoning(params["itemId"], params.get("summaryIndex", 0), params["delta"], raw=False)
        elif method == "item/reasoning/textDelta":
            self.reasoning(params["itemId"], params.get("contentIndex", 0), params["delta"], raw=True)
        elif method == "item/completed":
            self._item_completed(params["item"])
        elif method == "item/started":
            if params["item"]["type"] in ACTIONS:
                self.add(Acted())
        elif method == "thread/tokenUsage/updated":
            # A thread counts from its beginning; however many model calls a turn made, it is the difference.
            self._thread_total = read_counts(params["tokenUsage"]["total"])
            self.usage(UsageUpdate(self._thread_total - self._used))
        elif method == "thread/compacted":
            self._compacted()
        elif method == "turn/started":
            self._turn_id = params["turn"]["id"]
        elif method == "error":
            self._error(params)
        elif method == "turn/completed":
            self._turn_completed(params["turn"])
        elif method == "rawResponseItem/completed":
            # What was injected comes back too, under another turn's id.
            if params["turnId"] == self._turn_id:
                self._raw_item(params["item"])
        elif method == "rawResponse/completed" and self._calls:
            if isinstance(params.get("usage"), dict):
                # The thread's own count comes when the calls have been answered.
                self._asked_for = read_counts(params["usage"])
                self.usage(UsageUpdate(self._thread_total - self._used + self._asked_for))
            # The model has made all its calls. Codex waits for their results; the client has them to come.
            self.finish(Finished("completed"))
        elif method == "model/rerouted":
            self._rerouted(params)

    def _rerouted(self, params: dict[str, Any]) -> None:
        asked, model, reason = params["fromModel"], params["toModel"], params.get("reason")
        log.warning("request %s: %r answers instead of %r (%s)", self.req_id, model, asked, reason)
        self.add(Rerouted(str(model)))

    def _item_completed(self, item: dict[str, Any]) -> None:
        if item["type"] == "agentMessage":
            self.text_done(item["id"], item["text"])
        elif item["type"] == "reasoning":
            self.reasoning_done(
                item["id"], item.get("summary") or [], item.get("content") or [], more_to_come=self._raw
            )
        elif item["type"] == "webSearch":
            self.searched(item["id"], _search_action(item))
        elif item["type"] == "contextCompaction":
            self._compacted()

    def _compacted(self) -> None:
        if not self._settings.native_tools:
            self.fail(COMPACTED)

    def _raw_item(self, item: dict[str, Any]) -> None:
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

    def _turn_completed(self, turn: dict[str, Any]) -> None:
        status = turn.get("status")
        if status == "interrupted":
            self.cancelled()
            return
        if status != "completed":
            self.fail_later(_failure(turn.get("error")))
        for item in turn.get("items") or ():
            # Only what no notification brought: a message is complete once, and then known.
            if item.get("type") == "agentMessage" and item.get("id") not in self._streamed:
                self._item_completed(item)
        self.complete()


def interrupt(thread: str, turn: str) -> Call:
    """The call that stops a turn."""
    return Call("turn/interrupt", {"threadId": thread, "turnId": turn})


def unsubscribe(thread: str) -> Call:
    """The call that lets Codex unload a thread."""
    return Call("thread/unsubscribe", {"threadId": thread})


def build_thread_start(
    turn: Turn,
    settings: ChildSettings,
    *,
    history_as_text: bool,
    native: NativeTools | None = None,
    raw: bool = False,
) -> dict[str, Any]:
    """Parameters of thread/start. Sandbox, approval and directory are the operator's, never the client's."""
    guard = turn.parses_tool_calls and native is None
    texts = system_texts(_system_items(turn, settings), guard_tags=guard) if history_as_text else []
    tools = tool_text(turn) if native is None else native.choice_text(turn.tool_choice)
    params: dict[str, Any] = {
        "model": turn.model,
        "cwd": settings.workdir,
        # Codex 0.143 removed `on-failure`. The bridge declines every approval, so `on-request` means the same.
        "approvalPolicy": "on-request" if settings.approval_policy == "on-failure" else settings.approval_policy,
        "sandbox": settings.sandbox_mode,
        "ephemeral": True,
        "developerInstructions": join_developer_text(
            tools, client_instructions(turn, guard_tags=guard), *texts, format_text(turn)
        ),
    }
    if turn.provider is not None:
        params["modelProvider"] = turn.provider
    if not settings.native_tools:
        params["baseInstructions"] = ""
    if turn.service_tier in CODEX_TIERS:
        params["serviceTier"] = turn.service_tier
    if native is not None and (specs := native.specs()):
        params["dynamicTools"] = specs
    if raw:
        params["experimentalRawEvents"] = True
    if config := _config(turn, settings):
        params["config"] = config
    return params


def _config(turn: Turn, settings: ChildSettings) -> dict[str, Any]:
    """Settings of this thread alone. What the client may choose among, the operator has allowed."""
    config: dict[str, Any] = {}
    search = turn.web_search
    if search is not None and settings.web_search != "off":
        config["web_search"] = "cached" if "cached" in (search.mode, settings.web_search) else "live"
        asked = {
            "allowed_domains": list(search.allowed_domains),
            "context_size": search.context_size,
            "location": dict(search.location),
        }
        if options := {name: value for name, value in asked.items() if value}:
            # A path, not a nested table: that would replace the whole of `tools`, and what is switched off there.
            config["tools.web_search"] = options
    if turn.verbosity is not None:
        config["model_verbosity"] = turn.verbosity
    return config


def build_turn_start(turn: Turn, thread_id: str, *, history_as_text: bool) -> dict[str, Any]:
    """Parameters of turn/start: empty input when the history was injected."""
    params: dict[str, Any] = {"threadId": thread_id, "input": []}
    if history_as_text:
        parts = flatten(turn.items, guard_tags=turn.parses_tool_calls)
        params["input"] = [
            {"type": "text", "text": part.text} if isinstance(part, Text) else {"type": "image", "url": part.url}
            for part in parts
        ]
    if turn.effort is not None:
        # `ultra` is `max` with subagents of Codex's own, which are off; left to Codex it would become less than `max`.
        params["effort"] = "max" if turn.effort == "ultra" else turn.effort
    params["summary"] = turn.summary or "auto"
    if turn.output_format is not None and can_enforce(turn.output_format):
        params["outputSchema"] = turn.output_format.schema
    return params


def build_items(turn: Turn, settings: ChildSettings, native: NativeTools | None = None) -> list[dict[str, Any]]:
    """The history as Responses items, in the forms that `thread/inject_items` keeps.

    Codex drops `system` messages (so they become `developer`), replaces low-detail images by a text, and refuses
    the whole list for one remote image. Other providers' thoughts are left out.
    """
    guard = turn.parses_tool_calls and native is None
    keep_system = not settings.drops_system_prompt(turn.endpoint, "current")
    return [
        _item(item, guard, native)
        for item in own_items(turn)
        if keep_system or not (isinstance(item, Message) and item.role in ("system", "developer"))
    ]


def split_input(items: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(what to inject, the turn's input) for a child that refuses empty input.

    A text of the user's at the end is the input: it reaches the model as if it had been injected. Anything else would
    not (Codex puts tags around images, and has no tool outputs in an input), so it is injected and followed by an empty
    text, which adds an empty message.
    """
    last = items[-1]
    if last.get("role") == "user" and last["content"] and all(part["type"] == "input_text" for part in last["content"]):
        return items[:-1], [{"type": "text", "text": part["text"]} for part in last["content"]]
    return items, [{"type": "text", "text": ""}]


def _system_items(turn: Turn, settings: ChildSettings) -> tuple[Item, ...]:
    return () if settings.drops_system_prompt(turn.endpoint, "current") else turn.items


def _item(item: Item, guard: bool, native: NativeTools | None) -> dict[str, Any]:
    if isinstance(item, Message):
        kind = "output_text" if item.role == "assistant" else "input_text"
        return {
            "type": "message",
            "role": "developer" if item.role == "system" else item.role,
            "content": _parts(item.parts, kind, guard),
        }
    if isinstance(item, FunctionCall):
        return _call_item(item, guard, native)
    if isinstance(item, FunctionOutput):
        plain = all(isinstance(part, Text) for part in item.parts)
        output: Any = (
            (neutralise(item.text) if guard else item.text) if plain else _parts(item.parts, "input_text", guard)
        )
        # A custom tool is offered natively as a function; its earlier calls are then calls of that function.
        kind = "custom_tool_call_output" if item.custom and native is None else "function_call_output"
        return {"type": kind, "call_id": item.call_id, "output": output}
    if guard:
        # In JSON a tag looks the same as in the text.
        return dict(exact_json.loads(neutralise(compact_json(item.data))))
    return dict(item.data)


def _call_item(call: FunctionCall, guard: bool, native: NativeTools | None) -> dict[str, Any]:
    given = neutralise(call.arguments) if guard else call.arguments
    if native is not None:
        arguments = arguments_of(given) if call.custom else given
        name = native.name_of(call.full_name)
        return {"type": "function_call", "call_id": call.call_id, "name": name, "arguments": arguments}
    kind, member = ("custom_tool_call", "input") if call.custom else ("function_call", "arguments")
    item = {"type": kind, "call_id": call.call_id, "name": wire_name(call.name), member: given}
    return item if call.namespace is None else item | {"namespace": wire_name(call.namespace)}


def _parts(parts: Sequence[Part], kind: str, guard: bool) -> list[dict[str, Any]]:
    texts = [part.text for part in parts if isinstance(part, Text)]
    said = iter(neutralise_parts(texts) if guard else texts)
    return [{"type": kind, "text": next(said)} if isinstance(part, Text) else _image(part) for part in parts]


def _image(image: Image) -> dict[str, Any]:
    if image.url[:5].lower() != "data:":
        raise InvalidRequest(
            "Codex takes no remote images. Send the image as a data URL (data:image/png;base64,…).",
            code="unsupported_image_url",
        )
    inspect_image(image.url)
    # For `low` Codex would send a sentence instead of the image. Some versions refuse `auto`, which is the default.
    detail = {"detail": image.detail} if image.detail in ("high", "original") else {}
    return {"type": "input_image", "image_url": image.url, **detail}


def _tool_result(output: FunctionOutput) -> dict[str, Any]:
    """The answer to `item/tool/call`. Codex turns a single text into a string, the form that injected outputs have."""
    items: list[dict[str, Any]] = [{"type": "inputText", "text": output.text}]
    if not all(isinstance(part, Text) for part in output.parts):
        items = [
            {"type": "inputText", "text": part.text}
            if isinstance(part, Text)
            else {"type": "inputImage", "imageUrl": _image(part)["image_url"]}
            for part in output.parts
        ]
    return {"contentItems": items, "success": True}


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
