"""Whether BFCL would accept an answer: the rules of its checker for one turn in Python, on JSON values. Pure.

BFCL (the Berkeley Function-Calling Leaderboard) lists possible values for each argument. Its checker is laxer than ours
in some ways (spaces, case and some punctuation of texts do not count; `""` among the values means that the argument may
be absent) and stricter in others (the type comes before the value). It is rewritten here after
`bfcl_eval/eval_checker/ast_eval/ast_checker.py` (Apache License 2.0), because results should stand beside published
ones; `scripts/bfcl --check` compares the two. Where that checker raises an exception, the answer is not accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["simple", "multiple", "parallel", "irrelevance", "relevance"]

_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_NOT_COUNTED = re.compile(r"[ ,./\-_*^]")


@dataclass(frozen=True, slots=True)
class PossibleCall:
    """A call that is accepted: its function as BFCL describes it, and the possible values of each argument."""

    name: str
    values: Mapping[str, Any]
    types: Mapping[str, Any]
    """The type of each parameter; of arrays and tuples a list of it and the type of their items."""
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BfclExpect:
    """What BFCL expects. Irrelevance and relevance ask only whether anything is called."""

    kind: Kind
    calls: tuple[PossibleCall, ...] = ()

    @property
    def expects_calls(self) -> bool:
        return self.kind != "irrelevance"


def bfcl_faults(expect: BfclExpect, calls: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """Why BFCL refuses these calls, each a name and its arguments; nothing if it accepts them."""
    if expect.kind == "irrelevance":
        if calls:
            yield f"BFCL expects no call, but {len(calls)} were made."
        return
    if not calls:
        yield "BFCL expects a call, but none was made."
        return
    if any(not isinstance(arguments, dict) for _, arguments in calls):
        yield "The arguments of a call are not a JSON object."
        return
    if expect.kind == "relevance":
        return
    if len(calls) != len(expect.calls):
        yield f"BFCL expects {len(expect.calls)} calls, but {len(calls)} were made."
        return
    left = list(calls)
    for possible in expect.calls:
        # As in BFCL, the first call that fits is taken, even if a later one needs it more.
        faults = [next(_call_faults(possible, *call), None) for call in left]
        if None in faults:
            del left[faults.index(None)]
        else:
            yield faults[0] or ""
            return


def _call_faults(possible: PossibleCall, name: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    if name != possible.name:
        yield f"BFCL expects a call of {possible.name}, not of {name[:100]}."
        return
    for parameter in possible.required:
        if parameter not in arguments:
            yield f"{name}: {parameter} is missing."
    for parameter, value in arguments.items():
        if parameter not in possible.types or parameter not in possible.values:
            yield f"{name}: {parameter[:100]} is not expected."
        elif not _is_possible(possible.types[parameter], possible.values[parameter], value):
            yield f"{name}: BFCL does not accept the value of {parameter}."
    for parameter, values in possible.values.items():
        if parameter not in arguments and "" not in values:
            yield f"{name}: {parameter} is missing; BFCL does not list it as optional."


def _is_possible(described: Any, values: Any, value: Any) -> bool:
    outer, inner = (described, None) if isinstance(described, str) else described
    expected, nested = _TYPES.get(outer), _TYPES.get(inner) if inner is not None else None
    if expected is None or not isinstance(values, list):
        return False
    if expected is float and type(value) is int:
        value = float(value)
    fits, is_variable = _fits_type(value, values, expected, nested)
    if not fits:
        return False
    if not is_variable:
        if expected is dict:
            return any(_fits_object(value, each) for each in values if each != "")
        if expected is list and nested is dict:
            return any(_fits_objects(value, each) for each in values)
        if expected is str:
            return _plain(value) in [_plain(each) for each in values if isinstance(each, str)]
        if expected is list:
            # BFCL compares item by item, so the `""` of an optional list accepts the empty one.
            wanted: list[list[Any]] = [list(each) for each in values if isinstance(each, str | list)]
            return [_plain(item) for item in value] in [[_plain(item) for item in each] for each in wanted]
    return value in values


def _fits_type(value: Any, values: Sequence[Any], expected: type, nested: type | None) -> tuple[bool, bool]:
    """Whether the type is right, and whether the answer is a variable: a text where another type is described."""
    listed = next((type(each) for each in values if each != ""), None)
    is_variable = listed is not None and listed is not expected
    given = type(value)
    if given is not expected:
        fits = listed is not None and given is listed
        return fits, fits
    if nested is None:
        return True, is_variable
    for each in values:
        if not isinstance(each, list) or all(_fits_type(item, each, nested, None)[0] for item in value):
            return True, is_variable
    return False, False


def _fits_object(value: Any, wanted: Any) -> bool:
    """Whether each member has one of its possible values, and none is missing that must be there."""
    if not isinstance(value, dict) or not isinstance(wanted, dict):
        return False
    return all(
        name in wanted and isinstance(wanted[name], list) and _plain(member) in list(map(_plain, wanted[name]))
        for name, member in value.items()
    ) and all(name in value or "" in possible for name, possible in wanted.items())


def _fits_objects(value: Sequence[Any], wanted: Any) -> bool:
    return len(value) == len(wanted) and all(map(_fits_object, value, wanted))


def _plain(value: Any) -> Any:
    """A text without what does not count in BFCL; any other value as it is."""
    return _NOT_COUNTED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
