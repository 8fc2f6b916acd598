"""What is read between the tags: each repair by its name, each refusal by its reason."""

from __future__ import annotations

import re
import time

import pytest
from warm import ROOT

from bridge.tools.payload import Payload, Rejection, decode_payload

ONE = r'{"name":"find","arguments":"{\"q\":1}"}'
ONE_CALL = ("find", '{"q":1}')


def test_an_object_with_name_and_arguments_is_one_call() -> None:
    assert decode_payload(ONE) == Payload((ONE_CALL,))


def test_white_space_around_the_object_needs_no_repair() -> None:
    assert decode_payload(f"\r\n\t {ONE} \n") == Payload((ONE_CALL,))


@pytest.mark.parametrize(
    "arguments",
    ["", " { } ", "not json", '{"a": 1.10, "a": 2}', '{"a":"x,}"}', "\u2028 é 😀 \x7f", "[1,]"],
)
def test_an_arguments_string_is_kept_byte_for_byte(arguments: str) -> None:
    escaped = arguments.replace("\\", "\\\\").replace('"', '\\"')
    assert decode_payload(f'{{"name":"find","arguments":"{escaped}"}}') == Payload((("find", arguments),))


def test_an_escape_inside_the_arguments_stays_an_escape() -> None:
    payload = decode_payload(r'{"name":"find","arguments":"{\"q\":\"a\\nb\\ud83d\"}"}')
    assert payload == Payload((("find", r'{"q":"a\nb\ud83d"}'),))


@pytest.mark.parametrize("text", ['{"name":"find"}', '{"name":"find","arguments":null}'])
def test_missing_or_null_arguments_are_an_empty_object(text: str) -> None:
    assert decode_payload(text) == Payload((("find", "{}"),))


@pytest.mark.parametrize(
    ("given", "compact"),
    [
        ('{ "q" : "a, }" , "n" : [ 1, 2.5, true, null ] }', '{"q":"a, }","n":[1,2.5,true,null]}'),
        ("[ 1, {} ]", "[1,{}]"),
        ("{}", "{}"),
        ('{"é":"\\u00e9 \\u2028 \\ud83d\\ude00"}', '{"é":"é \u2028 😀"}'),
        ('{"id": 123456789012345678901234567890}', '{"id":123456789012345678901234567890}'),
    ],
)
def test_object_or_array_arguments_become_compact_json(given: str, compact: str) -> None:
    payload = decode_payload(f'{{"name":"find","arguments":{given}}}')
    assert payload == Payload((("find", compact),), ("arguments_coerced",))


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{ONE}\n```",
        f"```\n{ONE}\n```\n",
        f" ```json {ONE}```",
        f"```tool_call\r\n{ONE}",
    ],
)
def test_a_code_fence_is_removed(text: str) -> None:
    assert decode_payload(text) == Payload((ONE_CALL,), ("code_fence",))


def test_an_array_around_one_object_is_removed() -> None:
    assert decode_payload(f"[{ONE}]") == Payload((ONE_CALL,), ("array_unwrapped",))


def test_several_objects_in_one_array_are_several_calls() -> None:
    payload = decode_payload(f'[{ONE}, {{"name":"open","arguments":{{}}}}, {ONE}]')
    assert payload == Payload((ONE_CALL, ("open", "{}"), ONE_CALL), ("array_split", "arguments_coerced"))


@pytest.mark.parametrize(
    "text",
    [r'{"name":"find","arguments":"{\"q\":1}",}', r'{"name":"find","arguments":"{\"q\":1}" , }'],
)
def test_a_comma_before_a_closing_bracket_is_removed(text: str) -> None:
    assert decode_payload(text) == Payload((ONE_CALL,), ("trailing_comma",))


def test_a_comma_inside_a_string_is_left_alone() -> None:
    payload = decode_payload(r'{"name":"find","arguments":{"a":",]","b":"\",}",},}')
    assert payload == Payload(
        (("find", r'{"a":",]","b":"\",}"}'),),
        ("trailing_comma", "arguments_coerced"),
    )


@pytest.mark.parametrize("suffix", [">", "}", "]", "}}", " }\n]>", ">>>"])
def test_surplus_closers_at_the_end_are_dropped(suffix: str) -> None:
    assert decode_payload(ONE + suffix) == Payload((ONE_CALL,), ("surplus_suffix",))


