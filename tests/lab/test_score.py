"""Scores: right answers pass in every variant, and each way of being wrong gets its hand-written verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from harness import ROOT
from lab.scripted_model import MANNERS, NotPossible, answer

from bridge.core.events import Finished, TextDelta, ToolCall
from bridge.core.items import FunctionTool, Message, Text
from bridge.core.turn import Turn
from bridge.lab.case import Called, Case, Expect, ExpectedCall, Sample
from bridge.lab.checks import CHECKS
from bridge.lab.score import FORMS, Form, Score, score
from bridge.lab.suite import load_suite
from bridge.lab.variant import SHIPPED, LabVariant
from bridge.tools.stage import ToolStage

CASES = {case.id: case for case in load_suite(ROOT / "fixtures" / "cases").cases}
SPEC, NATIVE = SHIPPED["spec"], SHIPPED["native"]


REPAIRS = {
    *("trailing_comma", "code_fence", "surplus_suffix", "array_unwrapped", "array_split", "arguments_coerced"),
    *("unclosed", "repeated_closing_tag"),
    *("arguments_missing", "arguments_quoted", "surplus_members"),
}
"""What the parser mends, in a block and around one, and what it overlooks."""
UNFIT = ("schema_violation", "missing_required", "invented_key", "wrong_value", "arguments_no_json")
"""Manners whose arguments may not fit the schema: of a strict tool the bridge makes no call."""
REASONS = {"bad_json", "not_an_object", "no_name", "bad_arguments"}


class Verdict(NamedTuple):
    """What an answer is worth."""

    form: Form
    failed: tuple[str, ...] = ()
    """The checks that fail."""
    repairs: tuple[str, ...] = ()
    rejections: tuple[str, ...] = ()


def verdict_on(result: Score) -> Verdict:
    """A score, as it is written by hand."""
    failed = tuple(name for name in CHECKS if result.checks.get(name) is False)
    return Verdict(result.form, failed, result.repairs, result.rejections)


def repaired(*repairs: str) -> Verdict:
    return Verdict("repaired", repairs=repairs)


def broken(reason: str, *failed: str) -> Verdict:
    return Verdict("broken", failed, rejections=(reason,))


BERN = "weather-in-bern"
TWO = "weather-in-two-cities"

VERDICTS: list[tuple[str, str, str, Verdict]] = [
    # manner, case, variant, verdict
    ("right", BERN, "spec", Verdict("clean")),
    ("right", "capital-of-france", "spec", Verdict("absent")),
    ("right", "folder-before-file", "spec", Verdict("clean")),
    ("right", "forced-although-text-would-do", "spec", Verdict("clean")),
    # what is mended
    ("trailing_comma", BERN, "spec", repaired("trailing_comma")),
    ("trailing_comma", BERN, "nonce-tag", repaired("trailing_comma")),
    ("code_fence", BERN, "spec", repaired("code_fence")),
    ("code_fence", BERN, "json-args-object", repaired("code_fence")),
    ("surplus_suffix", BERN, "spec", repaired("surplus_suffix")),
    ("array_unwrapped", BERN, "spec", repaired("array_unwrapped")),
    ("array_split", TWO, "spec", repaired("array_split")),
    ("arguments_as_object", BERN, "spec", repaired("arguments_coerced")),
    ("arguments_as_object", BERN, "json-args-object", Verdict("clean")),
    ("arguments_as_text", BERN, "spec", Verdict("clean")),
    ("arguments_as_text", BERN, "json-args-object", repaired("arguments_quoted")),
    ("arguments_missing", "status-of-the-server", "spec", repaired("arguments_missing")),
    ("surplus_members", BERN, "spec", repaired("surplus_members")),
    ("unclosed", BERN, "spec", repaired("unclosed")),
    ("unclosed", TWO, "spec", repaired("unclosed")),
    ("unclosed", TWO, "nonce-tag", repaired("unclosed")),
    ("repeated_closing_tag", BERN, "spec", repaired("repeated_closing_tag")),
    # what stands around a block
    ("bracket_behind", BERN, "spec", repaired("surplus_suffix")),
    ("bracket_behind", TWO, "nonce-tag", repaired("surplus_suffix")),
    ("bracket_on_a_line", BERN, "spec", repaired("surplus_suffix")),
    ("brackets_around", BERN, "spec", repaired("surplus_suffix")),
    ("brackets_around", TWO, "spec", repaired("surplus_suffix")),
    ("brackets_on_lines", BERN, "spec", repaired("surplus_suffix")),
    ("fence_around", BERN, "spec", repaired("code_fence")),
    ("fence_around", TWO, "json-args-object", repaired("code_fence")),
    ("fence_around_brackets", BERN, "spec", repaired("code_fence", "surplus_suffix")),
    ("fence_around_all", BERN, "spec", repaired("code_fence")),
    ("fence_around_all", TWO, "spec", repaired("code_fence")),
    ("fence_behind", BERN, "spec", repaired("code_fence")),
    ("backticks_around", BERN, "spec", repaired("code_fence")),
    ("in_prose", BERN, "spec", Verdict("clean")),
    ("in_prose", TWO, "json-args-object", Verdict("clean")),
    # what cannot be
    ("bad_json", BERN, "spec", broken("bad_json", "count")),
    ("bad_json", TWO, "spec", broken("bad_json", "count")),
    ("bad_json", "required-with-a-hint", "spec", broken("bad_json", "count", "choice")),
    ("bare_newline", BERN, "spec", broken("bad_json", "count")),
    ("not_an_object", BERN, "spec", broken("not_an_object", "count")),
    ("no_name", BERN, "spec", broken("no_name", "count")),
    ("bad_arguments", BERN, "spec", broken("bad_arguments", "count")),
    ("arguments_no_json", BERN, "spec", broken("bad_arguments", "schema", "required", "values")),
    ("as_code", BERN, "spec", broken("bad_json", "count")),
    ("as_code", TWO, "nonce-tag", broken("bad_json", "count")),
    ("as_code_on_a_line", BERN, "spec", broken("bad_json", "count")),
    ("as_text", BERN, "spec", broken("bad_json", "count")),
    # tags where no call is
    ("tags_in_prose", BERN, "spec", Verdict("leaked")),
    ("tags_in_prose", "tag-explained", "spec", Verdict("absent")),
    ("stray_closing_tag", BERN, "spec", Verdict("leaked")),
    ("stray_closing_tag", BERN, "native", Verdict("leaked")),
    ("stray_closing_tag", "capital-of-france", "spec", Verdict("leaked")),
    ("stray_closing_tag", "nothing-is-offered", "spec", Verdict("leaked")),
    ("stray_closing_tag", "tag-explained", "spec", Verdict("absent")),
    ("stray_opening_tag", BERN, "spec", Verdict("leaked")),
    ("stray_opening_tag", BERN, "nonce-tag", Verdict("leaked")),
    ("stray_opening_tag", "forged-beside-a-real-question", "spec", Verdict("clean")),
    ("old_tag", BERN, "nonce-tag", Verdict("leaked", ("count",))),
    # what is well written and wrong
    ("absent_when_due", BERN, "spec", Verdict("absent", ("count",))),
    ("absent_when_due", BERN, "native", Verdict("absent", ("count",))),
    ("absent_when_due", "required-with-one-tool", "spec", Verdict("absent", ("count", "choice"))),
    ("absent_when_due", "forced-although-text-would-do", "spec", Verdict("absent", ("count", "choice"))),
    ("wrong_name", "user-by-email", "spec", Verdict("clean", ("values",))),
    ("wrong_name", "forced-although-another-fits-better", "spec", Verdict("clean", ("values", "choice"))),
    ("wrong_name", "forced-although-another-fits-better", "native", Verdict("clean", ("values", "choice"))),
    ("unknown_name", BERN, "spec", Verdict("clean", ("name", "values"))),
    ("unknown_name", BERN, "native", Verdict("clean", ("name", "values"))),
    ("unknown_name", TWO, "nonce-tag", Verdict("clean", ("name", "values"))),
    ("unknown_name_unclosed", BERN, "spec", Verdict("repaired", ("name", "values"), ("unclosed",))),
    # Only a call of a known function ends where the next one begins, so the right one behind it is lost as well.
    ("unknown_name_unclosed", TWO, "spec", broken("bad_json", "count")),
    ("schema_violation", BERN, "spec", Verdict("clean", ("schema", "values"))),
    ("schema_violation", "highest-of-an-enum", "json-args-object", Verdict("clean", ("schema", "values"))),
    ("missing_required", BERN, "spec", Verdict("clean", ("schema", "required", "values"))),
    ("missing_required", "order-with-address-and-items", "native", Verdict("clean", ("schema", "required", "values"))),
    ("invented_key", BERN, "spec", Verdict("clean", ("schema", "invented", "values"))),
    ("invented_key", "no-schema-at-all", "spec", Verdict("clean", ("invented", "values"))),
    ("wrong_value", BERN, "spec", Verdict("clean", ("values",))),
    ("wrong_value", "folder-before-file", "spec", Verdict("clean", ("values",))),
    ("other_letters", "file-of-twenty-kilobytes", "spec", Verdict("clean", ("values",))),
    ("other_letters", "client-has-a-shell", "native", Verdict("clean", ("values",))),
    ("one_too_many", BERN, "spec", Verdict("clean", ("count",))),
    ("one_too_many", "one-call-only", "spec", Verdict("clean", ("count",))),
    ("one_too_few", TWO, "spec", Verdict("clean", ("count",))),
    ("one_too_few", "folder-before-file", "native", Verdict("clean", ("count",))),
    ("wrong_order", "folder-before-file", "spec", Verdict("clean", ("order",))),
    ("called_when_not_due", "capital-of-france", "spec", Verdict("clean", ("unneeded",))),
    ("called_when_not_due", "forged-in-a-quoted-mail", "spec", Verdict("clean", ("unneeded",))),
    ("called_when_not_due", "none-although-useful", "spec", Verdict("clean", ("choice", "unneeded"))),
    ("called_when_not_due", "none-although-useful", "native", Verdict("clean", ("choice", "unneeded"))),
    ("text_missing", "answer-from-the-output", "spec", Verdict("absent", ("text",))),
    ("text_missing", "answer-from-the-output", "native", Verdict("absent", ("text",))),
]

SAMPLES = [(case, variant, answer(CASES[case], SHIPPED[variant], manner)) for manner, case, variant, _ in VERDICTS]
SCORES = [score(CASES[case], SHIPPED[variant], sample) for case, variant, sample in SAMPLES]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("variant", SHIPPED.values(), ids=SHIPPED)
def test_the_right_answer_passes(case: Case, variant: LabVariant) -> None:
    result = score(case, variant, answer(case, variant))
    assert verdict_on(result) == Verdict("clean" if case.expects_calls else "absent")
    assert result.passed
    assert result.f1 == 1


@pytest.mark.parametrize(
    ("row", "result"), list(zip(VERDICTS, SCORES, strict=True)), ids=[" ".join(row[:3]) for row in VERDICTS]
)
def test_each_manner_gets_its_verdict(row: tuple[str, str, str, Verdict], result: Score) -> None:
    assert verdict_on(result) == row[3]
    assert result.passed == (not row[3].failed and row[3].form not in ("broken", "leaked"))


def test_every_manner_form_repair_and_check_is_among_the_verdicts() -> None:
    assert {row[0] for row in VERDICTS} == MANNERS.keys()
    assert {result.form for result in SCORES} == set(FORMS)
    assert {repair for result in SCORES for repair in result.repairs} == REPAIRS
    assert {reason for result in SCORES for reason in result.rejections} == REASONS
    outcomes = {(name, outcome) for result in SCORES for name, outcome in result.checks.items()}
    assert outcomes == {(name, outcome) for name in CHECKS if not CHECKS[name].rare for outcome in (True, False, None)}


@pytest.mark.parametrize("manner", MANNERS)
def test_no_wrong_answer_passes_on_any_case(manner: str) -> None:
    """Whatever the case: only repairs pass, and tags where the talk is of them. What cannot be done is left out."""
    harmless = {row[0] for row, result in zip(VERDICTS, SCORES, strict=True) if result.passed}
    tried = 0
    for case in CASES.values():
        for variant in SHIPPED.values():
            try:
                sample = answer(case, variant, manner)
            except NotPossible:
                continue
            tried += 1
            if manner not in harmless and not (manner == "wrong_value" and _takes_any_text(case)):
                assert not score(case, variant, sample).passed, (case.id, variant.name)
    assert tried


@pytest.mark.parametrize("manner", MANNERS)
def test_the_calls_of_a_score_are_those_that_a_client_would_get(manner: str) -> None:
    """The bridge, reading the same text, hands out the same calls, but for unknown functions and unfit strict calls."""
    for case in CASES.values():
        try:
            sample = answer(case, SPEC, manner)
        except NotPossible:
            continue
        strict = any(tool.strict for tool in case.tools)
        if not sample.texts or (strict and manner in UNFIT):
            continue
        turn = Turn("m", "m", case.items, tools=case.tools, tool_choice=case.tool_choice)
        events = ToolStage(turn, lambda prefix: prefix).feed([TextDelta("1", [sample.texts[0]]), Finished("completed")])
        handed_out = [Called(event.name, event.arguments) for event in events if isinstance(event, ToolCall)]
        offered = {tool.name for tool in case.tools}
        assert handed_out == [call for call in score(case, SPEC, sample).calls if call.name in offered], case.id


def _takes_any_text(case: Case) -> bool:
    return any({"$type": "string"} in call.arguments.values() for call in case.expect.calls)


# One by one

QUERY = {"type": "object", "properties": {"q": {"type": "integer"}, "page": {"type": "integer"}}, "required": ["q"]}


def make_case(*calls: ExpectedCall, order: Any = "any", leak: Any = "forbidden", parameters: Any = None) -> Case:
    tools = (FunctionTool("find", "Find.", parameters), FunctionTool("open", "Open."))
    return Case("made", "made", (Message("user", (Text("?"),)),), Expect(calls, order=order, leak=leak), tools)


def natively(*calls: tuple[str, str]) -> Sample:
    return Sample(calls=tuple(Called(*call) for call in calls))


def failed(case: Case, sample: Sample, variant: LabVariant = NATIVE) -> tuple[str, ...]:
    return verdict_on(score(case, variant, sample)).failed


def test_a_call_of_an_unknown_function_is_not_visible_text() -> None:
    text = 'So: <tool_call>{"name":"seek","arguments":"{}"}</tool_call> That was it.'
    result = score(make_case(ExpectedCall("find")), SPEC, Sample((text,)))
    assert result.form == "clean"
    assert result.calls == (Called("seek", "{}"),)
    assert result.visible == "So:  That was it."


def test_in_a_conversation_about_tags_an_unknown_function_is_an_example() -> None:
    """It stays in the text, as it does for a client. One that is offered would be run, so it is a call."""
    text = 'Like this: <tool_call>{"name":"%s","arguments":"{}"}</tool_call>'
    case = make_case(leak="allowed")
    example = score(case, SPEC, Sample((text % "my_function",)))
    assert example.passed
    assert example.form == "absent"
    assert "my_function" in example.visible
    assert verdict_on(score(case, SPEC, Sample((text % "find",)))) == Verdict("clean", ("unneeded",))


def test_several_messages_are_one_answer() -> None:
    block = '<tool_call>{"name":"find","arguments":"{}"}</tool_call>'
    case = make_case(ExpectedCall("find"), ExpectedCall("find"))
    case = replace(case, expect=replace(case.expect, contains=("first", "second"), lacks=("third",)))
    assert score(case, SPEC, Sample((f"First {block}", f"second {block}"))).passed
    assert failed(case, Sample((f"First {block}", f"second third {block}")), SPEC) == ("text",)


def test_native_arguments_that_are_not_an_object_are_broken() -> None:
    case = make_case(ExpectedCall("find"))
    for arguments in "[1]", '"x"', "{", "null":
        assert verdict_on(score(case, NATIVE, natively(("find", arguments)))).rejections == ("bad_arguments",)
    assert score(case, NATIVE, natively(("find", ""))).passed  # a client gets {}


def test_calls_are_paired_in_the_best_way() -> None:
    """The first call fits both that are due, the second only one of them."""
    case = make_case(ExpectedCall("find", {"q": {"$any": [1, 2]}}), ExpectedCall("find", {"q": 1}), parameters=QUERY)
    assert failed(case, natively(("find", '{"q":1}'), ("find", '{"q":2}'))) == ()
    assert failed(case, natively(("find", '{"q":2}'), ("find", '{"q":2}'))) == ("values",)


def test_order_is_kept_by_values_where_the_names_are_the_same() -> None:
    case = make_case(ExpectedCall("find", {"q": 1}), ExpectedCall("find", {"q": 2}), order="exact", parameters=QUERY)
    assert failed(case, natively(("find", '{"q":1}'), ("find", '{"q":2}'))) == ()
    assert failed(case, natively(("find", '{"q":2}'), ("find", '{"q":1}'))) == ("order",)
    assert failed(case, natively(("find", '{"q":1}'), ("find", '{"q":3}'))) == ("values",)


def test_other_arguments_are_wrong_unless_the_star_takes_them() -> None:
    given = natively(("find", '{"q":1,"page":2}'))
    assert failed(make_case(ExpectedCall("find", {"q": 1}), parameters=QUERY), given) == ("values",)
    for rule, outcome in (({"$type": "integer"}, ()), ({"$type": "string"}, ("values",))):
        assert failed(make_case(ExpectedCall("find", {"q": 1, "*": rule}), parameters=QUERY), given) == outcome
        assert failed(make_case(ExpectedCall("find", {"q": 1}, {"*": rule}), parameters=QUERY), given) == outcome
    left_out = natively(("find", '{"q":1}'))
    assert failed(make_case(ExpectedCall("find", {"q": 1, "*": 5}), parameters=QUERY), left_out) == ()
    assert failed(make_case(ExpectedCall("find", {"q": 1}, {"page": 2}), parameters=QUERY), left_out) == ()
    assert failed(make_case(ExpectedCall("find", {"q": 1}, {"page": 2}), parameters=QUERY), given) == ()


def test_arguments_that_a_schema_names_in_a_branch_are_not_invented() -> None:
    branches = {"type": "object", "anyOf": [{"properties": {"q": {}}}, {"$ref": "#/$defs/page"}]}
    parameters = branches | {"$defs": {"page": {"properties": {"page": {"type": "integer"}}}}}
    case = make_case(ExpectedCall("find", {"*": {"$anything": True}}), parameters=parameters)
    assert failed(case, natively(("find", '{"q":1,"page":2}'))) == ()
    assert failed(case, natively(("find", '{"size":1}'))) == ("invented",)


def test_f1_is_about_names_alone() -> None:
    case = make_case(ExpectedCall("find", {"q": 1}), ExpectedCall("open"))
    outcomes = {("find", "open"): 1.0, ("open", "find"): 1.0, ("find",): 2 / 3, ("find", "find"): 0.5, (): 0.0}
    for names, f1 in outcomes.items():
        assert score(case, NATIVE, natively(*((name, "{}") for name in names))).f1 == pytest.approx(f1)
