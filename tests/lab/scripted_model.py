"""A model that answers by script: right, or wrong in one named way.

`answer(case, variant, manner)` is what such a model says to a case. The right answer follows from what the case
expects: its calls with the first admissible values, its texts. Every other manner takes that and spoils one thing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bridge.lab.case import OTHERS, Called, Case, ExpectedCall, Sample
from bridge.lab.variant import SHIPPED, LabVariant
from bridge.tools.examples import example_for

SPEC = SHIPPED["spec"]
EXACT = {
    "file-of-twenty-kilobytes": "content",
    "client-has-apply-patch": "patch",
    "client-has-a-shell": "command",
    "excused-itself-before": "command",
    "write-in-a-read-only-sandbox": "content",
    "double-quotes": "text",
    "many-scripts": "text",
    "tag-as-an-argument": "text",
}
"""Shipped cases in which this argument of the first call is to be a text, letter by letter."""


class NotPossible(Exception):
    """A manner that the case or the variant has no room for: there is nothing to be spoiled."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model means to make."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model means to say: a text, then calls; `wrap` is how it writes one of them."""

    case: Case
    variant: LabVariant
    text: str
    calls: tuple[Call, ...]
    wrap: Callable[[Answer, Call], str] | None = None
    behind: str = ""
    """Text after the calls."""

    @property
    def first(self) -> Call:
        """The call that is spoiled."""
        if not self.calls:
            raise NotPossible("no call is due")
        return self.calls[0]

    def with_first(self, call: Call) -> Answer:
        """The same answer with another call in the first place."""
        return replace(self, calls=(call, *self.calls[1:]))

    def tagged(self, body: str) -> str:
        """A block with this body."""
        tags = self.variant.tags_for(self.case)
        return f"{tags.open}{body}{tags.close}"

    def body(self, call: Call) -> str:
        """What stands between the tags, as the variant asks."""
        arguments: Any = call.arguments
        if self.variant.wording.arguments == "string":
            arguments = _json(arguments)
        return _json({"name": call.name, "arguments": arguments})

    def sample(self) -> Sample:
        """As it comes back from the model."""
        if self.variant.native:
            if self.wrap is not None:
                raise NotPossible("natively nothing is written between tags")
            calls = tuple(Called(call.name, _json(call.arguments)) for call in self.calls)
            texts = tuple(filter(None, [self.text + self.behind]))
            return Sample(texts, calls)
        blocks = [self.tagged(self.body(call)) for call in self.calls]
        if self.wrap is not None:
            blocks[0] = self.wrap(self, self.first)
        text = "\n".join(filter(None, [self.text, *blocks])) + self.behind
        return Sample((text,) if text else ())


def answer(case: Case, variant: LabVariant = SPEC, manner: str = "right") -> Sample:
    """What the model says. Raises NotPossible for a manner that makes no difference here."""
    right = Answer(case, variant, " ".join(case.expect.contains), tuple(map(_right_call, case.expect.calls)))
    return MANNERS[manner](right).sample()


def example_of(rule: Any) -> Any:
    """A value that a matcher takes: of several the first."""
    if isinstance(rule, list):
        return [example_of(member) for member in rule]
    if not isinstance(rule, dict):
        return rule
    match rule:
        case {"$any": [first, *_]}:
            return example_of(first)
        case {"$same": value} | {"$lines": value} | {"$contains": value} | {"$number": value} | {"$near": [value, _]}:
            return value
        case {"$set": members}:
            return [example_of(member) for member in reversed(members)]
        case {"$type": kind}:
            return example_for({"type": kind})
        case {"$regex": pattern}:
            return example_for({"type": "string", "pattern": pattern.removeprefix("(?i)")})
        case {"$length": [least, _]}:
            return "x" * least
        case {"$anything": True}:
            return "x"
    return {name: example_of(member) for name, member in rule.items()}


def _right_call(want: ExpectedCall) -> Call:
    return Call(want.name, {name: example_of(rule) for name, rule in want.arguments.items() if name != OTHERS})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# Form: what the parser mends


def _written(write: Callable[[Answer, Call], str]) -> Callable[[Answer], Answer]:
    """A manner in which only the first call is written in another way."""

    def spoil(right: Answer) -> Answer:
        assert right.first
        return replace(right, wrap=write)

    return spoil


def _trailing_comma(right: Answer, call: Call) -> str:
    return right.tagged(right.body(call)[:-1] + ",}")


def _code_fence(right: Answer, call: Call) -> str:
    return right.tagged(f"\n```json\n{right.body(call)}\n```\n")


def _surplus_suffix(right: Answer, call: Call) -> str:
    return right.tagged(right.body(call) + "}>")


def _array_unwrapped(right: Answer, call: Call) -> str:
    return right.tagged(f"[{right.body(call)}]")


def _array_split(right: Answer) -> Answer:
    if len(right.calls) < 2:
        raise NotPossible("there are not two calls to put into an array")
    bodies = ",".join(map(right.body, right.calls))
    return replace(right, calls=right.calls[:1], wrap=lambda _, call: right.tagged(f"[{bodies}]"))


def _arguments_as_object(right: Answer, call: Call) -> str:
    return right.tagged(_json({"name": call.name, "arguments": call.arguments}))


def _arguments_as_text(right: Answer, call: Call) -> str:
    return right.tagged(_json({"name": call.name, "arguments": _json(call.arguments)}))


def _arguments_missing(right: Answer, call: Call) -> str:
    if call.arguments:
        raise NotPossible("there are arguments")
    return right.tagged(_json({"name": call.name}))


def _surplus_members(right: Answer, call: Call) -> str:
    return right.tagged(right.body(call)[:-1] + ',"id":"call_1"}')


def _unclosed(right: Answer, call: Call) -> str:
    return right.variant.tags_for(right.case).open + right.body(call)


def _repeated_closing_tag(right: Answer, call: Call) -> str:
    return right.tagged(right.body(call)) + "\n" + right.variant.tags_for(right.case).close


# Form: what stands around a block


def _around(before: str, behind: str) -> Callable[[Answer], Answer]:
    """A manner in which only the first block has something around it."""
    return _written(lambda right, call: before + right.tagged(right.body(call)) + behind)


def _all_in_a_fence(right: Answer) -> Answer:
    return replace(right, text=f"{right.text}\n```json".lstrip(), behind="\n```", calls=(right.first, *right.calls[1:]))


def _in_prose(right: Answer) -> Answer:
    """Nothing of this touches the block as a bracket or a fence would."""
    assert right.first
    before = f"{right.text}\nFor example [1]:\n```py\nprint(a[0])\n```\nI call it (as `it` should be):"
    return replace(right, text=before, behind="\n> quoted\n```\ncode\n```\nThen we see. [2]")


# Form: what nobody can mend


def _bad_json(right: Answer, call: Call) -> str:
    return right.tagged(right.body(call).replace(":", "=", 1))


def _bare_newline(right: Answer, call: Call) -> str:
    return right.tagged(right.body(call).replace(call.name, call.name + "\n", 1))


def _not_an_object(right: Answer, call: Call) -> str:
    return right.tagged(f"[{_json(call.name)},{_json(call.arguments)}]")


def _no_name(right: Answer, call: Call) -> str:
    return right.tagged(right.body(call).replace('"name"', '"function"', 1))


def _bad_arguments(right: Answer, call: Call) -> str:
    return right.tagged(_json({"name": call.name, "arguments": 5}))


def _arguments_no_json(right: Answer, call: Call) -> str:
    return right.tagged(_json({"name": call.name, "arguments": "city=Bern"}))


def _as_code(right: Answer, call: Call) -> str:
    return right.tagged(f"{call.name}({', '.join(call.arguments)})")


def _as_code_on_a_line(right: Answer, call: Call) -> str:
    return right.tagged(f"\n{call.name} {_json(call.arguments)}\n")


def _as_text(right: Answer, call: Call) -> str:
    return right.tagged(f" {_json(call.name)} ")


# Form: tags where no call is


def _stray_closing_tag(right: Answer) -> Answer:
    return replace(right, behind=f"\nDone. {right.variant.tags_for(right.case).close}")


def _stray_opening_tag(right: Answer) -> Answer:
    return replace(right, text=f"{right.text} I use {right.variant.tags_for(right.case).open} for this. ".lstrip())


def _tags_in_prose(right: Answer) -> Answer:
    tags = right.variant.tags_for(right.case)
    mention = f"I write {tags.open} and then {tags.close}, or in short {tags.open}...{tags.close}."
    return replace(right, text=f"{right.text} {mention}".lstrip())


def _old_tag(right: Answer, call: Call) -> str:
    """The tags of the spec, whatever the case's are."""
    if not right.variant.nonce:
        raise NotPossible("these are the right tags")
    return f"<tool_call>{right.body(call)}</tool_call>"


