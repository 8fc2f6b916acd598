"""Why a check failed, in words, from the case and the calls that were made. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from bridge.lab.case import Case, Expect, ExpectedCall
from bridge.lab.form import read_arguments
from bridge.lab.match import OTHERS, holds_text, matches
from bridge.lab.meaning import check_answer
from bridge.lab.report.words import CHECK_WORDS
from bridge.lab.result import Result
from bridge.lab.sample import Called
from bridge.lab.suite.tools import misfits, required_names, takes
from bridge.turn.items import FunctionTool

LONGEST = 120
"""Characters of one value in a sentence."""


def explain(result: Result, case: Case | None, visible: str) -> list[tuple[str, str]]:
    """(check, sentence) for each reason that a check failed for; `visible` is the text that is no call.

    Without its case only the check's own words are known.
    """
    told: list[tuple[str, str]] = []
    for check in result.failed_checks:
        reasons = list(_REASONS[check](result.calls, case, visible)) if case is not None and check in _REASONS else []
        told += [(check, reason) for reason in reasons or [_sentence(CHECK_WORDS.get(check, check))]]
    return told


def _name(calls: Sequence[Called], case: Case, _: str) -> Iterator[str]:
    offered = _tools(case)
    for name in dict.fromkeys(call.name for call in calls if call.name not in offered):
        yield f"{_cut(name)} is called, but not offered."


def _schema(calls: Sequence[Called], case: Case, _: str) -> Iterator[str]:
    for call in _failing("schema", calls, case):
        if not isinstance(read_arguments(call), dict):
            yield _no_object(call)
            continue
        given = _arguments(call)
        found = list(misfits(_tools(case)[call.name].parameters, given, whole=True))[:4]
        for place, said in found:
            where = "".join(f", {_cut(str(step))}" for step in place)
            yield f"{_cut(call.name)}{where}: {said}."
        if not found:
            yield f"The arguments of {_cut(call.name)} are not what its schema asks for."


def _required(calls: Sequence[Called], case: Case, _: str) -> Iterator[str]:
    for call in _failing("required", calls, case):
        if not isinstance(read_arguments(call), dict):
            yield _no_object(call)
            continue
        given = _arguments(call)
        missing = [name for name in required_names(_tools(case)[call.name].parameters) if name not in given]
        yield f"{_cut(call.name)} lacks {_listed(missing) or 'a required argument'}."


def _invented(calls: Sequence[Called], case: Case, _: str) -> Iterator[str]:
    for call in _failing("invented", calls, case):
        tool = _tools(case)[call.name]
        surplus = [name for name in _arguments(call) if not takes(tool.parameters, name)]
        yield f"{_cut(call.name)} is given {_listed(surplus)}, which its schema does not have."


def _values(calls: Sequence[Called], case: Case, _: str) -> Iterator[str]:
    all_met = True
    for want in case.expect.calls:
        near = [call for call in calls if call.name == want.name]
        if any(_is_right(want, call, case) for call in near):
            continue
        all_met = False
        if not near:
            yield f"{_cut(want.name)} is due, but {_listed([call.name for call in calls])} is called."
        elif not isinstance(read_arguments(near[0]), dict):
            yield _no_object(near[0])
        else:
            yield from _wrong_arguments(want, _arguments(near[0]))
    if all_met:
        # One call would have to stand for two that are due; the others are none of them.
        for call in calls:
            if not any(_is_right(want, call, case) for want in case.expect.calls):
                yield f"{_cut(call.name)} with {_cut(call.arguments)} is none of the calls that are due."


def _wrong_arguments(want: ExpectedCall, given: Mapping[str, Any]) -> Iterator[str]:
    for name, rule in want.arguments.items():
        if name != OTHERS and name not in given:
            yield f"{_cut(want.name)}: {_cut(name)} is missing; right is {_json(rule)}."
    rules = {**want.optional, **want.arguments}
    for name, value in given.items():
        rule = rules.get(name, rules.get(OTHERS, rules))
        if rule is rules:
            yield f"{_cut(want.name)}: {_cut(name)} is {_json(value)}; it should not be given."
        elif not matches(rule, value):
            yield f"{_cut(want.name)}: {_cut(name)} is {_json(value)}; right is {_json(rule)}."


def _count(calls: Sequence[Called], case: Case, _: str) -> Iterator[str]:
    due = len(case.expect.calls)
    made = "Nothing is called" if not calls else "1 call is made" if len(calls) == 1 else f"{len(calls)} calls are made"
    yield f"{made}; {'1 is' if due == 1 else f'{due} are'} due."


def _order(calls: Sequence[Called], case: Case, _: str) -> Iterator[str]:
    made, due = [call.name for call in calls], [call.name for call in case.expect.calls]
    if made == due:
        yield "The calls are right, but each stands in another's place."
    else:
        yield f"Called are {', then '.join(map(_cut, made))}; due are {', then '.join(map(_cut, due))}."


def _choice(calls: Sequence[Called], case: Case, _: str) -> Iterator[str]:
    choice = case.tool_choice
    wanted = f"function {_cut(choice.name or '')}" if choice.mode == "named" else choice.mode
    yield f"tool_choice is {wanted}, but {_listed([call.name for call in calls]) or 'nothing'} is called."


def _unneeded(calls: Sequence[Called], _: Case, __: str) -> Iterator[str]:
    yield f"Nothing is due, but {_listed([call.name for call in calls])} is called."


def _text(_: Sequence[Called], case: Case, visible: str) -> Iterator[str]:
    for text in case.expect.contains:
        if not holds_text(visible, text):
            yield f"The visible text lacks {_json(text)}."
    for text in case.expect.lacks:
        if holds_text(visible, text):
            yield f"The visible text holds {_json(text)}, which it should not."


_REASONS = {
    "name": _name,
    "schema": _schema,
    "required": _required,
    "invented": _invented,
    "values": _values,
    "count": _count,
    "order": _order,
    "choice": _choice,
    "unneeded": _unneeded,
    "text": _text,
}


def _failing(check: str, calls: Sequence[Called], case: Case) -> Iterator[Called]:
    """The calls that fail a check by themselves."""
    return (call for call in calls if call.name in _tools(case) and check_answer(case, [call], "")[check] is False)


def _is_right(want: ExpectedCall, call: Called, case: Case) -> bool:
    return check_answer(replace(case, expect=Expect((want,))), [call], "")["values"] is True


def _tools(case: Case) -> dict[str, FunctionTool]:
    return {name: tool for tool in case.tools for name in (tool.name, tool.full_name)}


def _no_object(call: Called) -> str:
    return f"{_cut(call.name)}: its arguments are no JSON object."


def _arguments(call: Called) -> Mapping[str, Any]:
    given = read_arguments(call)
    return given if isinstance(given, dict) else {}


def _listed(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    return ", ".join(map(_cut, different[:6])) + (" and more" if len(different) > 6 else "")


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _json(value: Any) -> str:
    try:
        return _cut(orjson.dumps(value).decode())
    except TypeError:
        return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
