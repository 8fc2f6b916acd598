"""What scores mean, in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bridge.lab.report.summary import Row
from bridge.lab.table import Count

FORM_WORDS: Mapping[str, str] = {
    "clean": "every call exactly as the format asks",
    "repaired": "calls that had to be mended",
    "broken": "a block that is no call, however it is mended",
    "leaked": "tags in the visible text",
    "absent": "no call at all",
}

CHECK_WORDS: Mapping[str, str] = {
    "name": "a function is called that is not offered",
    "schema": "arguments are not what the function's schema asks for",
    "required": "a required argument is missing",
    "invented": "an argument is given that the schema does not have",
    "values": "arguments are not the right ones",
    "count": "there are not as many calls as are due",
    "order": "the calls are not in the right order",
    "choice": "tool_choice is not obeyed",
    "unneeded": "something is called although nothing is due",
    "text": "the visible text does not say what it should",
}

REPAIR_WORDS: Mapping[str, str] = {
    "trailing_comma": "a comma before a closing bracket was taken out",
    "code_fence": "a code fence stands around the call",
    "surplus_suffix": "surplus brackets stand behind or around the call",
    "array_unwrapped": "a call came wrapped in a list",
    "array_split": "several calls came in one list",
    "arguments_coerced": "arguments came as an object, not as a string",
    "unclosed": "the closing tag is missing",
    "damaged_json": "the call is damaged behind the beginning of its arguments",
    "repeated_closing_tag": "the closing tag came again",
    "arguments_missing": "there are no arguments, not even empty ones",
    "arguments_quoted": "arguments came as a string, not as an object",
    "surplus_members": "there are more members than name and arguments",
}

REJECTION_WORDS: Mapping[str, str] = {
    "bad_json": "not JSON",
    "not_an_object": "not an object",
    "no_name": "without a name",
    "bad_arguments": "arguments that are neither text nor object",
    "unknown_tool": "a function that is not offered",
    "schema_mismatch": "arguments that its schema does not take",
}

MARKS: Mapping[str, str] = {
    "r": "repaired",
    "b": "broken",
    "l": "leaked",
    "a": "no call though one is due",
    "e": "errors, not counted",
}


def marks_of(count: Count, row: Row) -> dict[str, int]:
    """What is odd about the form of a cell, by letter: see `MARKS`."""
    found = {
        "r": count.forms["repaired"],
        "b": count.forms["broken"],
        "l": count.forms["leaked"],
        "a": count.forms["absent"] if row.due else 0,
        "e": count.errors,
    }
    return {letter: number for letter, number in found.items() if number}


def what_is_wrong(count: Count) -> list[str]:
    """Everything that kept a cell from passing, in words, the commonest first."""
    wrong = Counter({name: count.forms[name] for name in ("broken", "leaked") if count.forms[name]})
    wrong.update(count.failed_checks)
    told = []
    for name, number in sorted(wrong.items(), key=lambda entry: -entry[1]):
        words = FORM_WORDS.get(name) or CHECK_WORDS.get(name, name)
        told.append(f"{name}: {words} ({number} of {count.scored})")
    return told


def percent(rate: float | None) -> str:
    """A rate as whole percent; one that is not quite all, or not quite nothing, is not rounded to it."""
    if rate is None:
        return "–"
    shown = round(rate * 100)
    if shown == 100 and rate < 1:
        shown = 99
    if shown == 0 and rate > 0:
        shown = 1
    return f"{shown} %"


def interval(bounds: tuple[float, float]) -> str:
    """An interval of a rate, in percent."""
    return f"{round(bounds[0] * 100)}–{round(bounds[1] * 100)} %"


def ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by name, the largest first, names in order among equals."""
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))
