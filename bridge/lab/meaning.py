"""Whether the calls of an answer, and its text, are the right ones, whatever they look like. Pure.

Each check is passed, failed, or (None) without a matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bridge.lab.case import Case, ExpectedCall
from bridge.lab.form import read_arguments
from bridge.lab.match import OTHERS, count_pairs, holds_text, matches
from bridge.lab.sample import Called
from bridge.lab.suite.tools import required_names, takes
from bridge.tools.schema import compile_schema
from bridge.turn.items import FunctionTool

CHECKS = ("name", "schema", "required", "invented", "values", "count", "order", "choice", "unneeded", "text")
"""
name       only functions are called that are offered
schema     the arguments are what the function's schema asks for
required   no required argument is missing
invented   no argument is given that the schema does not have
values     the calls are among the right ones: another function, or other values, are not
count      as many calls as are due
order      in the right order
choice     `tool_choice` is obeyed
unneeded   nothing is called when nothing is due
text       the visible text says what it should
"""


def check_answer(case: Case, calls: Sequence[Called], visible: str) -> dict[str, bool | None]:
    """The outcome of each of CHECKS."""
    tools = {name: tool for tool in case.tools for name in (tool.name, tool.full_name)}
    known = [(tools[call.name], read_arguments(call)) for call in calls if call.name in tools]
    due = case.expect.calls
    right = count_pairs(due, calls, _is_right)
    return {
        "name": all(call.name in tools for call in calls) if calls else None,
        "schema": all(_fits(tool, arguments) for tool, arguments in known) if known else None,
        "required": all(_has_required(tool, arguments) for tool, arguments in known) if known else None,
        "invented": not any(_invents(tool, arguments) for tool, arguments in known) if known else None,
        "values": right == min(len(due), len(calls)) if due and calls else None,
        "count": len(calls) == len(due) if due else None,
        "order": _keeps_order(case, calls, right),
        "choice": _obeys(case, calls),
        "unneeded": not calls if not due else None,
        "text": _check_text(case, visible),
    }


def name_f1(due: Sequence[ExpectedCall], calls: Sequence[Called]) -> float:
    """How well the called names are those that are due, 0 to 1; order does not matter."""
    wanted, made = Counter(call.name for call in due), Counter(call.name for call in calls)
    if not wanted and not made:
        return 1.0
    return 2 * (wanted & made).total() / (wanted.total() + made.total())


def _is_right(want: ExpectedCall, call: Called) -> bool:
    arguments = read_arguments(call)
    if call.name != want.name or not isinstance(arguments, dict):
        return False
    rules = {**want.optional, **want.arguments}
    needed = want.arguments.keys() - {OTHERS}
    return needed <= arguments.keys() and all(
        (name in rules or OTHERS in rules) and matches(rules[name if name in rules else OTHERS], value)
        for name, value in arguments.items()
    )


def _keeps_order(case: Case, calls: Sequence[Called], right: int) -> bool | None:
    """None where there is no order to be kept, or not the calls to keep it."""
    due = case.expect.calls
    if case.expect.order != "exact" or len(due) < 2 or len(calls) != len(due):
        return None
    in_place = sum(map(_is_right, due, calls))
    return in_place == right and [call.name for call in calls] == [call.name for call in due]


def _obeys(case: Case, calls: Sequence[Called]) -> bool | None:
    mode, name = case.tool_choice.mode, case.tool_choice.name
    if mode == "none":
        return not calls
    if mode == "required":
        return bool(calls)
    if mode == "named":
        return bool(calls) and all(call.name == name for call in calls)
    return None


def _check_text(case: Case, visible: str) -> bool | None:
    expect = case.expect
    if not expect.contains and not expect.lacks:
        return None
    return all(holds_text(visible, text) for text in expect.contains) and not any(
        holds_text(visible, text) for text in expect.lacks
    )


def _fits(tool: FunctionTool, arguments: Any) -> bool:
    if not isinstance(arguments, dict):
        return False
    validates = compile_schema(tool.parameters) if tool.parameters is not None else None
    return validates is None or validates(arguments)


def _has_required(tool: FunctionTool, arguments: Any) -> bool:
    return isinstance(arguments, dict) and all(name in arguments for name in required_names(tool.parameters))


def _invents(tool: FunctionTool, arguments: Any) -> bool:
    """Whether there is an argument that the schema does not name, at its top."""
    return isinstance(arguments, dict) and not all(takes(tool.parameters, name) for name in arguments)
