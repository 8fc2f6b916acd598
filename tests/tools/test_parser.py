"""The `<tool_call>` parser, one test for each rule of payloads.md §4."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from bridge.tools.call_stream import MAX_HEAD, CallPiece, CallStart
from bridge.tools.parser import MAX_RESCANS, ParsedCall, ParserEvent, Rejected, Repair, ToolCallParser

TOOLS: Mapping[str, Callable[[str], bool] | None] = {"find": None, "open": None}
BODY = r'{"name":"find","arguments":"{\"q\":1}"}'
BLOCK = f"<tool_call>{BODY}</tool_call>"
CALL = ParsedCall("find", '{"q":1}', (), BLOCK)


def parse(*pieces: str, parser: ToolCallParser | None = None) -> list[ParserEvent]:
    """All events of the pieces, with adjacent texts joined, and each call in one."""
    parser = parser or ToolCallParser(TOOLS)
    found: list[ParserEvent] = []
    for events in [*map(parser.feed, pieces), parser.finish()]:
        for event in whole_calls(events):
            assert event != ""
            if isinstance(event, str) and found and isinstance(found[-1], str):
                found[-1] += event
            else:
                found.append(event)
    return found


def whole_calls(events: list[ParserEvent]) -> list[ParserEvent]:
    return [event for event in events if not isinstance(event, CallStart | CallPiece)]


def streamed(*pieces: str) -> list[ParserEvent]:
    """What comes of the calls before the text ends."""
    parser = ToolCallParser(TOOLS)
    return [event for piece in pieces for event in parser.feed(piece)]


def rejected(reason: str, source: str) -> list[ParserEvent]:
    return [Rejected(reason, source), source]


def block(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


# Text


def test_text_goes_out_at_once() -> None:
    parser = ToolCallParser(TOOLS)
    assert parser.feed("Hello ") == ["Hello "]
    assert parser.feed("a < b </tool_call> <tool> ") == ["a < b </tool_call> <tool> "]
    assert parser.feed("") == []
    assert parser.finish() == []


def test_only_a_suffix_that_may_begin_the_tag_is_held_back() -> None:
    parser = ToolCallParser(TOOLS)
    assert parser.feed("see <<tool_") == ["see <"]
    assert parser.feed("box>") == ["<tool_box>"]
    assert parser.feed("<") == []
    assert parser.feed("<") == ["<"]
    assert parser.finish() == ["<"]


def test_text_and_call_in_one_answer() -> None:
    assert parse(f"Let me look. {BLOCK}") == ["Let me look. ", CALL]


def test_several_calls_with_prose_between() -> None:
    other = block('{"name":"open","arguments":"{}"}')
    assert parse(f"First {BLOCK}\nthen {other}{BLOCK} done") == [
        "First ",
        CALL,
        "\nthen ",
        ParsedCall("open", "{}", (), other),
        CALL,
        " done",
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 11, 12])
def test_small_deltas_give_the_same_events(size: int) -> None:
    text = f"First {BLOCK}\n</tool_call> then {block('oops')}{BLOCK} done <tool_"
    assert parse(*(text[i : i + size] for i in range(0, len(text), size))) == parse(text)


def test_a_call_comes_with_the_last_character_of_its_block() -> None:
    parser = ToolCallParser(TOOLS)
    assert whole_calls(parser.feed(BLOCK[:-1])) == []
    assert parser.feed(BLOCK[-1]) == [CALL]


def test_the_tag_is_exact() -> None:
    text = f"<TOOL_CALL>{BODY}</TOOL_CALL> <tool_call >{BODY}</tool_call> ＜tool_call>{BODY}</tool_call>"
    assert parse(text) == [text]


# The end of a block


def test_a_closing_tag_inside_a_json_string_does_not_end_the_block() -> None:
    body = json.dumps({"name": "find", "arguments": json.dumps({"q": 'a "</tool_call>" b'})})
    source = block(body)
    assert parse(f"{source} done") == [
        ParsedCall("find", '{"q": "a \\"</tool_call>\\" b"}', (), source),
        " done",
    ]


def test_a_whole_block_inside_a_json_string_is_only_a_string() -> None:
    body = json.dumps({"name": "find", "arguments": BLOCK})
    assert parse(block(body)) == [ParsedCall("find", BLOCK, (), block(body))]


def test_a_string_that_never_closes_ends_at_the_first_closing_tag() -> None:
    broken = block('{"name":"find","arguments":"{}}')
    assert parse(f"{broken} some text") == [Rejected("bad_json", broken), f"{broken} some text"]


def test_a_call_after_a_string_that_never_closes_is_found() -> None:
    broken = block('{"name":"find","arguments":"{}}')
    assert parse(f"{broken}{BLOCK} done") == [*rejected("bad_json", broken), CALL, " done"]


def test_a_later_quote_that_happens_to_close_the_string_changes_nothing() -> None:
    broken = block('{"name":"find","arguments":"{}}')
    text = f'{broken} he said "well" and "so</tool_call> on {BLOCK}'
    assert parse(text) == [
        Rejected("bad_json", broken),
        f'{broken} he said "well" and "so</tool_call> on ',
        CALL,
    ]


def test_a_string_closed_before_the_end_of_the_stream_keeps_its_closing_tag() -> None:
    text = '<tool_call>{"name":"find","arguments":"</tool_call>"}'
    assert parse(text) == [ParsedCall("find", "</tool_call>", ("unclosed",), text)]


def test_after_many_broken_strings_the_first_closing_tag_always_ends_a_block() -> None:
    broken = block('{"name":"find","arguments":"{}}')
    inside = block('{"name":"find","arguments":"</tool_call>"}')
    patient = parse(broken * (MAX_RESCANS - 1) + inside)
    assert patient[-1] == ParsedCall("find", "</tool_call>", (), inside)
    weary = parse(broken * MAX_RESCANS + inside + BLOCK)
    assert weary[-3:] == [
        Rejected("bad_json", '<tool_call>{"name":"find","arguments":"</tool_call>'),
        '<tool_call>{"name":"find","arguments":"</tool_call>"}</tool_call>',
        CALL,
    ]


# Repairs


@pytest.mark.parametrize(
    ("body", "repairs"),
    [
        (f"```json\n{BODY}\n```", ("code_fence",)),
        (f"[{BODY}]", ("array_unwrapped",)),
        (BODY[:-1] + ",}", ("trailing_comma",)),
        (BODY + "}>", ("surplus_suffix",)),
        ('{"name":"find","arguments":{"q": 1}}', ("arguments_coerced",)),
        ("\n" + BODY + "\n", ()),
    ],
)
def test_repairs_of_the_payload_are_named(body: str, repairs: tuple[str, ...]) -> None:
    assert parse(block(body)) == [ParsedCall("find", '{"q":1}', repairs, block(body))]


def test_several_objects_in_one_array_are_several_calls_and_the_first_has_the_source() -> None:
    source = block(f'[{BODY},{{"name":"open"}}]')
    assert parse(source) == [
        ParsedCall("find", '{"q":1}', ("array_split",), source),
        ParsedCall("open", "{}", ("array_split",), ""),
    ]


def test_a_repeated_closing_tag_is_swallowed_however_often() -> None:
    assert parse(f"{BLOCK}</tool_call>\n </tool_call> \n{BLOCK}\n") == [
        CALL,
        Repair("repeated_closing_tag", "</tool_call>"),
        Repair("repeated_closing_tag", "\n </tool_call>"),
        " \n",
        CALL,
        "\n",
    ]


def test_white_space_after_a_call_waits_for_what_follows() -> None:
    parser = ToolCallParser(TOOLS)
    assert whole_calls(parser.feed(BLOCK)) == [CALL]
    assert parser.feed("\n") == []
    assert parser.feed(" </tool") == []
    assert parser.feed("box>") == ["\n ", "</toolbox>"]


@pytest.mark.parametrize("end", [" \n", "\n<", "</tool_call"])
def test_what_waits_after_a_call_is_text_in_the_end(end: str) -> None:
    assert parse(BLOCK, end) == [CALL, end]


def test_a_closing_tag_is_swallowed_only_after_a_call() -> None:
    text = block("{}") + "</tool_call>"
    assert parse(text) == [Rejected("no_name", block("{}")), text]


@pytest.mark.parametrize("partial", ["", "\n", "<", "</", "</tool_call"])
def test_a_block_unclosed_at_the_end_is_a_call(partial: str) -> None:
    source = f"<tool_call>{BODY}{partial}"
    assert parse(f"So: {source}") == ["So: ", ParsedCall("find", '{"q":1}', ("unclosed",), source)]


def test_an_unclosed_block_may_need_other_repairs() -> None:
    source = f"<tool_call>[{BODY},]"
    assert parse(source) == [ParsedCall("find", '{"q":1}', ("trailing_comma", "array_unwrapped", "unclosed"), source)]


@pytest.mark.parametrize("end", ["", " ", "``", "{", BODY[:20], BODY[:30]])
def test_an_unclosed_block_that_is_no_call_comes_back_as_text(end: str) -> None:
    assert parse(f"<tool_call>{end}") == rejected("bad_json", f"<tool_call>{end}")


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("space", ["", "\n"])
def test_an_opening_tag_ends_a_call_that_was_never_closed(size: int, space: str) -> None:
    first = f"<tool_call>{BODY}{space}"
    text = first + first + BLOCK
    unclosed = ParsedCall("find", '{"q":1}', ("unclosed",), first)
    assert parse(*(text[at : at + size] for at in range(0, len(text), size))) == [unclosed, unclosed, CALL]


def test_an_opening_tag_inside_a_json_string_ends_nothing() -> None:
    body = json.dumps({"name": "find", "arguments": f"a <tool_call>{BODY}"})
    assert parse(block(body)) == [ParsedCall("find", f"a <tool_call>{BODY}", (), block(body))]


def test_an_opening_tag_behind_what_is_no_call_is_part_of_it() -> None:
    text = f"<tool_call>{{oops <tool_call>{BODY}</tool_call>"
    assert parse(text) == rejected("bad_json", text)


def test_only_so_many_opening_tags_are_looked_at() -> None:
    text = "<tool_call>{" + "<tool_call>" * 100_000 + "</tool_call>"
    assert parse(text, BLOCK) == [*rejected("bad_json", text), CALL]


# Calls that stream


SETTLED = r'<tool_call>{"name":"find","arguments":"{\"'


def test_a_call_begins_when_its_block_can_no_longer_be_rejected() -> None:
    parser = ToolCallParser(TOOLS)
    assert parser.feed(f"So: {SETTLED[:-1]}") == ["So: "]
    assert parser.feed(SETTLED[-1]) == [CallStart("find"), CallPiece('{"')]
    assert parser.feed(r"q\":\"x ") == [CallPiece('q":"x ')]
    assert parser.feed("y") == [CallPiece("y")]
    assert parser.feed(r"\"}") == [CallPiece('"}')]
    assert parser.feed('"') == []
    assert parser.feed("}</tool_call") == []
    source = SETTLED + r'q\":\"x y\"}"}</tool_call>'
    assert parser.feed(">") == [ParsedCall("find", '{"q":"x y"}', (), source)]


@pytest.mark.parametrize(
    "head",
    [
        '<tool_call>\n{ "name" : "find" ,\n "arguments" : " { \\"',
        '<tool_call>{"name":"find","arguments":"\\n{\\t\\"',
    ],
)
def test_white_space_does_not_keep_a_call_from_streaming(head: str) -> None:
    assert streamed(head)[0] == CallStart("find")


@pytest.mark.parametrize(
    "head",
    [
        r'{"name":"delete","arguments":"{\"',  # not offered
        r'{"arguments":"{\"q\":1}","name":"find',
        r'[{"name":"find","arguments":"{\"',
        '```json\n{"name":"find","arguments":"{\\"',
        r'{"name":"\u0066ind","arguments":"{\"',
        r'{"name":"find","note":"x","arguments":"{\"',
        '{"name":"find","arguments":{"q',
        '{"name":"find","arguments":"{"q',  # quotes that are not escaped
        '{"name":"find","arguments":"{}',
        '{"name":"find","arguments":"hello',
        '{"name":"find"' + " " * MAX_HEAD + r',"arguments":"{\"',
    ],
)
def test_a_block_of_another_form_comes_whole(head: str) -> None:
    assert streamed(f"<tool_call>{head}") == []


def test_strict_tools_and_those_that_are_wanted_whole_do_not_stream() -> None:
    parser = ToolCallParser({"find": lambda _: True, "open": None}, whole={"open"})
    for body in BODY, BODY.replace("find", "open"):
        assert [type(event) for event in parser.feed(block(body))] == [ParsedCall]


@pytest.mark.parametrize("cut", range(len(r"\ud83d\ude00\\\n\u00e9") + 1))
def test_an_escape_that_is_cut_is_told_when_it_is_whole(cut: int) -> None:
    escapes = r"\ud83d\ude00\\\n\u00e9"
    events = streamed(SETTLED, escapes[:cut], escapes[cut:])
    assert "".join(event.text for event in events if isinstance(event, CallPiece)) == '{"\U0001f600\\\n\u00e9'


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (r"\ud83d", "\ufffd"),
        (r"\ud83dx", "\ufffdx"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d", "\ufffd"),
        ("\\x\\u12zz\\", "\\x\\u12zz\\"),
        ("a\n\x00b", "a\n\x00b"),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_what_is_not_json_in_settled_arguments_stays_as_it_is(written: str, told: str, size: int) -> None:
    text = SETTLED + written
    assert parse(*(text[at : at + size] for at in range(0, len(text), size))) == [
        ParsedCall("find", '{"' + told, ("damaged_json", "unclosed"), text)
    ]


@pytest.mark.parametrize(
    ("end", "repairs", "behind"),
    [
        (r'q\":1}"', ("damaged_json", "unclosed"), ""),
        (r'q\":1}"}', ("unclosed",), ""),
        (r'q\":1}"}, and then', ("unclosed",), ", and then"),
        (r'q\":1}"} Then I look.', ("unclosed",), "Then I look."),
        (r'q\":1}" Then I look.', ("damaged_json", "unclosed"), "Then I look."),
        (r'q\":1}"</tool_call> done', ("damaged_json",), " done"),
        (r'q\":1}"}}]></tool_call> done', ("surplus_suffix",), " done"),
        (r'q\":1}",}</tool_call> done', ("trailing_comma",), " done"),
        (r'q\":1}","note":"x"}</tool_call> done', (), " done"),
        (r'q\":1}","note":oops}</tool_call> done', ("damaged_json",), ',"note":oops}</tool_call> done'),
        (r'q\":1}","name":"open"}</tool_call> done', ("damaged_json",), ',"name":"open"}</tool_call> done'),
        (r'q\":1}","arguments":"{}"}</tool_call>', ("damaged_json",), ',"arguments":"{}"}</tool_call>'),
        (r'q\":1}</tool_call> he said "well", ', ("damaged_json",), ' he said "well", '),
        (r"q\":1}</tool_call>", ("damaged_json",), ""),
        (r'q\":1}"}{"name":"open"}</tool_call>', ("unclosed",), '{"name":"open"}</tool_call>'),
        (r'q\":1}"}</tool_call ', ("unclosed",), "</tool_call "),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_settled_block_is_a_call_whatever_follows_and_other_text_is_text(
    end: str, repairs: tuple[str, ...], behind: str, size: int
) -> None:
    text = SETTLED + end
    events = parse(*(text[at : at + size] for at in range(0, len(text), size)))
    assert events[0] == ParsedCall("find", '{"q":1}', repairs, text[: len(text) - len(behind)])
    assert "".join(event for event in events if isinstance(event, str)) == behind


@pytest.mark.parametrize("space", ["", "\n"])
@pytest.mark.parametrize("brace", ["", "}"])
def test_an_opening_tag_ends_a_settled_call_that_lacks_its_brace(brace: str, space: str) -> None:
    text = SETTLED + rf'q\":1}}"{brace}{space}'
    repairs = ("unclosed",) if brace else ("damaged_json", "unclosed")
    assert parse(text + BLOCK) == [ParsedCall("find", '{"q":1}', repairs, text), CALL]


def test_arguments_that_are_cut_off_stay_half_so_that_nobody_can_run_them() -> None:
    text = SETTLED + r"path\":\"a"
    assert parse(text) == [ParsedCall("find", '{"path":"a', ("damaged_json", "unclosed"), text)]


def test_text_behind_a_call_without_a_closing_tag_does_not_wait() -> None:
    parser = ToolCallParser(TOOLS)
    parser.feed(f"<tool_call>{BODY}")
    assert parser.feed(" Then ")[1:] == ["Then "]
    assert parser.feed("more") == ["more"]


# Rejections


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{name: find}", "bad_json"),
        ("", "bad_json"),
        (" \n", "bad_json"),
        ('{"name":"find","arguments":{}}' * 2, "bad_json"),
        ("[]", "not_an_object"),
        ('{"arguments":"{}"}', "no_name"),
        ('{"name":"find","arguments":3}', "bad_arguments"),
        ('{"name":"delete","arguments":"{}"}', "unknown_tool"),
        ('{"name":"Find","arguments":"{}"}', "unknown_tool"),
        ('{"name":"find ","arguments":"{}"}', "unknown_tool"),
        (f'[{BODY},{{"name":"delete"}}]', "unknown_tool"),
    ],
)
def test_a_rejected_block_is_recorded_and_comes_back_in_its_place(body: str, reason: str) -> None:
    assert parse(f"a {block(body)}", f"{BLOCK} b") == ["a ", *rejected(reason, block(body)), CALL, " b"]


def test_a_rejected_block_is_not_read_again() -> None:
    text = block("{oops " + BLOCK[: -len("</tool_call>")])
    assert parse(text) == rejected("bad_json", text)


def test_without_tools_everything_is_text() -> None:
    parser = ToolCallParser({})
    assert parser.feed(f"{BLOCK}<tool") == [f"{BLOCK}<tool"]
    assert parser.feed("") == []
    assert parser.finish() == []


def test_the_arguments_of_a_strict_tool_must_validate() -> None:
    seen: list[str] = []

    def validates(arguments: str) -> bool:
        seen.append(arguments)
        return arguments == '{"q":1}'

    wrong = block('{"name":"find","arguments":{"q":2}}')
    events = parse(wrong, BLOCK, parser=ToolCallParser({"find": validates}))
    assert events == [*rejected("schema_mismatch", wrong), CALL]
    assert seen == ['{"q":2}', '{"q":1}']


# Tags in prose


@pytest.mark.parametrize(
    "mention",
    ["<tool_call>", "<tool_call> ", "<tool_call>`", "<tool_call>\n``", "<tool_call></tool_", "<tool_call><"],
)
def test_a_tag_in_prose_neither_holds_up_the_text_nor_hides_a_call(mention: str) -> None:
    parser = ToolCallParser(TOOLS)
    events = parser.feed(f"I use {mention}") + parser.feed(" tags: ")
    assert "".join(event for event in events if isinstance(event, str)) == f"I use {mention} tags: "
    assert [event.reason for event in events if isinstance(event, Rejected)] == ["bad_json"]
    assert whole_calls(parser.feed(BLOCK)) == [CALL]


def test_an_explanation_of_the_format_is_text() -> None:
    text = 'Write `<tool_call>...</tool_call>`, as in <tool_call>{"name":"TOOL_NAME"}</tool_call>.'
    events = parse(text)
    assert "".join(event for event in events if isinstance(event, str)) == text
    assert [event.reason for event in events if isinstance(event, Rejected)] == ["bad_json", "unknown_tool"]


def test_of_doubled_tags_the_inner_pair_is_the_call() -> None:
    assert parse(f"<tool_call>\n{BLOCK}\n</tool_call>") == [
        *rejected("bad_json", "<tool_call>\n"),
        CALL,
        Repair("repeated_closing_tag", "\n</tool_call>"),
    ]


# The object itself


def test_other_tags_may_be_chosen() -> None:
    parser = ToolCallParser(TOOLS, open_tag="<tool_call id=7f>", close_tag="</tool_call id=7f>")
    source = f"<tool_call id=7f>{BODY}</tool_call id=7f>"
    assert parse(BLOCK + source, parser=parser) == [BLOCK, ParsedCall("find", '{"q":1}', (), source)]


@pytest.mark.parametrize(
    ("open_tag", "close_tag"),
    [("", "</a>"), ("a>", "</a>"), ("<a<", "</a>"), ('<a id="1">', "</a>"), ("<a>", "<a>"), ("<a>", "<a>b")],
)
def test_tags_that_cannot_be_told_apart_are_refused(open_tag: str, close_tag: str) -> None:
    with pytest.raises(ValueError, match="tag"):
        ToolCallParser(TOOLS, open_tag=open_tag, close_tag=close_tag)


@pytest.mark.parametrize("tools", [TOOLS, {}])
def test_nothing_may_follow_the_end(tools: Mapping[str, None]) -> None:
    parser = ToolCallParser(tools)
    assert parser.finish() == []
    with pytest.raises(RuntimeError):
        parser.feed("x")
    with pytest.raises(RuntimeError):
        parser.finish()


def test_repr_shows_the_state() -> None:
    parser = ToolCallParser(TOOLS)
    states = []
    for piece in ["a <to", "ol_call>", BODY, "</tool_call>"]:
        parser.feed(piece)
        states.append(repr(parser))
    parser.finish()
    assert [*states, repr(parser)] == [
        "<ToolCallParser text held='<to' buffered=0 rescans=0>",
        "<ToolCallParser opened held='' buffered=11 rescans=0>",
        "<ToolCallParser block held='' buffered=50 rescans=0>",
        "<ToolCallParser after held='' buffered=0 rescans=0>",
        "<ToolCallParser finished held='' buffered=0 rescans=0>",
    ]
