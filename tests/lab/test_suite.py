"""Suites: what good ones contain, and the faults of bad ones, with file, line and key."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Message, Text, ToolChoice
from bridge.errors import UsageError
from bridge.lab.case import Case, Expect, ExpectedCall
from bridge.lab.suite import Suite, case_from_dict, document, load_suite
from bridge.lab.suite.models import suite_schema

SUITES = Path(__file__).parent / "suites"
GOOD, BAD = SUITES / "good", SUITES / "bad"

Write = Callable[..., Path]

CASE = {"id": "one", "category": "c", "input": "hello", "expect": {"calls": "none"}}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "suite.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def faults(path: Path, within: Path | None = None) -> list[str]:
    """The faults of a suite, line by line, with paths as they are `within` a directory."""
    with pytest.raises(UsageError) as caught:
        load_suite(path)
    return caught.value.message.replace(f"{within or path.parent}{os.sep}", "").split("\n")


def by_id(suite: Suite) -> dict[str, Case]:
    return {case.id: case for case in suite.cases}


class TestGood:
    def test_a_directory_loads_all_files_except_tools(self) -> None:
        suite = load_suite(GOOD)
        ids = ["weather-in-bern", "after-an-output", "no-call", "plain-words", "responses-items"]
        assert [case.id for case in suite.cases] == ids
        names = ["index.yaml", "single.yaml", "tools/town.yaml", "deeper/words.yml", "items.json"]
        assert [str(file.relative_to(GOOD)) for file in suite.files] == names

    def test_a_file_loads_its_includes(self) -> None:
        suite = load_suite(GOOD / "index.yaml")
        assert load_suite(str(GOOD / "index.yaml")) == suite
        assert [case.id for case in suite.cases] == ["weather-in-bern", "after-an-output", "no-call", "plain-words"]

    def test_a_case_with_defaults(self) -> None:
        case = by_id(load_suite(GOOD))["weather-in-bern"]
        schema = {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
            "additionalProperties": False,
        }
        assert case == Case(
            id="weather-in-bern",
            category="single",
            items=(Message("user", (Text("Weather in Bern?"),)),),
            expect=Expect((ExpectedCall("weather", {"city": {"$same": "bern"}}, {"days": {"$any": [1, 7]}}),)),
            tools=(
                FunctionTool("weather", "The weather in a city.", schema),
                FunctionTool("population", "How many people live there.", schema),
            ),
            instructions="Be brief.",
            tags=("smoke", "first"),
            notes="The plainest case there is.",
        )
        assert (case.file, case.line) == (GOOD / "single.yaml", 14)

    def test_a_case_that_overrides_the_defaults(self) -> None:
        case = by_id(load_suite(GOOD))["after-an-output"]
        assert case.category == "sequence"
        assert case.tool_choice == ToolChoice("named", "population")
        assert not case.parallel
        assert [tool.strict for tool in case.tools] == [True, True]
        assert case.items[2:6] == (
            FunctionCall("call_1", "weather", '{"city":"Bern","days":2}'),
            FunctionCall("call_2", "weather", '{"city": "Bern",'),
            FunctionOutput("call_1", (Text("rain"),)),
            FunctionOutput("call_2", (Text("the arguments are no JSON"),)),
        )
        assert case.items[6] == Message("user", (Text("And how many"), Text("people?")))
        assert case.expect.order == "exact"
        assert case.expect.lacks == ("rain", "snow")

    def test_repeated_text_and_no_call(self) -> None:
        case = by_id(load_suite(GOOD))["no-call"]
        assert case.items == (Message("user", (Text("tag " * 5000),)),)
        assert case.expect == Expect((), contains=("tag",), leak="allowed")
        assert case.tools == ()

    def test_responses_items_in_json_with_tabs(self) -> None:
        case = by_id(load_suite(GOOD))["responses-items"]
        assert case.items == (
            Message("user", (Text("😀 time?"),)),
            FunctionCall("c1", "now", "{}"),
            FunctionOutput("c1", (Text("12:30"),)),
        )
        assert case.tool_choice == ToolChoice("required")
        assert [(tool.name, tool.strict) for tool in case.tools] == [("now", None), ("label", True), ("add", None)]
        assert case.line == 4

    def test_plain_words_mean_what_they_mean_in_json(self) -> None:
        (call,) = by_id(load_suite(GOOD))["plain-words"].expect.calls
        assert call.arguments == {
            "country": "NO",
            "day": "2024-01-01",
            "time": "12:30",
            "code": "007",
            "far": ".inf",
            "n": -1,
            "x": 1500.0,
            "yes": True,
            "none": None,
        }

    def test_the_schema_for_editors_accepts_the_good_suites(self) -> None:
        validator = jsonschema_rs.validator_for(dict(suite_schema()))
        for name in ("index.yaml", "single.yaml", "items.json"):
            text = (GOOD / name).read_text()
            validator.validate(json.loads(text) if name.endswith(".json") else yaml.safe_load(text))

    def test_the_schema_for_editors_is_generated_from_the_models(self) -> None:
        """REWRITE_GOLDEN=1 writes it again."""
        path = Path(document.__file__).with_name("schema.json")
        if os.environ.get("REWRITE_GOLDEN"):
            shapes = ",\n".join(
                f"{json.dumps(name)}: {json.dumps(shape)}" for name, shape in suite_schema()["$defs"].items()
            )
            rest = json.dumps({name: value for name, value in suite_schema().items() if name != "$defs"})
            path.write_text(f'{{"$defs": {{\n{shapes}\n}},\n{rest[1:]}\n')
        assert json.loads(path.read_text()) == suite_schema()

    def test_without_libyaml_it_reads_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with_it = load_suite(GOOD)
        monkeypatch.setattr(document, "PARSER", yaml.SafeLoader)
        assert load_suite(GOOD) == with_it


FAULTS = {
    "unknown-key.yaml": [
        "unknown-key.yaml:1: colour: unknown key",
        "unknown-key.yaml:4: tools.weather.parmeters: unknown key; did you mean parameters?",
        "unknown-key.yaml:13: cases[0].expect.calls[0].nam: unknown key; did you mean name?",
        "unknown-key.yaml:18: cases[1].mesages: unknown key; did you mean messages?",
        "unknown-key.yaml:19: cases[1].expect.leek: unknown key; did you mean leak?",
        "unknown-key.yaml:24: cases[2].messages[0].tool_cals: unknown key; did you mean tool_calls?",
    ],
    "missing-tool.yaml": [
        "missing-tool.yaml:11: cases[0].tools[1]: unknown tool wether; did you mean weather?",
        "missing-tool.yaml:15: cases[1].tools[1]: the tool weather is offered twice",
        "missing-tool.yaml:22: cases[2].expect.calls[0].name: the tool time is not offered",
        "missing-tool.yaml:26: cases[3].tool_choice.name: the tool time is not offered",
        "missing-tool.yaml:28: cases[3].expect.calls[0].name: the tool time is not offered",
    ],
    "bad-schema.yaml": [
        "bad-schema.yaml:7: tools.kind.parameters.properties.city.type: "
        'unusable JSON Schema: "strung" is not allowed here',
        'bad-schema.yaml:9: tools.pattern.parameters.properties.a.pattern: unusable JSON Schema: "(" is not a "regex"',
        "bad-schema.yaml:11: tools.elsewhere.parameters: unusable JSON Schema: Resource "
        "'https://example.com/schema.json' is not present in a registry and retrieving it failed: "
        "LookupError: references are never fetched",
        "bad-schema.yaml:15: tools.list.parameters.type: expected object: arguments are always an object",
        "bad-schema.yaml:16: tools.odd name: a tool name must have 1 to 128 letters, digits or any of _ . : -",
        "bad-schema.yaml:24: cases[0].tools[1].parameters.required: "
        'unusable JSON Schema: "city" is not of type "array"',
    ],
    "duplicate-id.yaml": [
        "duplicate-id.yaml:5: cases[2].id: duplicate id one; first used at duplicate-id.yaml:3",
        "more/same-id.yaml:3: cases[0].id: duplicate id two; first used at duplicate-id.yaml:4",
    ],
    "circle-a.yaml": [
        "circle-c.yml:1: include[0]: circle-a.yaml: includes itself: "
        "circle-a.yaml → circle-b.json → circle-c.yml → circle-a.yaml",
    ],
    "expected-arguments.yaml": [
        "expected-arguments.yaml:20: cases[0].expect.calls[0].arguments.city: missing: the tool weather requires it",
        "expected-arguments.yaml:21: cases[0].expect.calls[0].arguments.town: the tool weather has no such argument",
        "expected-arguments.yaml:23: cases[0].expect.calls[0].optional.dayz: "
        "the tool weather has no such argument; did you mean days?",
        "expected-arguments.yaml:25: cases[0].expect.calls[1].arguments.zone: the tool now has no such argument",
        "expected-arguments.yaml:32: cases[1].expect.calls[0].arguments.city: "
        "$regex '(': missing ), unterminated subpattern at position 0",
        "expected-arguments.yaml:33: cases[1].expect.calls[0].arguments.days: unknown rule $between; a rule is an "
        "object with exactly one of $any, $regex, $contains, $same, $lines, $number, $near, $type, $length, $set, "
        "$percent, $figure, $json, $all, $not, $anything",
        "expected-arguments.yaml:36: cases[1].expect.calls[1].arguments.city: $near takes two numbers",
        "expected-arguments.yaml:38: cases[1].expect.calls[1].optional.city: already listed under arguments",
        "expected-arguments.yaml:46: cases[2].expect.calls[0].arguments.days: "
        'does not fit the tool\'s schema: "3" is not of type "integer"',
        "expected-arguments.yaml:49: cases[2].expect.calls[1].arguments.side: "
        'does not fit the tool\'s schema: "c" is not one of "a" or "b"',
        "expected-arguments.yaml:52: cases[2].expect.calls[2].arguments.side: missing: the tool either requires it",
    ],
    "meaning.yaml": [
        "meaning.yaml:3: cases[0].category: missing here and in the defaults",
        "meaning.yaml:11: cases[1].expect.calls: calls are expected, but tool_choice is none",
        "meaning.yaml:17: cases[2].expect.calls: no call is expected, but tool_choice is required",
        "meaning.yaml:23: cases[3].expect.calls: a call of another tool is expected, but tool_choice allows only now",
        "meaning.yaml:29: cases[4].expect.calls: several calls are expected, but parallel is false",
        "meaning.yaml:34: cases[5].tool_choice: tool_choice is required, but no tool is offered",
        "meaning.yaml:35: cases[5].expect.calls: no call is expected, but tool_choice is required",
    ],
    "messages.yaml": [
        "messages.yaml:4: cases[0].messages: must not be empty",
        "messages.yaml:6: cases[1].messages: missing; give messages or input",
        "messages.yaml:10: cases[2].input: give either messages or input, not both",
        "messages.yaml:16: cases[3].messages[1].content: must not be empty",
        "messages.yaml:19: cases[4].messages: no tool call found for the output with call_id 'c1'. "
        "Send the call and its output together",
        "messages.yaml:26: cases[5].messages[1].tool_call_id: a call id has 1 to 256 letters, digits or punctuation",
        "messages.yaml:31: cases[6].messages[0].role: "
        "expected system, developer, user, assistant or tool; did you mean user?",
        "messages.yaml:36: cases[7].input[0].type: items of type 'mystery' are not supported",
        "messages.yaml:39: cases[8].messages: nothing to answer",
    ],
    "kinds.yaml": [
        "kinds.yaml:1: defaults.tags[0]: "
        "expected lower-case letters, digits and hyphens, such as weather-in-two-cities",
        "kinds.yaml:2: tools: expected an object of tools by name, or the path of a file that holds one",
        "kinds.yaml:3: include: expected a list of paths, relative to this file",
        "kinds.yaml:5: cases[0]: expected a case: an object with id, category, messages or input, and expect",
        "kinds.yaml:6: cases[1].id: expected lower-case letters, digits and hyphens, such as weather-in-two-cities",
        "kinds.yaml:7: cases[1].tags: expected a list of tags",
        "kinds.yaml:8: cases[1].strict: expected true or false",
        "kinds.yaml:9: cases[1].tool_choice: expected auto, none, required or {name: TOOL}; did you mean required?",
        "kinds.yaml:10: cases[1].tools[0]: "
        "expected the name of a shared tool, or an object with name, description, parameters and strict",
        "kinds.yaml:10: cases[1].tools[1].name: missing",
        "kinds.yaml:11: cases[1].instructions: must not be empty",
        "kinds.yaml:13: cases[1].expect.calls: expected none or a list of calls; did you mean none?",
        "kinds.yaml:14: cases[1].expect.order: expected any or exact; did you mean exact?",
        "kinds.yaml:15: cases[1].expect.contains[1]: expected text",
        "kinds.yaml:16: cases[1].expect.lacks: expected text or a list of texts",
    ],
    "repeat.yaml": [
        "repeat.yaml:4: cases[0].messages[0].content: "
        "$repeat must be the only key and takes a text and a count: [text, count]",
        "repeat.yaml:7: cases[1].messages[0].content: "
        "$repeat must be the only key and takes a text and a count: [text, count]",
        "repeat.yaml:10: cases[2].input: $repeat must be the only key and takes a text and a count: [text, count]",
        "repeat.yaml:13: cases[3].input: $repeat may make at most 1,000,000 characters, and 20,000,000 in one file",
    ],
    "keys-twice.yaml": [
        "keys-twice.yaml:3: x-anchor.a: duplicate key; first used on line 2",
        "keys-twice.yaml:10: cases[0].category: duplicate key; first used on line 7",
    ],
    "keys-twice.json": ["keys-twice.json:3: cases[0].input: duplicate key; first used on line 2"],
    "tool-file.yaml": ["tools/wrong.yaml:3: broken.parametres: unknown key; did you mean parameters?"],
    "no-such-files.yaml": [
        "no-such-files.yaml:1: tools: tools/nowhere.yaml: no such file",
        "no-such-files.yaml:3: include[0]: nowhere.yaml: no such file",
    ],
}


class TestBad:
    @pytest.mark.parametrize("name", FAULTS)
    def test_faults(self, name: str) -> None:
        assert faults(BAD / name) == FAULTS[name]

    def test_every_bad_suite_is_tested(self) -> None:
        circle = {"circle-b.json", "circle-c.yml"}
        assert {path.name for path in BAD.iterdir() if path.is_file()} == FAULTS.keys() | circle

    def test_at_most_twenty_faults_are_reported(self, write: Write) -> None:
        path = write("cases:\n" + "- {}\n" * 30)
        messages = faults(path)
        assert len(messages) == 21
        assert messages[0] == "suite.yaml:2: cases[0].id: missing"
        assert messages[-1] == "and 40 more"

    def test_a_duplicate_id_in_two_files(self, write: Write) -> None:
        write(json.dumps({"cases": [CASE]}), "a.json")
        path = write(json.dumps({"cases": [CASE]}, indent=1), "b/c.json")
        assert faults(path.parent.parent, path.parent.parent) == [
            "b/c.json:4: cases[0].id: duplicate id one; first used at a.json:1"
        ]

    def test_a_duplicate_id_of_a_case_with_another_fault(self, write: Write) -> None:
        messages = faults(write(json.dumps({"cases": [CASE | {"odd": 1}, CASE]}, indent=1), "suite.json"))
        assert [line.split(": ", 2)[1:] for line in messages] == [
            ["cases[0].odd", "unknown key"],
            ["cases[1].id", "duplicate id one; first used at suite.json:3"],
        ]

    def test_a_fault_is_one_line_of_limited_length(self, write: Write) -> None:
        odd, long = "a\nb.yaml:1: c\x1b[2J", "x" * 10_000
        messages = faults(write(json.dumps({"cases": [CASE | {"tools": [odd], odd: 1, long: 2}]}), "suite.json"))
        assert messages == [
            "suite.json:1: cases[0].a\\nb.yaml:1: c\\u001b[2J: unknown key",
            f"suite.json:1: cases[0].{'x' * 491}…: unknown key",
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", ["suite.yaml:1: expected an object with cases or include"]),
            ("- a", ["suite.yaml:1: expected an object with cases or include"]),
            ("{}", ["suite.yaml:1: add cases or include; the file has neither"]),
            ("tools: {}\n", ["suite.yaml:1: add cases or include; the file has neither"]),
        ],
    )
    def test_files_that_are_not_suites(self, write: Write, text: str, message: list[str]) -> None:
        assert faults(write(text)) == message

    @pytest.mark.parametrize("key", ["category", "tools", "tool_choice", "instructions", "tags", "notes", "messages"])
    def test_null_is_not_the_same_as_absent(self, write: Write, key: str) -> None:
        (message,) = faults(write(json.dumps({"cases": [CASE | {key: None}]}), "suite.json"))
        assert message.startswith(f"suite.json:1: cases[0].{key}: expected ")

    def test_no_cases_at_all(self, write: Write) -> None:
        assert faults(write("cases: []\n")) == ["suite.yaml: contains no cases"]

    def test_paths_that_cannot_be_read(self, write: Write, tmp_path: Path) -> None:
        assert faults(tmp_path / "a.yaml") == ["a.yaml: no such file"]
        assert faults(write("", "suite.txt")) == ["suite.txt: the name of a suite file must end in .yaml, .yml, .json"]
        (tmp_path / "empty").mkdir()
        assert faults(tmp_path / "empty") == ["empty: contains no file whose name ends in .yaml, .yml, .json"]
        os.mkfifo(tmp_path / "pipe.yaml")
        assert faults(tmp_path / "pipe.yaml") == ["pipe.yaml: not a regular file"]

    def test_faults_of_a_tools_file_are_reported_once(self, write: Write) -> None:
        write("a: {b: 1}\n", "tools/t.yaml")
        for name in ("a", "b"):
            write(f"tools: tools/t.yaml\ncases: [{json.dumps(CASE | {'id': name, 'tools': ['a']})}]\n", f"{name}.yaml")
        path = write("include: [a.yaml, b.yaml]\n")
        assert faults(path) == ["tools/t.yaml:1: a.b: unknown key"]

    def test_a_schema_is_never_fetched(self, write: Write) -> None:
        """Port 9 of this machine: a connection would be refused, and the fault would say so."""
        for word in ("$ref", "$schema"):
            tools = {"t": {"parameters": {word: "http://127.0.0.1:9/schema"}}}
            (message,) = faults(write(json.dumps({"tools": tools, "cases": [CASE]}), "suite.json"))
            assert message.startswith("suite.json:1: tools.t.parameters: unusable JSON Schema: ")
            assert "error sending" not in message


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("cases:\n  - id: [a\n", "suite.yaml:3:1: invalid YAML: "),
            ("a: b\n c: d\n", "suite.yaml:2:3: invalid YAML: mapping values are not allowed in this context"),
            ("cases: *nothing\n", "suite.yaml:1:8: the anchor &nothing is not complete before this alias"),
            ("a: &a [1, *a]\n", "suite.yaml:1:11: the anchor &a is not complete before this alias"),
            ("a: 1\n---\nb: 2\n", "suite.yaml:2:1: a suite file must hold one document; this is a second one"),
            ("1: a\n", "suite.yaml:1:1: a key must be text: write '1' in quotes"),
            ("[a]: b\n", "suite.yaml:1:1: a key must be text"),
            (
                "\nx: !!python/object/apply:os.system [true]\n",
                "suite.yaml:2:4: the tag !!python/object/apply:os.system",
            ),
            ("x: !!python/name:os.system\n", "suite.yaml:1:4: the tag !!python/name:os.system is not supported"),
            ("x: !mine {a: 1}\n", "suite.yaml:1:4: the tag !mine is not supported"),
            ("x: !!binary aGk=\n", "suite.yaml:1:4: the tag !!binary is not supported"),
            ("x: !!set {a}\n", "suite.yaml:1:4: the tag !!set is not supported"),
            ("a: 1\nx: 18446744073709551616\n", "suite.yaml:2:4: the number 18446744073709551616 has more than 64"),
            (f"x: {'9' * 10_000}\n", "suite.yaml:1:4: the number 9999"),
            ("x: 1e999\n", "suite.yaml:1:4: the number 1e999 is too large"),
            ("x: a\n<<: 5\n", "suite.yaml:2:1: << takes a mapping or a list of mappings"),
            ("a: 1\nb: '\x07'\n", "suite.yaml:2:5: write the character U+0007 as an escape"),
            ("x: " + "[" * 100_000, "suite.yaml:1:68: nested more than 64 levels deep"),
            ("- " * 100 + "a", "suite.yaml:1:131: nested more than 64 levels deep"),
        ],
    )
    def test_what_cannot_be_read(self, write: Write, text: str, message: str) -> None:
        (line,) = faults(write(text))
        assert line.startswith(message)

    def test_texts_in_quotes_and_with_tags_stay_texts(self, write: Write) -> None:
        path = write(
            "cases:\n"
            "- {id: '1', category: !!str 2, notes: 'true', input: \"\\u00e9\", expect: !!map {calls: !!seq []}}\n"
        )
        (case,) = load_suite(path).cases
        assert (case.id, case.category, case.notes) == ("1", "2", "true")
        assert case.items == (Message("user", (Text("é"),)),)

    def test_merged_keys(self, write: Write) -> None:
        path = write(
            "x-a: &a {category: a, notes: from a}\n"
            "x-b: &b {<<: *a, category: b, input: hello}\n"
            "cases:\n"
            "- {<<: [*b, *a], id: one, expect: {calls: none}}\n"
            "- {<<: *b, id: two, category: own, expect: {calls: nonne}}\n"
        )
        assert faults(path) == [
            "suite.yaml:5: cases[1].expect.calls: expected none or a list of calls; did you mean none?"
        ]
        path.write_text(path.read_text().replace("nonne", "none"))
        found = [(case.id, case.category, case.notes) for case in load_suite(path).cases]
        assert found == [("one", "b", "from a"), ("two", "own", "from a")]

    def test_a_billion_laughs_are_refused_at_once(self, write: Write) -> None:
        lines = ["x-0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
        lines += [f"x-{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 30)]
        started = time.process_time()
        (message,) = faults(write("\n".join(lines)))
        assert "more than 200,000 values, counting what aliases stand for" in message
        assert time.process_time() - started < 5

    def test_one_long_text_many_times(self, write: Write) -> None:
        text = f"x-a: &a {'a' * 1_000_000}\nx-b: [{', '.join(['*a'] * 30)}]\n"
        assert faults(write(text)) == ["suite.yaml:2: more than 20,000,000 characters, counting what aliases stand for"]

    def test_a_chain_of_merges(self, write: Write) -> None:
        lines = ["x-0: &m0 {k0: 0}", *(f"x-{n}: &m{n} {{<<: *m{n - 1}, k{n}: 0}}" for n in range(1, 2_000))]
        (message,) = faults(write("\n".join(lines)))
        assert message.endswith("more than 200,000 values, counting what aliases stand for")

    def test_a_file_that_is_too_large(self, write: Write) -> None:
        assert faults(write("#" * 5_000_001)) == ["suite.yaml: larger than 5,000,000 bytes"]

    def test_other_encodings(self, write: Write, tmp_path: Path) -> None:
        path = write("")
        path.write_bytes(b"cases: []\nx-a: \xff\n")
        assert faults(path) == ["suite.yaml:2: not UTF-8"]
        path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"cases": [CASE]}).encode())
        assert len(load_suite(path).cases) == 1


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # No lone surrogates: they are no text.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


class TestJson:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "suite.json:1:1: invalid JSON: expecting value"),
            ('{\n "a": 1,\n}', "suite.json:3:1: invalid JSON: expecting property name enclosed in double quotes"),
            ('{\n "a" 1}', "suite.json:2:6: invalid JSON: expecting ':' delimiter"),
            ('{"a": [1 2]}', "suite.json:1:10: invalid JSON: expecting ',' delimiter"),
            ('{"a": [1,]}', "suite.json:1:10: invalid JSON: expecting value"),
            ("{'a': 1}", "suite.json:1:2: invalid JSON: expecting property name enclosed in double quotes"),
            ('{"a": NaN}', "suite.json:1:7: invalid JSON: NaN is not a JSON value"),
            ('{"a": 01}', "suite.json:1:8: invalid JSON: expecting ',' delimiter"),
            ('{"a": "\n"}', "suite.json:1:8: invalid JSON: invalid control character at"),
            ('{"a": "b', "suite.json:1:7: invalid JSON: unterminated string starting at"),
            ('{"a": "\\ud800"}', "suite.json:1: text with half of a surrogate pair"),
            ('{"a": 1} {}', "suite.json:1:10: invalid JSON: extra data"),
            ('{"a": 1e999}', "suite.json:1:7: the number 1e999 is too large"),
            ("[" * 100_000, "suite.json:1:66: nested more than 64 levels deep"),
        ],
    )
    def test_what_cannot_be_read(self, write: Write, text: str, message: str) -> None:
        assert faults(write(text, "suite.json")) == [message]

    @given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=4), st.booleans())
    def test_values_are_read_as_written(
        self, tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any], ascii_only: bool
    ) -> None:
        path = tmp_path_factory.mktemp("json") / "suite.json"
        arguments = {f"a{name}": member for name, member in value.items()}
        plain = json.dumps(arguments)
        if '"$' in plain:  # that would be a rule
            return
        tool = {"name": "t", "parameters": {"type": "object", "additionalProperties": True}}
        case = CASE | {"tools": [tool], "expect": {"calls": [{"name": "t", "arguments": arguments}]}}
        path.write_text(json.dumps({"cases": [case]}, indent=2, ensure_ascii=ascii_only))
        (read,) = load_suite(path).cases
        assert json.dumps(read.expect.calls[0].arguments) == plain

    def test_a_large_file_is_read_quickly(self, write: Write) -> None:
        cases = [CASE | {"id": f"case-{number}", "notes": "n" * 400} for number in range(9_000)]
        path = write(json.dumps({"cases": cases}, indent=1), "suite.json")
        started = time.process_time()
        assert len(load_suite(path).cases) == 9_000
        assert time.process_time() - started < 10


class TestDamaged:
    """A file with pieces cut out, doubled or put elsewhere is read, or its faults are reported."""

    @given(st.data())
    def test_nothing_but_faults(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        sources = [path for folder in (GOOD, BAD) for path in sorted(folder.iterdir()) if path.is_file()]
        source = data.draw(st.sampled_from(sources))
        text = source.read_text()
        for _ in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, len(text)))
            end = min(len(text), start + data.draw(st.integers(0, 30)))
            where = data.draw(st.integers(0, len(text)))
            piece = data.draw(
                st.sampled_from(["", text[start:end], "[", "]", "{a: ", "}", ": ", "- ", "~", '"', "&a ", "*a"])
            )
            text = text[:start] + text[end:] if not piece else text[:where] + piece + text[where:]
        path = tmp_path_factory.mktemp("damaged") / source.name
        path.write_text(text)
        with suppress(UsageError):
            load_suite(path)
            return
        assert all(line.startswith((f"{path.parent}{os.sep}", "and ")) for line in faults(path, Path("/nowhere")))


class TestFromPrograms:
    def test_a_case(self) -> None:
        case = case_from_dict(
            CASE | {"tools": ["now"], "expect": {"calls": [{"name": "now"}]}},
            tools={"now": {"description": "The time."}},
        )
        assert case.tools == (FunctionTool("now", "The time."),)
        assert case.expect == Expect((ExpectedCall("now"),))
        assert (case.file, case.line) == (None, 0)

    def test_its_faults_name_the_key(self) -> None:
        with pytest.raises(UsageError) as caught:
            case_from_dict(
                {"id": "one", "tools": ["noww"], "input": "a", "expect": {"calls": "none"}}, tools={"now": {}}
            )
        assert caught.value.message.split("\n") == [
            "category: missing here and in the defaults",
            "tools[0]: unknown tool noww; did you mean now?",
        ]

    def test_a_value_that_is_not_json(self) -> None:
        with pytest.raises(UsageError, match="JSON cannot represent"):
            case_from_dict(CASE | {"notes": object()})