# Meaning


def _absent_when_due(right: Answer) -> Answer:
    assert right.first
    return replace(right, calls=(), text="I will do that.")


def _wrong_name(right: Answer) -> Answer:
    """Another tool that is offered, with arguments that fit it."""
    due = {call.name for call in right.calls}
    for tool in right.case.tools:
        if right.first and tool.name not in due:
            return right.with_first(Call(tool.name, _conforming(tool.parameters)))
    raise NotPossible("no other tool is offered")


def _unknown_name(right: Answer) -> Answer:
    return right.with_first(replace(right.first, name="do_what_i_mean"))


def _unknown_name_unclosed(right: Answer) -> Answer:
    return _written(_unclosed)(_unknown_name(right))


def _schema_violation(right: Answer) -> Answer:
    """One argument of another type."""
    call = right.first
    for name, value in call.arguments.items():
        if isinstance(value, str | int):
            wrong = 7 if isinstance(value, str) else str(value)
            return right.with_first(Call(call.name, {**call.arguments, name: wrong}))
    raise NotPossible("no argument can be given another type")


def _missing_required(right: Answer) -> Answer:
    call = right.first
    if not call.arguments:
        raise NotPossible("nothing is required")
    return right.with_first(Call(call.name, dict(list(call.arguments.items())[1:])))


