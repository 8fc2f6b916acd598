"""Variants: the spec's text byte for byte, the shipped ones as golden files, and those that a person writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT
from tools.test_instructions import SEARCH

from bridge.core.items import Message, Text, ToolChoice
from bridge.errors import UsageError
from bridge.lab.case import Case, Expect
from bridge.lab.suite import load_suite
from bridge.lab.variant import SHIPPED, LabVariant, find_variant
from bridge.tools.instructions import build_instructions

GOLDENS = ROOT / "fixtures" / "instructions"
CASES = load_suite(ROOT / "fixtures" / "cases").cases

QUESTION = Case("golden", "golden", (Message("user", (Text("?"),)),), Expect(), (SEARCH,))
DEMANDING = replace(QUESTION, tool_choice=ToolChoice("required"), parallel=False)
OPENING = re.compile(r"</?tool_call[^>]*>")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_spec_variant_is_what_the_bridge_injects(case: Case) -> None:
    injected = build_instructions(case.tools, case.tool_choice, parallel=case.parallel)
    assert SHIPPED["spec"].text_for(case) == injected
    assert bool(injected) == bool(case.tools)


def test_the_spec_variant_is_the_documents_golden_text() -> None:
    assert SHIPPED["spec"].text_for(QUESTION) + "\n" == (GOLDENS / "spec_auto.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in ("spec", "native")])
def test_each_shipped_text_equals_its_golden_file(name: str) -> None:
    golden = GOLDENS / f"lab_{name.replace('-', '_')}.txt"
    assert (SHIPPED[name].text_for(QUESTION) + "\n").encode() == golden.read_bytes()


def test_every_golden_file_is_compared() -> None:
    files = {path.stem.removeprefix("lab_").replace("_", "-") for path in GOLDENS.glob("lab_*.txt")}
    assert files == SHIPPED.keys() - {"spec", "native"}


def test_nothing_is_injected_natively_or_without_tools() -> None:
    assert SHIPPED["native"].text_for(QUESTION) == ""
    without = replace(QUESTION, tools=())
    assert {variant.text_for(without) for variant in SHIPPED.values()} == {""}


def test_variants_differ_in_what_their_names_say_and_nowhere_else() -> None:
    spec = SHIPPED["spec"].text_for(QUESTION)
    bad = next(line for line in spec.splitlines() if line.startswith("Bad:"))
    assert SHIPPED["no-bad-example"].text_for(QUESTION) == spec.replace(bad + "\n", "")
    short = SHIPPED["short"].text_for(QUESTION)
    assert len(short) < 0.7 * len(spec)
    assert short.split("\n\n")[1:] == spec.split("\n\n")[1:]


def test_objects_are_asked_for_and_shown_everywhere() -> None:
    """No line of that wording still speaks of a string, and its own examples need no repair."""
    text = SHIPPED["json-args-object"].text_for(QUESTION)
    assert "JSON string" not in text
    assert '"arguments":"' not in text
    assert '\\"' not in text
    blocks = re.findall(r"<tool_call>(\{.*?\})</tool_call>", text)
    read = [json.loads(block) for block in blocks if "..." not in block]
    assert [block["name"] for block in read] == ["webSearch", "webSearch"]
    assert all(isinstance(block["arguments"], dict) for block in read)


# Tags of one's own


def test_a_nonce_tag_is_the_same_every_time_and_another_for_every_case() -> None:
    variant = SHIPPED["nonce-tag"]
    assert variant.tags_for(QUESTION).open == "<tool_call_f2552c>"
    assert variant.tags_for(QUESTION).close == "</tool_call_f2552c>"
    # Only the id decides: a case that is written anew keeps its tag, so that its results can be compared.
    assert variant.tags_for(DEMANDING) == variant.tags_for(QUESTION)
    assert len({variant.tags_for(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [QUESTION, DEMANDING, *CASES], ids=lambda case: case.id)
def test_a_nonce_tag_stands_wherever_the_spec_has_its_own(case: Case) -> None:
    """And nowhere else: put back, it gives the spec's text."""
    variant = SHIPPED["nonce-tag"]
    text, tags = variant.text_for(case), variant.tags_for(case)
    assert set(OPENING.findall(text)) <= {tags.open, tags.close}
    back = text.replace(tags.open, "<tool_call>").replace(tags.close, "</tool_call>")
    assert back == SHIPPED["spec"].text_for(case)