@pytest.mark.parametrize("text", [f"```json\n{ONE}}}\n```", f"```json\n{ONE}\n```>"])
def test_surplus_closers_may_stand_before_or_after_the_closing_fence(text: str) -> None:
    assert decode_payload(text) == Payload((ONE_CALL,), ("code_fence", "surplus_suffix"))


def test_all_repairs_together() -> None:
    payload = decode_payload('```json\n[{"name":"find","arguments":{"q":1,},},]\n```\n>')
    assert payload == Payload(
        (ONE_CALL,),
        ("trailing_comma", "code_fence", "surplus_suffix", "array_unwrapped", "arguments_coerced"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "hello",
        '{"name":"find"',
        '{"name":"find","arguments":"{}',
        "{'name':'find'}",
        '{"name":"find",,}',
        '{"name":"find"},',
        '{"name":"find"} done',
        '{"name":"find"}```',
        '```json\n{"name":"find"}\n``````',
        '{"name":"find","arguments":"line\nbreak"}',
        '{"name":"find","arguments":{"x":NaN}}',
        '{"name":"find","arguments":{"x":-Infinity}}',
        '{"name":"find","arguments":{"x":1e400}}',
        '{"name":"find","arguments":{"x":' + "9" * 5000 + "}}",
    ],
)
def test_bad_json_is_refused(text: str) -> None:
    assert decode_payload(text) == Rejection("bad_json")


@pytest.mark.parametrize("between", ["", " ", ",", "\n"])
def test_two_objects_are_never_joined(between: str) -> None:
    assert decode_payload(ONE + between + ONE) == Rejection("bad_json")


@pytest.mark.parametrize(
    "text",
    [
        r'{"name":"find","arguments":"\ud800"}',
        r'{"name":"find\udfff","arguments":"{}"}',
        r'{"name":"find","arguments":{"q":"\ud800"}}',
        '{"name":"find","arguments":"\ud800"}',
        '{"name":"find","other":"\ud800"}',
    ],
)
def test_a_lone_surrogate_is_refused(text: str) -> None:
    assert decode_payload(text) == Rejection("bad_json")


@pytest.mark.parametrize("text", ["42", '"find"', "null", "true", "[]", "[1]", f"[[{ONE}]]", f"[{ONE}, null]"])
def test_what_is_not_an_object_is_refused(text: str) -> None:
    assert decode_payload(text) == Rejection("not_an_object")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"name":""}',
        '{"name":null}',
        '{"name":7}',
        '{"Name":"find"}',
        f'[{ONE},{{"arguments":"{{}}"}}]',
    ],
)
def test_an_object_without_a_name_is_refused(text: str) -> None:
    assert decode_payload(text) == Rejection("no_name")


@pytest.mark.parametrize("arguments", ["1", "1.5", "true", "false"])
def test_arguments_of_another_type_are_refused(arguments: str) -> None:
    assert decode_payload(f'{{"name":"find","arguments":{arguments}}}') == Rejection("bad_arguments")


@pytest.mark.parametrize("opener", ["[", '{"a":', '[{"name":"find","arguments":'])
def test_deep_nesting_is_refused_and_raises_nothing(opener: str) -> None:
    assert decode_payload(opener * 100_000) == Rejection("bad_json")
    assert decode_payload(f'{{"name":"find","arguments":{"[" * 100_000}{"]" * 100_000}}}') == Rejection("bad_json")


@pytest.mark.parametrize(
    "text",
    [
        '{"' + '\\"' * 1_000_000,
        '"' * 2_000_000,
        '{"a":1' + "," * 2_000_000,
        "x" + ",}" * 1_000_000,
        "{," + " " * 2_000_000,
        '{"name":"find"}' + "}" * 2_000_000 + "x",
        "```" * 700_000,
        " " * 2_000_000 + "x",
    ],
    ids=["quotes in a string", "quotes", "commas", "trailing commas", "spaces", "surplus", "fences", "blank"],
)
def test_hostile_text_is_refused_in_linear_time(text: str) -> None:
    start = time.process_time()
    assert decode_payload(text) == Rejection("bad_json")
    assert time.process_time() - start < 5


def test_the_documented_repair_is_one_that_is_made() -> None:
    """docs/event-log.md shows a call and what was repaired in it."""
    text = (ROOT / "docs/event-log.md").read_text()
    (call,) = re.findall(r"^▶ <tool_call>(.*)</tool_call>$", text, re.MULTILINE)
    repairs = re.findall(r"^repaired  look: (\w+):", text, re.MULTILINE)
    assert decode_payload(call) == Payload((("look", '{"q":"x"}'),), tuple(repairs))
    assert repairs
