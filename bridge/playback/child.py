"""Recorded turns of an app-server and answers of a provider, read by the code that reads live ones. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bridge import exact_json
from bridge.appserver.current import CurrentTurn
from bridge.appserver.failures import RpcError, refusal
from bridge.appserver.legacy import LegacyTurn, Sends
from bridge.appserver.prompt import NativeTools
from bridge.appserver.thread_cache import KeptThread, KeptThreads, ThreadMatch
from bridge.appserver.turn import Call, ChildSettings, Resume, RunningTurn
from bridge.core.events import Finished, TurnEvent, Usage
from bridge.core.items import FunctionOutput, Item
from bridge.core.turn import Turn
from bridge.errors import BackendProtocolError, BridgeError
from bridge.log.recording import Frame
from bridge.log.transcript import total_used
from bridge.protocols.chat.presets import CUSTOM, PRESETS
from bridge.upstream.backend import Api, ChatApi, MessagesApi, ResponsesApi


class UpstreamPlayback:
    """A provider's answer: `feed` it the frames in order, `take` the events. `backend` is its recorded name."""

    in_text = False

    def __init__(self, turn: Turn, frames: Sequence[Frame], backend: str) -> None:
        self._buffer = _api(frames, backend).buffer(turn)

    def feed(self, frame: Frame) -> None:
        if frame.kind != "upstream_event" or self._buffer.finished:
            return
        payload = frame.payload
        data = payload.encode("utf-8", "replace") if isinstance(payload, str) else exact_json.dumps(payload)
        try:
            self._buffer.receive(data)
        except BridgeError as error:
            self._buffer.fail(error)

    def take(self) -> list[TurnEvent]:
        return self._buffer.take()

    def finish(self, end: Finished) -> None:
        if end.outcome in ("completed", "incomplete"):
            self._buffer.over(told=True)
        self._buffer.finish(end)


def _api(frames: Sequence[Frame], backend: str) -> Api:
    """The protocol of a provider, which the log does not name, from the form of its events."""
    for frame in frames:
        payload: Any = frame.payload
        if not isinstance(payload, dict):
            continue
        if frame.kind == "upstream_request" and "input" in payload:
            return ResponsesApi()
        if frame.kind == "upstream_event":
            kind = payload.get("type")
            if isinstance(kind, str) and kind.startswith(("message", "content_block", "ping")):
                return MessagesApi()
            if "choices" in payload:
                break
    return ChatApi(PRESETS.get(backend, CUSTOM))


SETTINGS = ChildSettings()
"""Nothing is sent to a child, so the operator's own settings do not matter."""
_SAME = {
    "thread/resume": "thread/start",
    "thread/fork": "thread/start",
    "resumeConversation": "newConversation",
    "review/start": "turn/start",
}
"""Calls of other clients, and our call that gets the same reply."""
_LEGACY = ("newConversation", "sendUserTurn", "sendUserMessage")
_PROMPTS = ("turn/start", "sendUserTurn", "sendUserMessage")


class ChildPlayback:
    """A turn of a child: `feed` it the frames in order, `take` the events.

    The current code makes its own calls and gets the recorded replies, so it may call other methods than recorded.
    """

    def __init__(self, turn: Turn, frames: Sequence[Frame], used: Usage | None = None) -> None:
        asked = _asked(frames)
        self.running = _running(turn, frames, asked, used)
        self._before = _answers_before(asked)
        self.in_text = bool(turn.functions) and not self.running.parks_tool_calls
        """Whether tool calls are in the text."""
        self._flow = self.running.begin()
        self._calls: list[Call] = []
        """The calls without a reply."""
        self._step(lambda: next(self._flow))

    def feed(self, frame: Frame) -> None:
        message = frame.payload
        if frame.direction != "in" or not isinstance(message, dict):
            return
        if frame.kind in ("rpc_response", "rpc_error"):
            self._reply(frame.method, message)
        elif frame.kind == "rpc_notification" and isinstance(frame.method, str):
            params = message.get("params")
            # As from a live child, a notification of an unknown shape is ignored.
            with suppress(KeyError, TypeError, AttributeError, ValueError):
                self.running.receive(frame.method, params if isinstance(params, dict) else {})

    def take(self) -> list[TurnEvent]:
        return self.running.take()

    def finish(self, end: Finished) -> None:
        """The recording ends: the turn ends as recorded, unless it has ended by itself."""
        if self._calls and end.outcome == "completed":
            method = self._calls[0].method
            end = Finished("failed", error=BackendProtocolError(f"The recording holds no answer to {method}."))
        self.running.finish(end)

    def _reply(self, method: str | None, message: dict[str, Any]) -> None:
        answered = _SAME.get(method or "", method)
        call = next((call for call in self._calls if call.method == answered), None)
        if call is None:
            return
        self.running.prompted = self.running.prompted or call.prompts
        failure = message.get("error")
        if failure is not None:
            self._step(lambda: self._flow.throw(RpcError.from_reply(call.method, failure)))
            return
        self._answer(call, message.get("result"))

    def _answer(self, call: Call, result: Any) -> None:
        try:
            if call.claim is not None:
                self.running.key = call.claim(result)
        except (KeyError, TypeError) as error:
            self._calls = []
            self.running.fail(BackendProtocolError(f"The reply to {call.method} has an unknown form: {error!r}"))
            return
        self._calls.remove(call)
        if not self._calls:
            self._step(lambda: self._flow.send(result))

    def _step(self, step: Callable[[], Call | Resume]) -> None:
        self._calls = []
        try:
            found = step()
            while isinstance(found, Resume) or not found.waits:
                if isinstance(found, Resume):
                    self.running.key = found.key
                else:
                    self._calls.append(found)
                found = self._flow.send(None)
            self._calls.append(found)
            if found.method in self._before:
                self._answer(found, self._before[found.method])
        except StopIteration:
            pass
        except BridgeError as error:
            self.running.fail(refusal(error))
        except Exception:
            # As with a live child whose reply breaks our code.
            self.running.fail(BackendProtocolError("The turn could not be started."))


