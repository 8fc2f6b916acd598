"""A turn of an app-server, played again from its recording through the code that reads a live one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bridge.appserver.affinity import KeptThread, KeptThreads, Place
from bridge.appserver.child import refusal
from bridge.appserver.current import CurrentTurn, read_counts
from bridge.appserver.legacy import LegacyTurn, Sends
from bridge.appserver.routes import Call, Resume, RunningTurn
from bridge.appserver.rpc import RpcError
from bridge.appserver.settings import ChildSettings
from bridge.errors import BackendProtocolError, BridgeError
from bridge.protolog.recording import Frame
from bridge.turn.events import Finished, TurnEvent, Usage
from bridge.turn.items import FunctionOutput, Item
from bridge.turn.turn import Turn

SETTINGS = ChildSettings()
"""What is sent to a child is not sent again, so the operator's own settings do not matter."""
_SAME = {
    "thread/resume": "thread/start",
    "thread/fork": "thread/start",
    "resumeConversation": "newConversation",
    "review/start": "turn/start",
}
"""Calls of other clients, and the call of ours that is answered alike."""
_LEGACY = ("newConversation", "sendUserTurn", "sendUserMessage")
_PROMPTS = ("turn/start", "sendUserTurn", "sendUserMessage")


class ChildPlayback:
    """`feed` it the frames in their order; `take` what they mean.

    The turn makes its calls as it would today and is given the recorded replies, so the calls need not be the same.
    """

    def __init__(self, turn: Turn, frames: Sequence[Frame], used: dict[str, Any] | None = None) -> None:
        asked = _asked(frames)
        self.running = _running(turn, frames, asked, used)
        self._before = _answers_before(asked)
        self.in_text = bool(turn.functions) and not self.running.parks_tool_calls
        """Whether calls stand in the text."""
        self._flow = self.running.begin()
        self._calls: list[Call] = []
        """The calls that wait for their replies."""
        self._step(lambda: next(self._flow))

    def feed(self, frame: Frame) -> None:
        """What the child said next."""
        message = frame.payload
        if frame.direction != "in" or not isinstance(message, dict):
            return
        if frame.kind in ("rpc_response", "rpc_error"):
            self._reply(frame.method, message)
        elif frame.kind == "rpc_notification" and isinstance(frame.method, str):
            params = message.get("params")
            # As with a live child, a notification of an unknown shape says nothing.
            with suppress(KeyError, TypeError, AttributeError, ValueError):
                self.running.receive(frame.method, params if isinstance(params, dict) else {})

    def take(self) -> list[TurnEvent]:
        """The events since the last call."""
        return self.running.take()

    def finish(self, end: Finished) -> None:
        """Nothing more was recorded; the turn ends as it did then, unless it has ended by itself."""
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
            detail = failure if isinstance(failure, dict) else {}
            code = detail.get("code")
            error = RpcError(call.method, code if isinstance(code, int) else 0, str(detail.get("message", failure)))
            self._step(lambda: self._flow.throw(error))
            return
        self._answer(call, message.get("result"))

    def _answer(self, call: Call, result: Any) -> None:
        try:
            if call.claim is not None:
                self.running.key = call.claim(result)
        except (KeyError, TypeError) as error:
            self._calls = []
            self.running.fail(BackendProtocolError(f"{call.method} was answered in an unknown form: {error!r}"))
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
            # As with a live child, whose answer no code understands.
            self.running.fail(BackendProtocolError("The turn could not be started; the bridge's log tells why."))


def _asked(frames: Sequence[Frame]) -> dict[str | None, Frame]:
    """The first call of each method."""
    return {
        _SAME.get(frame.method or "", frame.method): frame for frame in reversed(frames) if frame.kind == "rpc_request"
    }


def _answers_before(asked: dict[str | None, Frame]) -> dict[str, Any]:
    """The replies to calls that an earlier turn of the thread has made, or that its client does not make."""
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


def _running(
    turn: Turn, frames: Sequence[Frame], asked: dict[str | None, Frame], used: dict[str, Any] | None
) -> RunningTurn:
    """The turn as it was begun: in the dialect, and by the calls, that were recorded."""
    if any(method in asked for method in _LEGACY):
        return LegacyTurn(turn, SETTINGS, sends=_sends(asked), used=_usage(used))
    start = _params(asked.get("thread/start"))
    injects = "thread/inject_items" in asked or "turn/start" not in asked
    native = "dynamicTools" in start or ("experimentalRawEvents" in start and not turn.encrypted_reasoning)
    if "turn/start" not in asked and (resumed := _resumed(turn, frames)) is not None:
        return CurrentTurn(turn, SETTINGS, can_inject=True, native=True, threads=resumed)
    first = asked.get("thread/inject_items") or asked.get("turn/start")
    if first is not None and first.key is not None and ("thread/start" not in asked or used):
        return CurrentTurn(turn, SETTINGS, can_inject=True, native=native, threads=_Continued(first.key, used))
    return CurrentTurn(turn, SETTINGS, can_inject=injects, native=native)


def _sends(asked: dict[str | None, Frame]) -> Sends:
    if "sendUserMessage" not in asked:
        return "turn"
    return "both" if "sendUserTurn" in asked else "message"


def _params(frame: Frame | None) -> dict[str, Any]:
    payload = frame.payload if frame is not None else None
    params = payload.get("params") if isinstance(payload, dict) else None
    return params if isinstance(params, dict) else {}


def _resumed(turn: Turn, frames: Sequence[Frame]) -> _Continued | None:
    """The thread whose turn waited for the outputs in this request; None where none did."""
    answered = [frame for frame in frames if frame.kind == "server_reply" and frame.key is not None]
    told = [_params(frame) for frame in frames if frame.kind == "rpc_notification"]
    turns = [params["turnId"] for params in told if isinstance(params.get("turnId"), str)]
    if not answered or not turns:
        return None
    # What the thread had used until then is the first thing that Codex tells.
    used = next(
        (params["tokenUsage"].get("total") for params in told if isinstance(params.get("tokenUsage"), dict)), None
    )
    calls = len([item for item in turn.items if isinstance(item, FunctionOutput)])
    return _Continued(str(answered[0].key), used, turns[0], calls)


def _usage(used: Any) -> Usage:
    """What the thread had used before; nothing where that is not known."""
    with suppress(KeyError, TypeError):
        return read_counts(used or {})
    return Usage()


class _Continued(KeptThreads):
    """Finds the thread that the recorded turn continued, whatever was said in it."""

    def __init__(self, thread: str, used: Any, turn_id: str | None = None, calls: int = 0) -> None:
        super().__init__(0)
        self._thread = KeptThread(thread, _usage(used), (), 0.0, calls, turn_id)

    def find(
        self, start: dict[str, Any], items: Sequence[Item], now: float, options: Mapping[str, Any] | None = None
    ) -> Place:
        return Place(b"", self._thread, max(len(items) - 1, 0))
