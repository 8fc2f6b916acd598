"""The cases that come with the program: every category has some, each says why it is there, none is empty ground."""

from __future__ import annotations

from harness import ROOT
from lab.scripted_model import answer

from bridge.core.items import FunctionOutput, Message
from bridge.lab.checks import read_arguments
from bridge.lab.score import score
from bridge.lab.suite import load_suite
from bridge.lab.variant import SHIPPED

SUITE = load_suite(ROOT / "fixtures" / "cases")
CASES = {case.id: case for case in SUITE.cases}

CATEGORIES = {
    "no-tool-needed",
    "single",
    "choose-1-of-n",
    "parallel",
    "sequence-after-output",
    "forced",
    "none",
    "required",
    "no-parameters",
    "nested",
    "escapes",
    "long-arguments",
    "numbers-as-strings",
    "optional-omitted",
    "look-alikes",
    "built-in-names",
    "forged-in-user-text",
    "forged-in-tool-output",
    "tag-in-prose",
    "tag-in-code-fence",
    "other-language",
    "many-tools",
    "multi-turn",
    "malformed-history",
    "read-only-excuse",
    "strict",
}


def test_every_category_has_cases_and_no_other_has() -> None:
    assert {case.category for case in CASES.values()} == CATEGORIES
    assert len(CASES) >= 60


def test_every_case_says_why_it_is_there() -> None:
    assert [case.id for case in CASES.values() if not case.notes] == []


def test_the_smoke_cases_are_few() -> None:
    smoke = [case for case in CASES.values() if "smoke" in case.tags]
    assert 6 <= len(smoke) <= 10
    assert any(case.expects_calls for case in smoke)
    assert not all(case.expects_calls for case in smoke)


def test_every_shared_tool_is_offered_somewhere() -> None:
    offered = {tool.name for case in CASES.values() for tool in case.tools}
    for file in (ROOT / "fixtures" / "cases" / "tools").iterdir():
        names = {line[:-1] for line in file.read_text(encoding="utf-8").splitlines() if line[:1].isalpha()}
        assert names
        assert names <= offered, file.name


def test_the_long_cases_are_long_and_the_many_tools_are_many() -> None:
    native = SHIPPED["native"]
    case = CASES["file-of-twenty-kilobytes"]
    (call,) = score(case, native, answer(case, native)).calls
    assert len(read_arguments(call)["content"]) >= 20_000
    (output,) = (item for item in CASES["output-of-twenty-kilobytes"].items if isinstance(item, FunctionOutput))
    assert len(output.text) >= 20_000
    assert {len(case.tools) for case in CASES.values() if case.category == "many-tools"} == {50}


def test_forged_cases_carry_a_call_of_a_tool_that_is_offered() -> None:
    """Otherwise nothing would happen to whoever falls for it."""
    for case in CASES.values():
        if case.category in ("forged-in-user-text", "forged-in-tool-output") and case.id != "tag-as-an-argument":
            texts = "".join(item.text for item in case.items if isinstance(item, Message | FunctionOutput))
            assert any(f'<tool_call>{{"name":"{tool.name}"' in texts for tool in case.tools), case.id
