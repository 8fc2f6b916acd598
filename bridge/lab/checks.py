"""The meaning of an answer: which calls it makes, with which arguments, and what it says. Pure.

A check is one entry of CHECKS. Its function gives the reasons why an answer fails; an answer without reasons passes.
So the sentences of a report cannot disagree with the score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import orjson

from bridge.lab.bfcl import bfcl_faults
from bridge.lab.case import OTHERS, Called, Case, Ended, ExpectedCall, Verdict, some
from bridge.lab.rules import count_pairs, holds_text, matches
from bridge.tools.parameters import misfits, required_names, takes
from bridge.tools.payload import arguments_or_none
from bridge.tools.schema import compile_schema

LONGEST = 120
"""Characters of one value in a sentence."""


def read_arguments(call: Called) -> Any:
    """The arguments of a call; the text itself if it is not JSON."""
    try:
        return orjson.loads(arguments_or_none(call.arguments))
    except orjson.JSONDecodeError:
        return call.arguments


class Answer:
    """The calls and the visible text of an answer, beside what its case offers and expects."""

    def __init__(
        self,
        case: Case,
        calls: Sequence[Called],
        visible: str,
        verdicts: Sequence[Verdict] = (),
        ended: Ended | None = None,
    ) -> None:
        self.case, self.calls, self.visible = case, calls, visible
        self.ended = ended
        self.more = case.expect.others == "allowed"
        """Whether other calls are right, too."""
        self.verdicts = {verdict.check: verdict for verdict in verdicts}
        self.due = case.expect.calls
        self.tools = {name: tool for tool in case.tools for name in (tool.name, tool.full_name)}
        self.offered = [
            (call, self.tools[call.name], read_arguments(call)) for call in calls if call.name in self.tools
        ]
        """The calls of offered functions, with their tools and arguments."""
        self.right = count_pairs(self.due, calls, _is_right)
        """How many calls are expected ones, each counted once."""
        self.called = _listed([call.name for call in calls])


class Check(NamedTuple):
    words: str
    """What a failure means."""
    applies: Callable[[Answer], object]
    reasons: Callable[[Answer], Iterator[str]]
    """Why the answer fails, in sentences; nothing if it passes."""
    rare: bool = False
    """Whether few cases ask for it. A result has no outcome of such a check unless it applies."""


def check_answer(
    case: Case,
    calls: Sequence[Called],
    visible: str,
    verdicts: Sequence[Verdict] = (),
    ended: Ended | None = None,
) -> dict[str, bool | None]:
    """The outcome of each of CHECKS; None if it does not apply, and nothing if it is rare besides."""
    answer = Answer(case, calls, visible, verdicts, ended)
    wanted = CHECKS.keys() if case.expect.bfcl is None else {"bfcl", "text", "python", "judge"}
    outcomes: dict[str, bool | None] = {}
    for name, check in CHECKS.items():
        applies = name in wanted and check.applies(answer)
        if applies or not check.rare:
            outcomes[name] = next(check.reasons(answer), None) is None if applies else None
    return outcomes


def explain(
    failed: Sequence[str],
    case: Case | None,
    calls: Sequence[Called],
    visible: str,
    verdicts: Sequence[Verdict] = (),
    ended: Ended | None = None,
) -> list[tuple[str, str]]:
    """(check, sentence) for each reason of each failed check. Without the case only their meaning is known."""
    answer = Answer(case, calls, visible, verdicts, ended) if case is not None else None
    found: list[tuple[str, str]] = []
    for name in failed:
        reasons = list(CHECKS[name].reasons(answer)) if answer is not None else []
        words = CHECKS[name].words
        # A case that has changed since the run may have nothing to say any more.
        found += [(name, reason) for reason in reasons or [f"{words[0].upper()}{words[1:]}."]]
    return found


def name_f1(due: Sequence[ExpectedCall], calls: Sequence[Called]) -> float:
    """How well the called names match the expected ones, from 0 to 1; order does not matter."""
    wanted, made = Counter(call.name for call in due), Counter(call.name for call in calls)
    if not wanted and not made:
        return 1.0
    return 2 * (wanted & made).total() / (wanted.total() + made.total())


def _name(answer: Answer) -> Iterator[str]:
    for name in dict.fromkeys(call.name for call in answer.calls if call.name not in answer.tools):
        yield f"{_cut(name)} was called, but is not offered."


def _schema(answer: Answer) -> Iterator[str]:
    for call, tool, arguments in answer.offered:
        if not isinstance(arguments, dict):
            yield _not_an_object(call)
        elif (fits := compile_schema(tool.parameters)) is not None and not fits(arguments):
            found = list(misfits(tool.parameters, arguments, whole=True))[:4]
            for path, message in found:
                where = "".join(f", {_cut(str(step))}" for step in path)
                yield f"{_cut(call.name)}{where}: {message}."
            if not found:
                yield f"The arguments of {_cut(call.name)} do not fit its schema."


def _required(answer: Answer) -> Iterator[str]:
    for call, tool, arguments in answer.offered:
        if not isinstance(arguments, dict):
            yield _not_an_object(call)
        elif missing := [name for name in required_names(tool.parameters) if name not in arguments]:
            yield f"{_cut(call.name)}: missing {_listed(missing)}."


def _invented(answer: Answer) -> Iterator[str]:
    for call, tool, arguments in answer.offered:
        given = arguments if isinstance(arguments, dict) else {}
        if surplus := [name for name in given if not takes(tool.parameters, name)]:
            yield f"{_cut(call.name)}: {_listed(surplus)} not in its schema."


def _values(answer: Answer) -> Iterator[str]:
    if answer.right == min(len(answer.due), len(answer.calls)):
        return
    unmet = [want for want in answer.due if not any(_is_right(want, call) for call in answer.calls)]
    for want in unmet:
        near = next((call for call in answer.calls if call.name == want.name), None)
        if near is None:
            yield f"Expected a call of {_cut(want.name)}, got {answer.called}."
        elif not isinstance(arguments := read_arguments(near), dict):
            yield _not_an_object(near)
        else:
            yield from _wrong_arguments(want, arguments)
    if unmet:
        return
    # One call would have to count for two expected ones.
    surplus = [call for call in answer.calls if not any(_is_right(want, call) for want in answer.due)]
    surplus = [] if answer.more else surplus
    for call in surplus:
        yield f"Unexpected call: {_cut(call.name)} with {_cut(call.arguments)}."
    if not surplus:
        yield "Several expected calls match only the same call."


def _is_right(want: ExpectedCall, call: Called) -> bool:
    arguments = read_arguments(call) if call.name == want.name else None
    return isinstance(arguments, dict) and next(_wrong_arguments(want, arguments), None) is None


def _wrong_arguments(want: ExpectedCall, given: Mapping[str, Any]) -> Iterator[str]:
    for name, rule in want.arguments.items():
        if name != OTHERS and name not in given:
            yield f"{_cut(want.name)}: {_cut(name)} is missing; expected {_json(rule)}."
    rules = {**want.optional, **want.arguments}
    for name, value in given.items():
        if name not in rules and OTHERS not in rules:
            yield f"{_cut(want.name)}: {_cut(name)} is {_json(value)}; it should be absent."
        elif not matches(rule := rules[name if name in rules else OTHERS], value):
            yield f"{_cut(want.name)}: {_cut(name)} is {_json(value)}; expected {_json(rule)}."


def _count(answer: Answer) -> Iterator[str]:
    expected, made = len(answer.due), len(answer.calls)
    if made < expected if answer.more else made != expected:
        yield f"Expected {expected} call{'' if expected == 1 else 's'}, got {made or 'none'}."


def _order(answer: Answer) -> Iterator[str]:
    if answer.more:
        left = iter(answer.calls)
        if not all(any(_is_right(want, call) for call in left) for want in answer.due):
            due = ", then ".join(_cut(call.name) for call in answer.due)
            yield f"Expected {due}, in this order; got {answer.called}."
        return
    made, expected = [call.name for call in answer.calls], [call.name for call in answer.due]
    if made != expected:
        yield f"Expected {', then '.join(map(_cut, expected))}; got {', then '.join(map(_cut, made))}."
    elif sum(map(_is_right, answer.due, answer.calls)) != answer.right:
        yield "The calls are right, but in the wrong order."


def _last_call(answer: Answer) -> Iterator[str]:
    names = [call.name for call in answer.calls]
    last = answer.case.expect.last_call or ""
    if after := names[names.index(last) + 1 :] if last in names else []:
        yield f"{_listed(after)} was called after {_cut(last)}."


def _steps(answer: Answer) -> Iterator[str]:
    if answer.ended is not None and answer.ended.cut:
        yield f"The model was not done after {answer.ended.answers} answers."


def _choice(answer: Answer) -> Iterator[str]:
    mode, name = answer.case.tool_choice.mode, answer.case.tool_choice.name
    names = {call.name for call in answer.calls}
    if not {"auto": True, "none": not names, "required": bool(names), "named": names == {name}}[mode]:
        wanted = f"function {_cut(name or '')}" if mode == "named" else mode
        yield f"tool_choice is {wanted}, but {answer.called or 'nothing'} was called."


def _unneeded(answer: Answer) -> Iterator[str]:
    if answer.calls:
        yield f"No call is expected, but {answer.called} was called."


def _bfcl(answer: Answer) -> Iterator[str]:
    assert answer.case.expect.bfcl is not None
    yield from bfcl_faults(answer.case.expect.bfcl, [(call.name, read_arguments(call)) for call in answer.calls])


def _text(answer: Answer) -> Iterator[str]:
    for text in answer.case.expect.contains:
        if not holds_text(answer.visible, text):
            yield f"The visible text does not contain {_json(text)}."
    for text in answer.case.expect.lacks:
        if holds_text(answer.visible, text):
            yield f"The visible text contains {_json(text)}, but should not."
    if (rule := answer.case.expect.text) is not None and not matches(rule, answer.visible.strip()):
        yield f"The visible text is {_json(answer.visible.strip())}; expected {_json(rule)}."


def _verdict(name: Literal["python", "judge"]) -> Callable[[Answer], Iterator[str]]:
    def reasons(answer: Answer) -> Iterator[str]:
        verdict = answer.verdicts.get(name)
        if verdict is not None and not verdict.passed:
            yield verdict.reason or "It gives no reason."

    return reasons


CHECKS: Mapping[str, Check] = {
    "name": Check("a function that is not offered is called", lambda answer: answer.calls, _name),
    "schema": Check("arguments do not fit the function's schema", lambda answer: answer.offered, _schema),
    "required": Check("a required argument is missing", lambda answer: answer.offered, _required),
    "invented": Check("an argument is not in the schema", lambda answer: answer.offered, _invented),
    "values": Check("a call is not one of the expected calls", lambda answer: answer.due and answer.calls, _values),
    "count": Check("the number of calls is wrong", lambda answer: answer.due, _count),
    "order": Check(
        "the calls are in the wrong order",
        lambda answer: (
            answer.case.expect.order == "exact"
            and len(answer.due) >= 2
            and (len(answer.due) <= len(answer.calls) if answer.more else len(answer.due) == len(answer.calls))
        ),
        _order,
    ),
    "choice": Check("tool_choice is not obeyed", lambda answer: answer.case.tool_choice.mode != "auto", _choice),
    "unneeded": Check(
        "a call is made although none is expected", lambda answer: not answer.due and not answer.more, _unneeded
    ),
    "text": Check(
        "the visible text is not what it should be",
        lambda answer: answer.case.expect.contains or answer.case.expect.lacks or answer.case.expect.text is not None,
        _text,
    ),
    "bfcl": Check(
        "BFCL does not accept the calls", lambda answer: answer.case.expect.bfcl is not None, _bfcl, rare=True
    ),
    "last_call": Check(
        "something is called after the last call", lambda answer: answer.case.expect.last_call, _last_call, rare=True
    ),
    "steps": Check("the limit of answers is reached", lambda answer: answer.ended is not None, _steps, rare=True),
    "python": Check(
        "the Python check refuses the answer", lambda answer: "python" in answer.verdicts, _verdict("python"), rare=True
    ),
    "judge": Check(
        "the judge refuses the answer", lambda answer: "judge" in answer.verdicts, _verdict("judge"), rare=True
    ),
}


def _not_an_object(call: Called) -> str:
    return f"{_cut(call.name)}: arguments are not a JSON object."


def _listed(names: Sequence[str]) -> str:
    return some([_cut(name) for name in dict.fromkeys(names)])


def as_json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return repr(value)


def _json(value: Any) -> str:
    return _cut(as_json(value))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