def _asked(frames: Sequence[Frame]) -> dict[str | None, Frame]:
    """The first call of each method."""
    return {
        _SAME.get(frame.method or "", frame.method): frame for frame in reversed(frames) if frame.kind == "rpc_request"
    }


def _answers_before(asked: dict[str | None, Frame]) -> dict[str, Any]:
    """Replies to calls that the recording lacks: an earlier turn of the thread made them, or its client does not."""
    key = next((asked[method].key for method in _PROMPTS if method in asked), None)
    if key is None:
        return {}
    begun = {"thread": {"id": key}, "conversationId": key}
    made = {
        "thread/start": begun,
        "thread/inject_items": {},
        "newConversation": begun,
        "addConversationListener": {},
    }
    return {method: result for method, result in made.items() if method not in asked}


def _running(turn: Turn, frames: Sequence[Frame], asked: dict[str | None, Frame], used: Usage | None) -> RunningTurn:
    """The turn in the recorded dialect, begun by the recorded calls."""
    if any(method in asked for method in _LEGACY):
        sends: Sends = "turn"
        if "sendUserMessage" in asked:
            sends = "both" if "sendUserTurn" in asked else "message"
        return LegacyTurn(turn, SETTINGS, sends=sends, used=used)
    start = _params(asked.get("thread/start"))
    injects = "thread/inject_items" in asked or "turn/start" not in asked
    native = _is_native(turn, frames, start)
    if "turn/start" not in asked and (resumed := _resumed(turn, frames)) is not None:
        return CurrentTurn(turn, SETTINGS, can_inject=True, native=True, threads=resumed)
    first = asked.get("thread/inject_items") or asked.get("turn/start")
    if first is not None and first.key is not None and ("thread/start" not in asked or used):
        return CurrentTurn(turn, SETTINGS, can_inject=True, native=native, threads=_Continued(first.key, used))
    return CurrentTurn(turn, SETTINGS, can_inject=injects, native=native)


def _is_native(turn: Turn, frames: Sequence[Frame], start: dict[str, Any]) -> bool:
    """Whether the tools were native. The start of a thread that was kept, or started ahead, is not in the recording."""
    if start:
        return "dynamicTools" in start or ("experimentalRawEvents" in start and not turn.encrypted_reasoning)
    raw = [
        frame for frame in frames if frame.kind == "rpc_notification" and frame.method == "rawResponseItem/completed"
    ]
    if raw and not turn.encrypted_reasoning:
        return True
    tools, items = NativeTools(turn.functions), [_params(frame).get("item") for frame in raw]
    calls = [item for item in items if isinstance(item, dict) and item.get("type") == "function_call"]
    return any(tools.name_of(tool.full_name) == call.get("name") for call in calls for tool in turn.functions)


def _params(frame: Frame | None) -> dict[str, Any]:
    payload = frame.payload if frame is not None else None
    params = payload.get("params") if isinstance(payload, dict) else None
    return params if isinstance(params, dict) else {}


def _resumed(turn: Turn, frames: Sequence[Frame]) -> _Continued | None:
    """The thread whose turn waited for the outputs in this request, if any."""
    answered = [frame for frame in frames if frame.kind == "server_reply" and frame.key is not None]
    notes = [_params(frame) for frame in frames if frame.kind == "rpc_notification"]
    turns = [params["turnId"] for params in notes if isinstance(params.get("turnId"), str)]
    if not answered or not turns:
        return None
    # Codex begins with what the thread had used until then.
    used = next(
        (total_used({"params": params}) for params in notes if isinstance(params.get("tokenUsage"), dict)), None
    )
    calls = len([item for item in turn.items if isinstance(item, FunctionOutput)])
    return _Continued(str(answered[0].key), used, turns[0], calls)


class _Continued(KeptThreads):
    """Finds the thread that the recorded turn continued, whatever its content."""

    def __init__(self, thread: str, used: Usage | None, turn_id: str | None = None, calls: int = 0) -> None:
        super().__init__(0)
        self._thread = KeptThread(thread, used or Usage(), (), 0.0, calls, turn_id)

    def find(
        self, start: bytes, items: Sequence[Item], now: float, options: Mapping[str, Any] | None = None
    ) -> ThreadMatch:
        return ThreadMatch(b"", self._thread, max(len(items) - 1, 0))