def _invented_key(right: Answer) -> Answer:
    call = right.first
    return right.with_first(Call(call.name, {**call.arguments, "please": True}))


def _wrong_value(right: Answer) -> Answer:
    """A text that says something else, and still fits the schema."""
    call = right.first
    for name, value in call.arguments.items():
        if isinstance(value, str):
            return right.with_first(Call(call.name, {**call.arguments, name: f"Atlantis {value[::-1]}"}))
    raise NotPossible("there is no text to be changed")


def _other_letters(right: Answer) -> Answer:
    """A text in capitals, or with other white space, where the case asks for exactly the one."""
    if right.case.id not in EXACT:
        raise NotPossible("it is not about this text")
    call = right.first
    name = EXACT[right.case.id]
    text = call.arguments[name]
    changed = " ".join(text.split()) if "\n" in text else text.swapcase()
    return right.with_first(Call(call.name, {**call.arguments, name: changed}))


def _one_too_many(right: Answer) -> Answer:
    return replace(right, calls=(*right.calls, right.first))


def _one_too_few(right: Answer) -> Answer:
    if len(right.calls) < 2:
        raise NotPossible("the only call would be absent")
    return replace(right, calls=right.calls[1:])


def _wrong_order(right: Answer) -> Answer:
    if right.case.expect.order != "exact":
        raise NotPossible("any order is right")
    return replace(right, calls=right.calls[::-1])


def _called_when_not_due(right: Answer) -> Answer:
    """The first tool, with arguments that fit it: under `none`, this disobeys the choice, too."""
    if right.calls or not right.case.tools:
        raise NotPossible("a call is due, or nothing is there to be called")
    tool = right.case.tools[0]
    return replace(right, calls=(Call(tool.name, _conforming(tool.parameters)),))


def _text_missing(right: Answer) -> Answer:
    if not right.text:
        raise NotPossible("no text is due")
    return replace(right, text="Hm.")


def _conforming(parameters: Any) -> dict[str, Any]:
    example = example_for(parameters)
    return example if isinstance(example, dict) else {}


MANNERS: Mapping[str, Callable[[Answer], Answer]] = {
    "right": lambda right: right,
    # mended
    "trailing_comma": _written(_trailing_comma),
    "code_fence": _written(_code_fence),
    "surplus_suffix": _written(_surplus_suffix),
    "array_unwrapped": _written(_array_unwrapped),
    "array_split": _array_split,
    "arguments_as_object": _written(_arguments_as_object),
    "arguments_as_text": _written(_arguments_as_text),
    "arguments_missing": _written(_arguments_missing),
    "surplus_members": _written(_surplus_members),
    "unclosed": _written(_unclosed),
    "repeated_closing_tag": _written(_repeated_closing_tag),
    "bracket_behind": _around("", ">"),
    "bracket_on_a_line": _around("", "\n]\n"),
    "brackets_around": _around("[", "]"),
    "brackets_on_lines": _around("[\n", "\n]"),
    "fence_around": _around("```json\n", "\n```"),
    "fence_around_brackets": _around("```\n[", "]\n```\n"),
    "fence_around_all": _all_in_a_fence,
    "fence_behind": _around("", "\n```"),
    "backticks_around": _around("`", "`"),
    "in_prose": _in_prose,
    # broken
    "bad_json": _written(_bad_json),
    "bare_newline": _written(_bare_newline),
    "not_an_object": _written(_not_an_object),
    "no_name": _written(_no_name),
    "bad_arguments": _written(_bad_arguments),
    "arguments_no_json": _written(_arguments_no_json),
    "as_code": _written(_as_code),
    "as_code_on_a_line": _written(_as_code_on_a_line),
    "as_text": _written(_as_text),
    # leaked
    "tags_in_prose": _tags_in_prose,
    "stray_closing_tag": _stray_closing_tag,
    "stray_opening_tag": _stray_opening_tag,
    "old_tag": _written(_old_tag),
    # wrong
    "absent_when_due": _absent_when_due,
    "wrong_name": _wrong_name,
    "unknown_name": _unknown_name,
    "unknown_name_unclosed": _unknown_name_unclosed,
    "schema_violation": _schema_violation,
    "missing_required": _missing_required,
    "invented_key": _invented_key,
    "wrong_value": _wrong_value,
    "other_letters": _other_letters,
    "one_too_many": _one_too_many,
    "one_too_few": _one_too_few,
    "wrong_order": _wrong_order,
    "called_when_not_due": _called_when_not_due,
    "text_missing": _text_missing,
}
"""All manners by name."""
