"""What holds for the `<tool_call>` parser whatever the text and however it is cut (reliability.md)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.tools.call_stream import CallPiece, CallStart
from bridge.tools.parser import ParsedCall, ParserEvent, Rejected, Repair, ToolCallParser
from bridge.tools.payload import CLOSE_TAG, OPEN_TAG

NAMES = ["find", "open"]

names = st.sampled_from([*NAMES, "delete", "Find", "", "find "])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
arguments = st.one_of(
    json_values,
    json_values.map(json.dumps),
    st.sampled_from([f"a{CLOSE_TAG}b", f"{OPEN_TAG}{{}}{CLOSE_TAG}", '"', "\\", ",}"]),
)
objects = st.builds(lambda name, given: json.dumps({"name": name, "arguments": given}), names, arguments)
settled = st.builds(
    # What streams: the arguments are the JSON text of an object, in all the ways of writing a string.
    lambda name, given, plain: json.dumps({"name": name, "arguments": json.dumps(given)}, ensure_ascii=not plain),
    names,
    st.dictionaries(
        st.text(max_size=3), json_values | st.sampled_from(["😀", CLOSE_TAG, OPEN_TAG]), min_size=1, max_size=2
    ),
    st.booleans(),
)
objects = objects | settled
arrays = st.lists(objects, max_size=3).map(lambda members: f"[{', '.join(members)}]")
payloads = st.one_of(
    objects,
    objects,
    arrays,
    objects.map(lambda text: f"```json\n{text}\n```"),
    objects.map(lambda text: text[:-1] + ",}"),
    st.builds(lambda text, surplus: text + surplus, objects, st.sampled_from([">", "}", "]}", " >>"])),
    st.builds(lambda text, where: text[: where % (len(text) + 1)], objects, st.integers(0, 200)),
    st.builds(
        lambda text, where, damage: text[: where % (len(text) + 1)] + damage + text[where % (len(text) + 1) :],
        settled,
        st.integers(0, 200),
        st.sampled_from(
            ['"', "\\", '\\"', "}", ",", "\n", "\\ud83d", "\\u12", "\ud800", CLOSE_TAG, OPEN_TAG, "<", "é"]
        ),
    ),
    st.builds(
        lambda text, more: text[:-1] + more,
        settled,
        st.sampled_from([',"name":"open"}', ',"arguments":"{}"}', ',"x":1}', ',"x":', " oops}", "", "} oops", '"']),
    ),
)
blocks = st.builds(
    lambda before, payload, after: f"{before}{payload}{after}",
    st.sampled_from([OPEN_TAG, OPEN_TAG, OPEN_TAG + "\n", OPEN_TAG * 2]),
    payloads,
    st.sampled_from([CLOSE_TAG, CLOSE_TAG, CLOSE_TAG * 2, f"\n{CLOSE_TAG}\n{CLOSE_TAG}", ""]),
)
partial_tags = st.builds(lambda tag, end: tag[:end], st.sampled_from([OPEN_TAG, CLOSE_TAG]), st.integers(1, 12))
fragments = st.one_of(
    blocks,
    blocks,
    payloads,
    partial_tags,
    st.sampled_from([OPEN_TAG, CLOSE_TAG, f"{OPEN_TAG}{{", f'{OPEN_TAG}{{"']),
    st.sampled_from(['"', "\\", '\\"', "{", "}", "[", "]", ">", "<", ",", " ", "\n", "`", "```", "```json\n"]),
    st.sampled_from(["prose ", "é😀\u2028", "\ud800", "\x00"]),
    st.text(max_size=6),
)
texts = st.lists(fragments, max_size=8).map("".join)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and the same in pieces."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def run(pieces: Iterable[str], allowed: Iterable[str] = NAMES) -> list[ParserEvent]:
    parser = ToolCallParser(dict.fromkeys(allowed))
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def joined(events: Iterable[ParserEvent]) -> list[ParserEvent]:
    """The events with adjacent texts made one, and adjacent pieces of a call."""
    found: list[ParserEvent] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, str) and isinstance(last, str):
            found[-1] = last + event
        elif isinstance(event, CallPiece) and isinstance(last, CallPiece):
            found[-1] = CallPiece(last.text + event.text)
        else:
            found.append(event)
    return found


def sources(events: Iterable[ParserEvent]) -> Iterator[str]:
    for event in events:
        if isinstance(event, str):
            yield event
        elif isinstance(event, ParsedCall | Repair):
            yield event.source


properties = settings(max_examples=max(150, settings().max_examples), deadline=None)


@properties
@given(cut_texts())
def test_every_cutting_gives_the_same_events(cut: tuple[str, list[str]]) -> None:
    text, pieces = cut
    whole = joined(run([text]))
    assert joined(run(pieces)) == whole
    assert joined(run(text)) == whole


@properties
@given(cut_texts())
def test_text_and_sources_are_the_input(cut: tuple[str, list[str]]) -> None:
    text, pieces = cut
    events = run(pieces)
    assert "".join(sources(events)) == text
    assert "" not in events


@properties
@given(cut_texts())
def test_what_streams_of_a_call_is_the_beginning_of_it(cut: tuple[str, list[str]]) -> None:
    events = joined(run(cut[1]))
    for before, event in pairwise([None, *events]):
        assert isinstance(event, CallPiece) == isinstance(before, CallStart)
        if isinstance(before, CallPiece):
            assert isinstance(event, ParsedCall)
            assert event.arguments.startswith(before.text)
            event.arguments.encode()
    starts = [event.name for event in events if isinstance(event, CallStart)]
    called = [(before, event) for before, event in pairwise([None, *events]) if isinstance(event, ParsedCall)]
    assert starts == [call.name for before, call in called if isinstance(before, CallPiece)]


@properties
@given(st.text(), st.booleans(), st.lists(st.integers(0, 300), max_size=8))
def test_a_well_formed_call_streams_to_its_last_character(value: str, plain: bool, cuts: list[int]) -> None:
    arguments = json.dumps({"q": value}, ensure_ascii=not plain)
    body = json.dumps({"name": "find", "arguments": arguments}, ensure_ascii=not plain)
    places = sorted(cut % len(body) for cut in cuts)
    pieces = [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]
    events = joined(run([OPEN_TAG, *pieces[:-1], pieces[-1][:-2]])[:-1])
    assert events[0] == CallStart("find")
    assert len(events) == 2
    assert isinstance(events[1], CallPiece)
    held_back = CLOSE_TAG in arguments
    assert arguments.startswith(events[1].text) if held_back else events[1].text == arguments


@properties
@given(cut_texts())
def test_a_rejected_block_follows_as_text(cut: tuple[str, list[str]]) -> None:
    events = run(cut[1])
    for event, following in pairwise([*events, None]):
        if isinstance(event, Rejected):
            assert event.source == following


@properties
@given(cut_texts(), st.sets(names))
def test_only_allowed_names_are_called(cut: tuple[str, list[str]], allowed: set[str]) -> None:
    calls = [event for event in run(cut[1], allowed) if isinstance(event, ParsedCall)]
    assert {call.name for call in calls} <= allowed
    for call in calls:
        call.arguments.encode()


@properties
@given(cut_texts())
def test_without_tools_there_is_only_text(cut: tuple[str, list[str]]) -> None:
    assert run(cut[1], []) == [piece for piece in cut[1] if piece]


@properties
@given(texts)
def test_what_may_begin_a_call_is_not_shown(text: str) -> None:
    parser = ToolCallParser(dict.fromkeys(NAMES))
    given_out = ""
    for end, character in enumerate(text, 1):
        for event in parser.feed(character):
            if isinstance(event, ParsedCall) and event.source:
                assert text.startswith(event.source, len(given_out))
                assert event.source.startswith(OPEN_TAG)
                assert event.source.endswith(CLOSE_TAG) or {"unclosed", "damaged_json"} & set(event.repairs)
            given_out += "".join(sources([event]))
        if given_out == text[:end]:
            assert not any(given_out.endswith(OPEN_TAG[:size]) for size in range(1, len(OPEN_TAG)))


@properties
@given(st.lists(st.builds(lambda name, given: (name, given), st.sampled_from(NAMES), st.text()), max_size=4))
def test_well_formed_calls_are_found_exactly(wanted: list[tuple[str, str]]) -> None:
    blocks = [
        OPEN_TAG + json.dumps({"name": name, "arguments": given}, ensure_ascii=False) + CLOSE_TAG
        for name, given in wanted
    ]
    events = run("Then ".join(["", *blocks]))
    calls = [event for event in events if not isinstance(event, str | CallStart | CallPiece)]
    assert calls == [ParsedCall(name, given, (), block) for (name, given), block in zip(wanted, blocks, strict=True)]


@properties
@given(cut_texts())
def test_swallowed_text_is_only_space_and_closing_tags(cut: tuple[str, list[str]]) -> None:
    for event in run(cut[1]):
        if isinstance(event, Repair):
            assert event.source.lstrip(" \t\r\n") == CLOSE_TAG


# Linear time. The limits leave room for a slow and busy machine; a quadratic parser misses them by far.

MB = 1_000_000


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def one_call(size: int) -> str:
    return f'{OPEN_TAG}{{"name":"find","arguments":"{"x" * size}"}}{CLOSE_TAG}'


def test_ten_megabytes_of_arguments_one_character_at_a_time() -> None:
    text = one_call(10 * MB)
    events: list[ParserEvent] = []
    assert seconds(lambda: events.extend(run(text))) < 15
    assert [len(event.arguments) for event in events if isinstance(event, ParsedCall)] == [10 * MB]


def test_four_megabytes_that_stream_one_character_at_a_time() -> None:
    text = SETTLED + "x\\n" * (4 * MB // 3) + '\\"}"}' + CLOSE_TAG
    events: list[ParserEvent] = []
    assert seconds(lambda: events.extend(run(text))) < 30
    assert isinstance(events[-1], ParsedCall)
    assert "".join(event.text for event in events if isinstance(event, CallPiece)) == events[-1].arguments


def test_four_times_the_arguments_take_about_four_times_as_long() -> None:
    small, large = one_call(MB), one_call(4 * MB)
    assert min(seconds(lambda: run(large)) for _ in range(2)) < 8 * min(seconds(lambda: run(small)) for _ in range(3))


def test_ten_megabytes_of_angle_brackets() -> None:
    text = "<" * (10 * MB)
    assert min(seconds(lambda: run([text])) for _ in range(3)) < 1
    assert min(seconds(lambda: run(["<" * 1000] * 10_000)) for _ in range(3)) < 1


SETTLED = f'{OPEN_TAG}{{"name":"find","arguments":"{{\\"'

HOSTILE = {
    "settled blocks": SETTLED,
    "settled blocks in strings": f'{SETTLED}a"}},"{OPEN_TAG}',
    "settled blocks with members": f'{SETTLED}a","b":"',
    "settled blocks that a string ends": f'{SETTLED}{CLOSE_TAG}"',
    "opening tags": OPEN_TAG,
    "empty blocks": OPEN_TAG + CLOSE_TAG,
    "openings of objects": OPEN_TAG + "{",
    "strings that never close": f'{OPEN_TAG}{{"{CLOSE_TAG}',
    "quotes and tags": f'"{OPEN_TAG}{{"{CLOSE_TAG}"',
    "calls": one_call(1),
    "repeated closing tags": CLOSE_TAG,
    "partial closing tags": CLOSE_TAG[:-1],
    "spaces": " ",
    "quotes": '"',
    "escaped quotes": '\\"',
    "backslashes": "\\",
    "openers": '{"a":[',
    "trailing commas": ",}",
}


@pytest.mark.deep
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "in characters"])
@pytest.mark.parametrize(
    "start", ["", f'{OPEN_TAG}{{"', one_call(1), SETTLED], ids=["text", "string", "call", "arguments"]
)
@pytest.mark.parametrize("pattern", HOSTILE.values(), ids=HOSTILE)
def test_four_times_the_hostile_text_takes_about_four_times_as_long(pattern: str, start: str, cut: bool) -> None:
    times = []
    for size in 25_000, 100_000:
        text = start + pattern * (size // len(pattern))
        pieces = list(text) if cut else [text]
        began = time.process_time()
        events = run(pieces)
        times.append(time.process_time() - began)
        assert "".join(sources(events)) == text
    assert times[1] < 8 * times[0] + 0.5


@pytest.mark.parametrize("pattern", ['"', '\\"', "\\", "{", ",}", "</"])
def test_ten_megabytes_of_hostile_payload(pattern: str) -> None:
    text = f'{OPEN_TAG}{{"{pattern * (10 * MB // len(pattern))}{CLOSE_TAG}'
    events: list[ParserEvent] = []
    assert seconds(lambda: events.extend(run([text]))) < 10
    assert not any(isinstance(event, ParsedCall) for event in events)
    text = f"{SETTLED}{pattern * (10 * MB // len(pattern))}{CLOSE_TAG}"
    assert seconds(lambda: events.extend(run([text]))) < 10
    assert isinstance(events[-1], str | ParsedCall)
