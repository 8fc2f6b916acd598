"""Several choices in one completion."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from protocols.cases import CHOICES, END, FIRST_CALL, GOLDEN, USAGE, choices_encoder, encode, read_frames
from protocols.official import check_completion
from protocols.readers import ReadChat

from bridge.core.events import Choice, Finished, Restarted, TextDelta, TurnEvent, Usage, UsageUpdate
from bridge.errors import BackendCrashed
from bridge.protocols.chat.encoder import usage_object
from bridge.protocols.sse import DONE

FAILED = Finished("failed", error=BackendCrashed("gone"))


def said(index: int, *events: TurnEvent) -> Choice:
    return Choice(index, list(events))


def test_the_golden_stream() -> None:
    """Byte for byte what is kept in fixtures/golden/chat."""
    assert encode(choices_encoder(include_usage=True), CHOICES) == (GOLDEN / "chat/choices.sse").read_bytes()


def test_each_choice_is_a_completion_of_its_own() -> None:
    """In one stream, under one id: a role, pieces and a finish reason for each, the usage of all at the end."""
    read = ReadChat(encode(choices_encoder(include_usage=True), CHOICES), choices=2)
    first, second = read.choices
    assert [call["id"] for call in first.calls] == ["call_a"]
    assert (first.content, first.finish_reason) == ("", "tool_calls")
    assert (second.content, second.calls, second.finish_reason) == ("One more", [], "stop")
    assert read.usage == usage_object(USAGE.usage + USAGE.usage)


def test_the_body_has_them_all() -> None:
    """In the order of their index, and one of the client's types."""
    encoder = choices_encoder(3, streaming=False)
    encode(encoder, [*(said(index, TextDelta("m", [str(index)]), END) for index in (2, 0, 1)), END])
    body = orjson.loads(encoder.body())
    check_completion(body)
    assert body["id"] == encoder.id == "chatcmpl-1"
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
        (0, "0"),
        (1, "1"),
        (2, "2"),
    ]
    assert body["usage"] == usage_object(Usage())


def test_the_batches_do_not_matter() -> None:
    """One event at a time gives the same bytes."""
    assert encode(choices_encoder(), *([event] for event in CHOICES)) == encode(choices_encoder(), CHOICES)


def test_the_usage_is_the_sum_of_what_is_known() -> None:
    """Of the choices that have told theirs; an estimate makes all of it one."""
    encoder = choices_encoder()
    encoder.begin()
    before = encoder.usage
    assert before is None
    encoder.feed([said(1, UsageUpdate(Usage(1, 0, 2)))])
    assert encoder.usage == Usage(1, 0, 2)
    encoder.feed([said(0, UsageUpdate(Usage(3, 1, 4, 1, estimated=True)))])
    assert encoder.usage == Usage(4, 1, 6, 1, estimated=True)


def test_it_is_visible_when_any_choice_is() -> None:
    """From then on a failure cannot be a status any more."""
    encoder = choices_encoder()
    encoder.begin()
    assert not encoder.visible
    encoder.feed([said(1, UsageUpdate(Usage()))])
    assert not encoder.visible
    encoder.feed([said(1, TextDelta("m", ["x"]))])
    assert encoder.visible


@pytest.mark.parametrize(
    "events",
    [
        [said(0, TextDelta("m", ["x"])), said(1, FAILED), FAILED],
        [said(0, TextDelta("m", ["x"]), END), said(1, TextDelta("m", ["y"]), FAILED), FAILED],
        [said(0, TextDelta("m", ["x"])), FAILED],
    ],
)
def test_one_failure_fails_them_all(events: list[TurnEvent]) -> None:
    """A client cannot be told otherwise that one of its choices is missing: one error, one end."""
    encoder = choices_encoder(include_usage=True)
    stream = encode(encoder, [*events, said(0, TextDelta("m", ["late"]))])
    read = ReadChat(stream, choices=2)
    assert encoder.finished
    assert encoder.failure is not None
    assert read.error == encoder.failure.body()["error"]
    assert encoder.failure.code == "backend_crashed"
    assert read.usage is None
    assert b"late" not in stream


def test_a_cancelled_turn_is_an_error() -> None:
    """As for one choice alone."""
    encoder = choices_encoder()
    read = ReadChat(encode(encoder, [said(0, TextDelta("m", ["x"])), Finished("cancelled")]), choices=2)
    assert read.error is not None
    assert read.error["code"] == "interrupted"


def test_a_restart_of_one_choice() -> None:
    """Streamed and shown, it fails them all; not streamed, only the new answer counts."""
    events: list[TurnEvent] = [
        said(0, TextDelta("m", ["dead"])),
        said(1, TextDelta("m", ["y"]), END),
        said(0, Restarted("x"), TextDelta("n", ["alive"]), END),
        END,
    ]
    encoder = choices_encoder()
    assert b"alive" not in encode(encoder, events)
    assert encoder.failure is not None
    assert encoder.failure.code == "stream_interrupted"
    whole = choices_encoder(streaming=False)
    encode(whole, events)
    assert [choice["message"]["content"] for choice in orjson.loads(whole.body())["choices"]] == ["alive", "y"]


def test_what_follows_the_end_is_ignored() -> None:
    """`[DONE]` is the last, and no choice writes its own."""
    encoder = choices_encoder()
    stream = encode(encoder, [*CHOICES, *CHOICES])
    assert stream == encode(choices_encoder(), CHOICES)
    assert encoder.feed(CHOICES) == b""
    assert stream.count(DONE) == 1


@pytest.mark.parametrize("options", [{"functions": True}, {"reasoning": "think"}, {"include_usage": True}])
def test_the_options_are_those_of_every_choice(options: dict[str, Any]) -> None:
    """Old functions, thoughts, usage."""
    events = [said(index, FIRST_CALL, END) for index in (0, 1)]
    frames = read_frames(encode(choices_encoder(**options), [*events, END]))
    first, second = ([frame for frame in frames if _index(frame) == index] for index in (0, 1))
    assert len(first) == len(second)
    assert [_plain(frame) for frame in first] == [_plain(frame) for frame in second]


def _index(frame: dict[str, Any]) -> int | None:
    return frame["choices"][0]["index"] if frame["choices"] else None


def _plain(frame: dict[str, Any]) -> dict[str, Any]:
    return frame | {"choices": [choice | {"index": 0} for choice in frame["choices"]]}
