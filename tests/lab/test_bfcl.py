"""BFCL's rules, by hand, and its formats. `scripts/bfcl --check` compares the rules with BFCL's own checker."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.items import FunctionTool
from bridge.errors import UsageError
from bridge.lab import SHIPPED, Called, Sample, case_from_dict, score
from bridge.lab.bfcl import BfclExpect, PossibleCall, bfcl_faults
from bridge.lab.formats import NotCalls, PromptFormat, decode_calls, describe_functions
from bridge.lab.variant import LabVariant

TYPES = {
    "city": "string",
    "days": "integer",
    "rate": "float",
    "tags": ["array", "string"],
    "box": "dict",
    "rows": ["array", "dict"],
    "flag": "boolean",
}


def accepts(values: dict[str, Any], arguments: dict[str, Any], required: tuple[str, ...] = ()) -> bool:
    expect = BfclExpect("simple", (PossibleCall("f", values, TYPES, required),))
    return next(bfcl_faults(expect, [("f", arguments)]), None) is None


@pytest.mark.parametrize(
    ("values", "arguments", "verdict"),
    [
        ({"city": ["New York"]}, {"city": "new-york."}, True),  # punctuation, space and case do not count
        ({"city": ["it's"]}, {"city": 'IT"S'}, True),
        ({"city": ["Bern"]}, {"city": "Basel"}, False),
        ({"city": ["Bern"]}, {"city": None}, False),
        ({"city": ["Bern", ""]}, {}, True),  # an empty text among the values: optional
        ({"city": ["Bern"]}, {}, False),
        ({"days": [3]}, {"days": 3.0}, False),  # the type comes first
        ({"days": [3]}, {"days": True}, False),
        ({"days": ["n"]}, {"days": "n"}, True),  # a variable
        ({"days": ["n"]}, {"days": "N"}, False),  # of which every letter counts
        ({"rate": [3]}, {"rate": 3}, True),
        ({"rate": [2.5]}, {"rate": 2.5}, True),
        ({"rate": [2.5]}, {"rate": "2.5"}, False),
        ({"flag": [True]}, {"flag": 1}, False),
        ({"tags": [["a", "B"]]}, {"tags": ["A", "b."]}, True),
        ({"tags": [["a", "b"]]}, {"tags": ["b", "a"]}, False),  # the order counts
        ({"tags": [["a"], ""]}, {"tags": []}, True),
        ({"tags": [["a"]]}, {"tags": [1]}, False),
        ({"box": [{"x": [1], "y": ["a", ""]}]}, {"box": {"x": 1}}, True),
        ({"box": [{"x": [1], "y": ["a", ""]}]}, {"box": {"x": 1, "y": "A"}}, True),
        ({"box": [{"x": [1]}]}, {"box": {"x": 1, "z": 2}}, False),
        ({"box": [{"x": [1]}]}, {"box": {}}, False),
        ({"rows": [[{"x": [1]}, {"x": [2]}]]}, {"rows": [{"x": 1}, {"x": 2}]}, True),
        ({"rows": [[{"x": [1]}]]}, {"rows": [{"x": 1}, {"x": 1}]}, False),
        ({"city": ["Bern"]}, {"city": "Bern", "invented": 1}, False),
        ({"city": "not a list"}, {"city": "n"}, False),
    ],
)
def test_values_by_hand(values: dict[str, Any], arguments: dict[str, Any], verdict: bool) -> None:
    assert accepts(values, arguments) is verdict


def test_a_required_argument_may_not_be_absent_even_if_it_is_optional() -> None:
    assert not accepts({"city": ["Bern", ""]}, {}, required=("city",))


def test_kinds() -> None:
    a, b = (PossibleCall(name, {"days": [1]}, TYPES) for name in "ab")
    parallel = BfclExpect("parallel", (a, b))
    one = {"days": 1}

    def ok(expect: BfclExpect, *calls: tuple[str, Any]) -> bool:
        return not list(bfcl_faults(expect, calls))

    assert ok(parallel, ("b", one), ("a", one))
    assert not ok(parallel, ("a", one))
    assert not ok(parallel, ("a", one), ("a", one))
    assert ok(BfclExpect("irrelevance"))
    assert not ok(BfclExpect("irrelevance"), ("a", one))
    assert ok(BfclExpect("relevance"), ("anything", {}))
    assert not ok(BfclExpect("relevance"))
    assert not ok(BfclExpect("simple", (a,)), ("a", "not an object"))


def test_only_its_rules_decide_about_a_case_of_bfcl() -> None:
    """A value that does not fit the schema passes, and a call of a function that is not offered is just a wrong one."""
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"days": {"type": "integer"}}}}]
    expect = {"kind": "simple", "calls": [{"name": "f", "values": {"days": ["n"]}, "types": {"days": "integer"}}]}
    data = {
        "id": "one",
        "category": "simple-python",
        "input": "?",
        "tools": tools,
        "expect": {"bfcl": expect},
    }
    case = case_from_dict(data)
    assert case.expects_calls
    found = score(case, SHIPPED["native"], Sample(calls=(Called("f", '{"days":"n"}'),)))
    assert found.passed
    assert {name for name, outcome in found.checks.items() if outcome is not None} == {"bfcl"}
    wrong = score(case, SHIPPED["native"], Sample(calls=(Called("g", "{}"),)))
    assert (wrong.passed, wrong.checks["bfcl"]) == (False, False)
    with pytest.raises(UsageError, match=r"expect\.calls: missing"):
        case_from_dict(data | {"expect": {}})
    with pytest.raises(UsageError, match=r"expect\.bfcl\.calls: missing"):
        case_from_dict(data | {"expect": {"bfcl": {"kind": "simple"}}})
    with pytest.raises(UsageError, match=r"expect\.bfcl\.kind: expected simple, multiple"):
        case_from_dict(data | {"expect": {"bfcl": {"kind": "java"}}})
    other = case_from_dict(data | {"expect": {"bfcl": {"kind": "relevance"}}})
    assert other.fingerprint != case.fingerprint


# Formats

F = {"python": "python", "json": "json", "verbose": "verbose-xml", "concise": "concise-xml"}
WANTED = [("f", {"a": 1, "b": ["x", True]}), ("g_h", {})]
PYTHON = "[f(a=1, b=['x', True]), g.h()]"
JSON = '```json\n[{"function":"f","parameters":{"a":1,"b":["x",true]}},{"function":"g.h","parameters":{}}]\n```'
VERBOSE = (
    'Sure: <functions><function name="f"><params><param name="a" value="1" type="integer"/>'
    '<param name="b" value="[\'x\', True]" type="array"/></params></function>'
    '<function name="g.h"><params></params></function></functions>'
)
CONCISE = (
    '<functions><function name="f"><param name="a" type="integer">1</param>'
    '<param name="b" type="array">[\'x\', True]</param></function><function name="g.h"></function></functions>'
)


@pytest.mark.parametrize(
    ("calls", "text"), [("python", PYTHON), ("json", JSON), ("verbose-xml", VERBOSE), ("concise-xml", CONCISE)]
)
@pytest.mark.parametrize("tagged", [False, True])
def test_calls_in_each_format(calls: Any, text: str, tagged: bool) -> None:
    wanted = PromptFormat("", calls=calls, tagged=tagged)
    written = f"<TOOLCALL>{text}</TOOLCALL>" if tagged else text
    assert [(call.name, json.loads(call.arguments)) for call in decode_calls(written, wanted)] == WANTED
    with pytest.raises(NotCalls):
        decode_calls("There is no function for that.", wanted)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("f(a=-2.5)", -2.5),
        ("f(a=3*4+1)", 13),
        ("f(a=(1, 2))", [1, 2]),
        ("f(a={'k': None})", {"k": None}),
        ("f(a=name)", "name"),
        ("f(a=__import__('os').system('true'))", "__import__('os').system('true')"),
        ("f(a=[x for x in y])", "[x for x in y]"),
        (r"f(a='\d')", r"\d"),
    ],
)
def test_python_values_are_read_and_never_run(text: str, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (call,) = decode_calls(text, PromptFormat(""))
    assert json.loads(call.arguments) == {"a": value}


@pytest.mark.parametrize("text", ["f(1)", "f(**x)", "[1]", "f(a=" + "(" * 5000, "-" * 100_000, "f(a=b'x')", "f(a=1j)"])
def test_what_is_not_a_call_in_python(text: str) -> None:
    with pytest.raises(NotCalls):
        decode_calls(text, PromptFormat(""))


def test_entities_in_xml_are_refused() -> None:
    bomb = '<functions><!DOCTYPE x [<!ENTITY a "aaaa">]><function name="f"/></functions>'
    with pytest.raises(NotCalls):
        decode_calls(bomb, PromptFormat("", calls="concise-xml"))


@given(st.text(max_size=200), st.sampled_from(["python", "json", "verbose-xml", "concise-xml"]), st.booleans())
def test_any_text_is_calls_or_not(text: str, calls: Any, tagged: bool) -> None:
    try:
        found = decode_calls(text, PromptFormat("", calls=calls, tagged=tagged))
    except NotCalls:
        return
    assert all(isinstance(call, Called) for call in found)


def test_a_format_is_scored() -> None:
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
    expect = {"calls": [{"name": "f", "arguments": {"a": 1}}]}
    case = case_from_dict({"id": "x", "category": "c", "input": "?", "tools": tools, "expect": expect})
    variant = LabVariant("mine", format=PromptFormat("Use these: $functions", functions="python"))
    assert "# Function: f" in variant.text_for(case)
    found = {text: score(case, variant, Sample((text,))) for text in ("[f(a=1)]", "[f(a=2)]", "[f(a=", "No.")}
    assert [each.form for each in found.values()] == ["clean", "clean", "broken", "absent"]
    assert [each.passed for each in found.values()] == [True, False, False, False]


def test_descriptions_of_functions() -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where.", "enum": ["Bern"], "default": "Bern"},
            "box": {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}},
        },
        "required": ["city"],
    }
    tool = FunctionTool("weather", "Now.", schema)
    python = describe_functions([tool], "python")
    assert "        city (str, default='Bern'): Where. Enum values: ['Bern'].\n" in python
    assert "            n (list[int]): " in python
    xml = describe_functions([tool], "xml")
    assert '<param name="city" type="string" required="true" default="\'Bern\'">' in xml
    assert '<param name="n" type="array[integer]" required="false">' in xml
    (described,) = json.loads(describe_functions([tool], "json"))
    assert described == {"name": "weather", "description": "Now.", "parameters": schema}
