"""A stream folded into what it comes to."""

from __future__ import annotations

from typing import Any

import pytest
from api.cap.samples import presented

from bridge.api.cap.fold import TurnFold
from bridge.api.cap.stream import CLOSE, ErrorSeverity, StreamError, StreamPacket, delta, error, event

FAILED = error(StreamError(code="x", message="y", severity=ErrorSeverity.FATAL))


def folded(*packets: StreamPacket) -> TurnFold:
    fold = TurnFold()
    for packet in packets:
        fold.add(packet)
    return fold


def test_texts_are_joined() -> None:
    fold = folded(delta("a"), delta(""), delta("b"), CLOSE)
    assert fold.output(("c", "new")) == {
        "text": "ab",
        "conversation_id": "c",
        "conversation": "new",
        "status": "completed",
    }
    assert fold.output(None) == {"text": "ab", "status": "completed"}
    assert (fold.closed, fold.error, fold.metrics) == (True, None, None)


def test_an_error_is_kept() -> None:
    assert folded(delta("a"), FAILED, CLOSE).error == FAILED.p


@pytest.mark.parametrize("before", [[CLOSE], [FAILED], [FAILED, CLOSE]])
def test_nothing_follows_the_end(before: list[StreamPacket]) -> None:
    fold = folded(*before)
    with pytest.raises(ValueError, match="after the end"):
        fold.add(delta("a"))
    if fold.closed:
        with pytest.raises(ValueError, match="after the end"):
            fold.add(CLOSE)


def test_a_stream_without_its_end_is_not_closed() -> None:
    assert not folded(delta("a")).closed
    assert not folded(FAILED).closed


@pytest.mark.parametrize(
    "payload", [{}, {"type": "thought_trace"}, {"type": "new", "data": {}}, {"type": 1, "data": {}}]
)
def test_events_that_mean_nothing(payload: dict[str, Any]) -> None:
    assert folded(event(payload), CLOSE).output(None) == {"text": "", "status": "completed"}


def test_notices() -> None:
    plain, cut = {"message": "a", "code": 503}, {"message": "b", "code": 206}
    fold = folded(event(presented("user_error", plain)))
    assert fold.output(None) == {"text": "", "status": "completed", "notices": [plain]}
    fold.add(event(presented("user_error", cut)))
    assert fold.output(None) == {"text": "", "status": "incomplete", "notices": [plain, cut]}
