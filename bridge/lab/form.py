"""What an answer looks like, whatever it says. Pure.

clean      every call exactly as the format asks
repaired   calls that had to be mended; `repairs` tells how
broken     something that was to be a call and is none, however it is mended; `rejections` tells why
leaked     tags in the visible text
absent     no call at all
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from bridge.lab.case import Case
from bridge.lab.sample import Called, Sample
from bridge.lab.variant import LabVariant, Tags
from bridge.tools.freeform import arguments_or_none
from bridge.tools.parser import UNKNOWN_TOOL, ParsedCall, ParserEvent, Rejected, Repair, ToolCallParser
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
    visible = []
    for event in _parse(text, case.tools, tags, any_name=not about_tags):
        if isinstance(event, str):
            visible.append(event)
        elif isinstance(event, ParsedCall):
            reading.calls.append(Called(event.name, event.arguments))
            reading.repairs += _repairs(event, tags, variant)
        elif isinstance(event, Repair):
            reading.repairs.append(event.name)
        elif not about_tags and event.source.strip() != tags.open:  # a tag alone is no attempt at a call
            reading.rejections.append(event.reason)
    return "".join(visible)


def _parse(text: str, tools: Iterable[FunctionTool], tags: Tags, *, any_name: bool) -> list[ParserEvent]:
    """The parser's events. With `any_name`, names that turn out to be called are known to it, too."""
    # Whether arguments fit a schema is a question of meaning; here every function takes anything.
    names = {name for tool in tools for name in (tool.full_name, tool.name)}
    while True:
        parser = ToolCallParser(dict.fromkeys(names), open_tag=tags.open, close_tag=tags.close)
        events = [*parser.feed(text), *parser.finish()]
        more = set(_unknown_names(events, tags)) - names if any_name else set()
        if not more:
            return events
        names |= more


def _unknown_names(events: Iterable[ParserEvent], tags: Tags) -> Iterator[str]:
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