def test_all_other_variants_have_the_tag_of_the_spec() -> None:
    names = {variant.tags_for(QUESTION).name for variant in SHIPPED.values() if not variant.nonce}
    assert names == {"tool_call"}


# Files


def written(path: Path, data: Any) -> LabVariant:
    """The variant in a file that says this."""
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return find_variant(str(path))


def test_a_name_means_a_shipped_variant() -> None:
    for name, variant in SHIPPED.items():
        assert find_variant(name) is variant


def test_a_file_replaces_the_blocks_that_it_names(tmp_path: Path) -> None:
    variant = written(tmp_path / "calm.yaml", {"blocks": {"header": "Tools may be called.\n", "bad_example": ""}})
    assert variant.name == "calm"
    expected = SHIPPED["no-bad-example"].text_for(QUESTION).split("\n")
    text = variant.text_for(QUESTION).split("\n")
    assert text[0] == "Tools may be called."
    assert text[1:] == expected[2:]


def test_a_block_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "rules.txt").write_text("Do what is right.\n$bad_example\n", encoding="utf-8")
    data = {"name": "ruled", "blocks": {"rules": {"file": "texts/rules.txt"}}}
    variant = written(tmp_path / "v.json", json.dumps(data))
    assert variant.name == "ruled"
    fixed = variant.text_for(QUESTION).split("\n\n")[0].split("\n")
    assert fixed[-2] == "Do what is right."
    assert fixed[-1].startswith("Bad: ")


def test_a_file_builds_on_a_shipped_variant(tmp_path: Path) -> None:
    data = {"base": "json-args-object", "nonce": True, "blocks": {"guidance": ""}}
    variant = written(tmp_path / "v.yml", data)
    assert variant.nonce
    assert variant.wording.arguments == "object"
    assert variant.allows == {"arguments_coerced"}
    tags = variant.tags_for(QUESTION)
    text = SHIPPED["json-args-object"].text_for(QUESTION).split("\n\nPer-tool guidance")[0]
    assert variant.text_for(QUESTION) == text.replace("<tool_call>", tags.open).replace("</tool_call>", tags.close)


def test_a_file_may_show_arguments_as_objects(tmp_path: Path) -> None:
    variant = written(tmp_path / "v.yaml", {"arguments": "object"})
    assert variant.allows == {"arguments_coerced"}
    assert '"arguments":{' in variant.text_for(QUESTION)


FAULTS: list[tuple[Any, str]] = [
    ("[1, 2]", ":1: expected a variant: an object with name, base, blocks, instructions, tools and other keys"),
    ("", ":1: expected a variant: an object with name, base, blocks, instructions, tools and other keys"),
    ({"blocks": ["header"]}, ":1: blocks: expected an object of texts by name"),
    ("blocks: {header: [}", ":1:19: invalid YAML: "),
    ({"block": {"header": "x"}}, ":1: block: unknown key; did you mean blocks?"),
    ({"base": "nothing"}, ":1: base: expected spec, no-bad-example, short, json-args-object, nonce-tag or native"),
    ({"arguments": "xml"}, ":1: arguments: expected string or object"),
    ({"blocks": {"footer": "x"}}, "names no such block: footer"),
    ({"blocks": {"header": 5}}, ":2: blocks.header: expected text, or an object with file"),
    ({"blocks": {"header": {"file": "no-such.txt"}}}, "no-such.txt: "),
]


@pytest.mark.parametrize(("data", "message"), FAULTS, ids=[message for _, message in FAULTS])
def test_faults_of_a_variant_file_name_the_file(tmp_path: Path, data: Any, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    with pytest.raises(UsageError) as caught:
        written(path, data)
    assert str(path) in caught.value.message
    assert message in caught.value.message


def test_a_word_that_is_neither_a_variant_nor_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--variant shrot: choose spec, .*, native or a \.yaml file\."):
        find_variant("shrot")
    with pytest.raises(UsageError, match="No such file or directory"):
        find_variant(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(UsageError, match=r"latin\.yaml:1: not UTF-8"):
        find_variant(str(tmp_path / "latin.yaml"))
    (tmp_path / "torn.yaml").write_text("name: torn\nblocks: {header: [}")
    with pytest.raises(UsageError) as caught:
        find_variant(str(tmp_path / "torn.yaml"))
    assert caught.value.message.startswith(f"{tmp_path}/torn.yaml:2:19: invalid YAML: ")
    assert "\n" not in caught.value.message
