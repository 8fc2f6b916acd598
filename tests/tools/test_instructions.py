"""The injected developer text: the document's wording byte for byte, and how variants change it."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.items import FunctionTool, ToolChoice
from bridge.tools.instructions import SPEC, Variant, build_instructions, join_developer_text
from bridge.tools.payload import CLOSE_TAG, OPEN_TAG

FIXTURES = Path(__file__).parents[2] / "fixtures"
DOCUMENT = (FIXTURES / "seed" / "tool_instructions.txt").read_text(encoding="utf-8")
FIXED, DEMANDS = DOCUMENT.split("\n\n")[:2]
AUTO = ToolChoice()

SEARCH = FunctionTool(
    "webSearch",
    "Search the web",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for"},
            "chatHistory": {"type": "array", "items": {"type": "object"}},
            "limit": {"type": ["integer", "null"], "minimum": 1},
        },
        "required": ["query", "chatHistory"],
    },
    strict=True,
)
TREE = FunctionTool("getFileTree", "List the vault’s files — naïve, 日本語 ✓")
TIME = FunctionTool("getTime", parameters={"type": "object", "properties": {}})
NOTE = FunctionTool(
    "writeNote",
    None,
    {
        "$defs": {"Mode": {"enum": ["append", "replace"], "type": "string", "description": "How to “write”"}},
        "type": "object",
        "properties": {
            "path": {"type": "string", "pattern": "^[a-z]+\\.md$"},
            "mode": {"$ref": "#/$defs/Mode"},
            "tags": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string"}}]},
        },
        "required": ["path", "mode"],
        "additionalProperties": False,
    },
    strict=True,
)

GOLDENS = {
    "auto": ([SEARCH], AUTO),
    "none": ([TREE], ToolChoice("none")),
    "required": ([TREE], ToolChoice("required")),
    "forced": ([TREE, TIME], ToolChoice("named", "getTime")),
    "no_parameters": ([TIME], AUTO),
    "strict": ([SEARCH, TREE, NOTE], AUTO),
    "forced_strict": ([NOTE, TIME], ToolChoice("named", "writeNote")),
}
TEXTS = {name: build_instructions(*request) for name, request in GOLDENS.items()}


@pytest.mark.parametrize("name", GOLDENS)
def test_the_text_equals_its_golden_file_byte_for_byte(name: str) -> None:
    golden = (FIXTURES / "instructions" / f"spec_{name}.txt").read_bytes()
    assert (TEXTS[name] + "\n").encode() == golden


def test_every_golden_file_is_compared() -> None:
    files = {path.name for path in (FIXTURES / "instructions").glob("spec_*.txt")}
    assert files == {f"spec_{name}.txt" for name in GOLDENS}


def test_the_fixed_lines_are_the_documents_own() -> None:
    assert len(FIXED.splitlines()) == 18
    for text in TEXTS.values():
        assert text.startswith(FIXED + "\n\n")


def test_the_choice_and_strict_lines_are_the_documents_without_its_notes() -> None:
    none, required, forced, strict = (re.sub(r" +\(only if .*\)$", "", line) for line in DEMANDS.splitlines())
    tools = [
        FunctionTool("toolA", strict=True),
        FunctionTool("x", strict=False),
        FunctionTool("toolB", strict=True),
    ]

    def section(choice: ToolChoice) -> str:
        return build_instructions(tools, choice).split("\n\n")[1]

    assert section(AUTO) == strict
    assert section(ToolChoice("none")) == f"{none}\n{strict}"
    assert section(ToolChoice("required")) == f"{required}\n{strict}"
    assert section(ToolChoice("named", "TOOL_NAME")) == f"{forced}\n{strict}"


def test_one_call_at_a_time_is_asked_for_between_choice_and_strict_tools() -> None:
    """Without parallel calls the text says so; with them it is the document's."""
    tools, choice = [FunctionTool("f", strict=True)], ToolChoice("required")
    (required, single, strict) = build_instructions(tools, choice, parallel=False).split("\n\n")[1].split("\n")
    assert "at most one <tool_call>" in single
    assert build_instructions(tools, choice).split("\n\n")[1].split("\n") == [required, strict]


def test_tools_of_a_namespace_are_shown_under_their_full_names() -> None:
    """In the list, the guidance, the example and among the strict ones."""
    text = build_instructions([FunctionTool("find", strict=True, namespace="crm")], AUTO)
    assert "Strict tools: crm.find." in text
    assert "\n- crm.find: {}" in text
    assert "\nTool: crm.find\n" in text
    assert '{"name":"crm.find","arguments":"{}"}' in text


def test_the_section_headings_are_the_documents() -> None:
    headings = [line for line in DOCUMENT.splitlines() if line.startswith(("Available tools", "Per-tool"))]
    lines = TEXTS["auto"].splitlines()
    assert [line for line in lines if line in headings] == headings


def test_no_tools_no_text() -> None:
    assert build_instructions([], ToolChoice("required")) == ""


