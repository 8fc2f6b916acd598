"""A recorded child is read by the code that reads a live one, whatever it said."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.events import Finished, TextDelta, TurnEvent
from bridge.core.models import ModelChoice
from bridge.core.turn import Turn
from bridge.log.recording import Frame
from bridge.playback.child import ChildPlayback
from bridge.protocols.reading import parse_request

Json = dict[str, Any]
THREAD = {"thread": {"id": "t"}}
DELTA = {"threadId": "t", "turnId": "u", "itemId": "i", "delta": "hello"}
DONE = {"threadId": "t", "turn": {"id": "u", "status": "completed", "items": [], "error": None}}


def turn() -> Turn:
    return parse_request({"model": "m", "input": "x"}, "responses").for_model(ModelChoice("m", "m", None, "a"))


def asked(method: str, **params: Any) -> Frame:
    return Frame(0.0, None, "out", "rpc_request", method, 1, None, {"method": method, "params": params})


def replied(method: str, result: Any) -> Frame:
    return Frame(0.0, 1, "in", "rpc_response", method, 1, None, {"result": result})


def refused(method: str, error: Any) -> Frame:
    return Frame(0.0, 1, "in", "rpc_error", method, 1, None, {"error": error})


def told(method: str, params: Any) -> Frame:
    return Frame(0.0, 1, "in", "rpc_notification", method, None, "t", {"params": params})


BEGIN = [asked("thread/start"), replied("thread/start", THREAD), asked("thread/inject_items")]
PROMPT = [replied("thread/inject_items", {}), asked("turn/start"), replied("turn/start", {"turn": {"id": "u"}})]


def events(*frames: Frame, end: Finished | None = None) -> list[TurnEvent]:
    playback = ChildPlayback(turn(), frames)
    for frame in frames:
        playback.feed(frame)
    playback.finish(end or Finished("completed"))
    return playback.take()


def test_an_answer_has_the_content_of_its_frames() -> None:
    said = events(*BEGIN, *PROMPT, told("item/agentMessage/delta", DELTA), told("turn/completed", DONE))
    assert [piece for event in said if isinstance(event, TextDelta) for piece in event.pieces] == ["hello"]
    assert isinstance(said[-1], Finished)


def test_a_turn_without_an_end_from_its_child_ends_as_recorded() -> None:
    said = events(*BEGIN, *PROMPT, told("item/agentMessage/delta", DELTA), end=Finished("cancelled", "client_gone"))
    assert said[-1] == Finished("cancelled", "client_gone")


def test_a_missing_reply_is_an_error() -> None:
    (end,) = events(*BEGIN[:1])
    assert isinstance(end, Finished)
    assert end.error is not None
    assert end.error.message == "The recording holds no answer to thread/start."


def test_a_refusal_ends_the_turn() -> None:
    (end,) = events(BEGIN[0], refused("thread/start", {"code": -32001, "message": "overloaded"}))
    assert isinstance(end, Finished)
    assert (end.outcome, end.error is None) == ("failed", False)


@pytest.mark.parametrize("result", [None, 5, [], {}, {"thread": None}, {"thread": {"id": None}}, "x"])
def test_a_reply_of_any_form_ends_in_events(result: Any) -> None:
    for frames in (
        [BEGIN[0], replied("thread/start", result)],
        [*BEGIN, *PROMPT[:2], replied("turn/start", result), told("turn/completed", DONE)],
        [BEGIN[0], refused("thread/start", result)],
    ):
        assert isinstance(events(*frames)[-1], Finished)


@pytest.mark.parametrize(
    "params", [None, 5, [], {}, {"turn": 5}, {"item": []}, {"delta": {}}, {"tokenUsage": {"total": []}}]
)
def test_a_notification_of_an_unknown_form_is_ignored(params: Any) -> None:
    methods = [
        "item/started",
        "item/completed",
        "item/agentMessage/delta",
        "thread/tokenUsage/updated",
        "error",
        "none",
    ]
    odd = [told(method, params) for method in methods]
    assert isinstance(events(*BEGIN, *PROMPT, *odd, told("turn/completed", DONE))[-1], Finished)


def test_the_current_calls_may_differ_from_the_recorded_ones() -> None:
    """A reply to a call that is not made now is passed over."""
    extra = [asked("thread/other"), replied("thread/other", {"x": 1})]
    said = events(BEGIN[0], *extra, *BEGIN[1:], *PROMPT, told("turn/completed", DONE))
    assert isinstance(said[-1], Finished)


CONVERSATION = {"conversationId": "t"}
LEGACY = [
    asked("newConversation"),
    replied("newConversation", CONVERSATION),
    asked("addConversationListener"),
    replied("addConversationListener", {"subscriptionId": "s"}),
]
SENDS = [asked("sendUserTurn"), asked("sendUserMessage")]
LEGACY_DONE = told("codex/event/task_complete", {**CONVERSATION, "msg": {"type": "task_complete"}})
SAID = told("codex/event/agent_message", {**CONVERSATION, "msg": {"type": "agent_message", "message": "hello"}})


@pytest.mark.parametrize("order", [["sendUserTurn", "sendUserMessage"], ["sendUserMessage", "sendUserTurn"]])
def test_the_two_legacy_calls_may_be_answered_in_any_order(order: list[str]) -> None:
    """Also where the log is older: then the second call was made after the reply to the first."""
    replies = [replied(method, {}) for method in order]
    for sends in ([*SENDS, *replies], [SENDS[0], replies[0], SENDS[1], replies[1]]):
        said = events(*LEGACY, *sends, SAID, LEGACY_DONE)
        assert [piece for event in said if isinstance(event, TextDelta) for piece in event.pieces] == ["hello"]
        assert said[-1] == Finished("completed")
    (end,) = events(*LEGACY, *SENDS, replies[0], end=Finished("completed"))
    assert isinstance(end, Finished)
    assert end.error is not None
    assert end.error.message == f"The recording holds no answer to {order[1]}."


@pytest.mark.parametrize("method", ["sendUserTurn", "sendUserMessage"])
def test_either_legacy_call_may_be_refused(method: str) -> None:
    (end,) = events(*LEGACY, *SENDS, refused(method, {"code": 5, "message": "No."}))
    assert isinstance(end, Finished)
    assert end.error is not None
    assert end.error.message == f"The Codex app-server refused {method}: No."
