"""What an answer looks like, whatever it says. Pure.

clean      every call exactly as the format asks
repaired   calls that had to be mended; `repairs` tells how
broken     something that was to be a call and is none, however it is mended; `rejections` tells why
leaked     tags in the visible text
absent     no call at all
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Literal

import orjson

from bridge.lab.case import Case
from bridge.lab.sample import Called, Sample
from bridge.lab.variant import LabVariant, Tags
from bridge.tools.freeform import arguments_or_none
from bridge.tools.parser import UNKNOWN_TOOL, ParsedCall, Rejected, Repair, ToolCallParser, WholeEvent, whole_events
from bridge.tools.payload import BAD_ARGUMENTS, Payload, decode_payload
from bridge.tools.tags import TAG
from bridge.turn.items import FunctionTool

Form = Literal["clean", "repaired", "broken", "leaked", "absent"]
FORMS: tuple[Form, ...] = ("clean", "repaired", "broken", "leaked", "absent")

ARGUMENTS_MISSING = "arguments_missing"
ARGUMENTS_QUOTED = "arguments_quoted"
SURPLUS_MEMBERS = "surplus_members"
"""What the parser takes without a word, although the format asks for something else: no arguments at all, a text where
the wording wants an object, members besides the two."""
CODE_FENCE = "code_fence"
SURPLUS = "surplus_suffix"
"""What the parser mends inside a block, and leaves in the text around one."""

_FENCE_LINE = re.compile(r"^[ \t]*+```", re.MULTILINE)
_OPENS = re.compile(r"[\[{<]\Z|(?:\A|\n)[ \t]*+[\[{<]++\s*+\Z")
_CLOSES = re.compile(r"[>}\]]|\s*+[>}\]]++[ \t\r]*+(?:\n|\Z)")
"""Brackets that touch a block, or stand alone on the line before or behind it. A quoted line (`> so`) is prose."""
_STRAY_FENCE = re.compile(r"`|\s*+```\s*+\Z")
_ATTEMPT = re.compile(r"""[\w"'(]|[ \t\r]*+\n\s*+\S|[ \t]++(?:["']|[\w.]++[(=])""")
"""How a body begins that is meant as a call, though not as JSON: right behind the tag, on a line of its own, or like
code. Prose goes on with a space, or a mark."""


@dataclass(slots=True)
class Reading:
    """What the messages of an answer hold: its calls, wherever they stand, and the text that a person would see."""

    calls: list[Called] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)
    visible: str = ""
    form: Form = "absent"


def read_answer(case: Case, variant: LabVariant, sample: Sample) -> Reading:
    """Read an answer.

    A call of a function that is not offered has its form, too; only its meaning is wrong. Where the talk is of tags it
    is an example, and stays text, as for any client.
    """
    reading = Reading(calls=list(sample.calls))
    reading.visible = "\n".join(_read(text, case, variant, reading) for text in sample.texts)
    reading.rejections += [BAD_ARGUMENTS for call in reading.calls if not isinstance(read_arguments(call), dict)]
    reading.form = _form(case, reading)
    return reading


def read_arguments(call: Called) -> Any:
    """The arguments of a call; the text itself where it is no JSON."""
    try:
        return orjson.loads(arguments_or_none(call.arguments))
    except orjson.JSONDecodeError:
        return call.arguments


def _form(case: Case, reading: Reading) -> Form:
    if reading.rejections:
        return "broken"
    # A tag of another name than the case's is none to the parser, but just as odd to a reader.
    if case.expect.leak == "forbidden" and (f"<{TAG}" in reading.visible or f"</{TAG}" in reading.visible):
        return "leaked"
    if not reading.calls:
        return "absent"
    return "repaired" if reading.repairs else "clean"


def _read(text: str, case: Case, variant: LabVariant, reading: Reading) -> str:
    """The visible part of a message; everything else of it goes into `reading`."""
    if variant.native:
        return text
    tags, about_tags = variant.tags_for(case), case.expect.leak == "allowed"
    # The text before, between and behind the blocks; how much of the message has been read.
    visible, place = list[list[str]]([[]]), 0
    for event in _parse(text, case.tools, tags, any_name=not about_tags):
        if isinstance(event, str):
            visible[-1].append(event)
            place += len(event)
        elif isinstance(event, ParsedCall):
            reading.calls.append(Called(event.name, event.arguments))
            reading.repairs += _repairs(event, tags, variant)
            visible += [[]] if event.source else []
            place += len(event.source)
        elif isinstance(event, Repair):
            reading.repairs.append(event.name)
            place += len(event.source)
        elif not about_tags and (event.source.strip() != tags.open or _is_attempt(text, place, tags)):
            reading.rejections.append(event.reason)
    stretches = ["".join(pieces) for pieces in visible]
    reading.repairs += chain.from_iterable(rubbish_around(stretches))
    return "".join(stretches)


def _is_attempt(text: str, place: int, tags: Tags) -> bool:
    """Whether an opening tag that no JSON follows begins a call all the same. A tag that is talked about does not."""
    start = place + len(tags.open)
    following = text.find(tags.open, start)
    end = text.find(tags.close, start, following if following >= 0 else len(text))
    return end >= 0 and _ATTEMPT.match(text, start, end) is not None


def rubbish_around(stretches: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """For each block what stands directly around it and is no prose: a code fence, which counts once, and brackets.

    The stretches are the texts before, between and behind the blocks.
    """
    fenced = told = False
    for before, behind in pairwise(stretches):
        if len(_FENCE_LINE.findall(before)) % 2:
            fenced, told = not fenced, False
        in_code = not told and (fenced or before.endswith("`") or _STRAY_FENCE.match(behind) is not None)
        told = told or (in_code and fenced)
        bracketed = _OPENS.search(before) is not None or _CLOSES.match(behind) is not None
        yield (CODE_FENCE,) * in_code + (SURPLUS,) * bracketed


def _parse(text: str, tools: Iterable[FunctionTool], tags: Tags, *, any_name: bool) -> list[WholeEvent]:
    """The parser's events. With `any_name`, names that turn out to be called are known to it, too."""
    # Whether arguments fit a schema is a question of meaning; here every function takes anything.
    names = {name for tool in tools for name in (tool.full_name, tool.name)}
    while True:
        parser = ToolCallParser(dict.fromkeys(names), open_tag=tags.open, close_tag=tags.close)
        events = whole_events(parser, text)
        more = set(_unknown_names(events, tags)) - names if any_name else set()
        if not more:
            return events
        names |= more


def _unknown_names(events: Iterable[WholeEvent], tags: Tags) -> Iterator[str]:
    for event in events:
        if isinstance(event, Rejected) and event.reason == UNKNOWN_TOOL:
            payload = decode_payload(_body(event.source, tags))
            if isinstance(payload, Payload):
                yield from (name for name, _ in payload.calls)


def _repairs(call: ParsedCall, tags: Tags, variant: LabVariant) -> Iterator[str]:
    if not call.source:
        return  # of several calls in one block the first tells
    yield from (repair for repair in call.repairs if repair not in variant.allows)
    try:
        block = orjson.loads(_body(call.source, tags))
    except orjson.JSONDecodeError:
        return  # it was mended, which tells enough
    if not isinstance(block, dict):
        return
    if block.keys() - {"name", "arguments"}:
        yield SURPLUS_MEMBERS
    arguments = block.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        yield ARGUMENTS_MISSING
    elif isinstance(arguments, str) and variant.wording.arguments == "object":
        yield ARGUMENTS_QUOTED


def _body(source: str, tags: Tags) -> str:
    return source.removeprefix(tags.open).removesuffix(tags.close)