def test_without_choice_and_strict_tools_their_section_leaves_no_trace() -> None:
    sections = build_instructions([TIME], AUTO).split("\n\n")
    assert [section.splitlines()[0] for section in sections[1:]] == [
        "Available tools (schema):",
        "Per-tool guidance and examples (schema-conformant):",
    ]


def test_a_missing_schema_is_shown_as_empty_and_a_given_one_verbatim() -> None:
    given_schema = MappingProxyType({"properties": {"b": {"x-own": "é"}, "a": True}, "type": "object"})
    tools = [
        FunctionTool("none"),
        FunctionTool("some", parameters=given_schema),
        FunctionTool("any", parameters=True),
    ]
    assert build_instructions(tools, AUTO).split("\n\n")[1] == (
        "Available tools (schema):\n- none: {}\n"
        '- some: {"properties":{"b":{"x-own":"é"},"a":true},"type":"object"}\n- any: true'
    )


def test_dollars_and_braces_of_the_client_are_not_template_words() -> None:
    tool = FunctionTool("$names", "costs $5, $schemas {name} $$", {"properties": {"$choice": {"type": "string"}}})
    text = build_instructions([tool], ToolChoice("named", "$names"))
    assert 'you MUST call "$names".' in text
    assert "Description: costs $5, $schemas {name} $$\n" in text
    assert "- $choice (optional, string)\n" in text


class TestVariants:
    def test_the_spec_has_exactly_the_named_blocks(self) -> None:
        names = {"header", "format", "rules", "bad_example", "choice", "single", "strict", "schemas", "guidance"}
        assert set(SPEC.blocks) == names
        assert SPEC.name == "spec"

    def test_an_empty_variant_is_the_document(self) -> None:
        assert build_instructions([SEARCH], AUTO, variant=Variant("same", {})) == TEXTS["auto"]

    def test_without_the_bad_example_its_line_is_gone_and_nothing_else(self) -> None:
        variant = Variant("positive", {"bad_example": ""})
        expected = re.sub(r"Bad: .*\n", "", TEXTS["auto"], count=1)
        assert build_instructions([SEARCH], AUTO, variant=variant) == expected

    @pytest.mark.parametrize("block", ["header", "format", "rules", "schemas", "guidance"])
    def test_an_empty_block_leaves_no_blank_lines_behind(self, block: str) -> None:
        text = build_instructions([TIME], AUTO, variant=Variant("less", {block: ""}))
        assert "\n\n\n" not in text
        assert text == text.strip()
        assert len(text) < len(build_instructions([TIME], AUTO))

    def test_each_block_can_be_replaced_and_uses_its_words(self) -> None:
        variant = Variant(
            "own",
            {
                "header": "H",
                "format": "F",
                "rules": "R1\n$bad_example\nR2",
                "bad_example": "B costs $$1",
                "choice": "C $mode $name",
                "single": "O",
                "strict": "S $names",
                "schemas": "T\n$schemas",
                "guidance": "",
            },
        )
        tool = FunctionTool("f", strict=True)
        text = build_instructions([tool], ToolChoice("named", "f"), parallel=False, variant=variant)
        assert text == "H\nF\nR1\nB costs $1\nR2\n\nC named f\nO\nS f\n\nT\n- f: {}"

    def test_a_block_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no such block: footer"):
            Variant("typo", {"footer": "x"})


names = st.text(min_size=1, max_size=8)
plain_schemas = st.dictionaries(
    names,
    st.sampled_from(["string", "integer", "boolean", "array", "object", "null"]).map(lambda t: {"type": t}),
).map(lambda properties: {"type": "object", "properties": properties, "required": list(properties)})


@settings(deadline=None)
@given(names, plain_schemas | st.none())
def test_the_example_line_is_json_whose_arguments_are_json(name: str, schema: dict[str, object] | None) -> None:
    last = build_instructions([FunctionTool(name, parameters=schema)], AUTO).rpartition("\nExample tool_call:\n")[2]
    assert last.startswith(OPEN_TAG)
    assert last.endswith(CLOSE_TAG)
    call = orjson.loads(last.removeprefix(OPEN_TAG).removesuffix(CLOSE_TAG))
    assert list(call) == ["name", "arguments"]
    assert call["name"] == name
    arguments = orjson.loads(call["arguments"])
    assert orjson.dumps(arguments).decode() == call["arguments"]
    assert isinstance(arguments, dict)


@pytest.mark.parametrize(
    ("blocks", "joined"),
    [
        ((), None),
        ((None, "", " \n"), None),
        (("a",), "a"),
        (("a", None, "b", "", "c"), "a\n\nb\n\nc"),
        ((" a\n", "b"), " a\n\n\nb"),
    ],
)
def test_developer_texts_are_joined_with_a_blank_line(blocks: tuple[str | None, ...], joined: str | None) -> None:
    assert join_developer_text(*blocks) == joined
