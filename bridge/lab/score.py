"""Score an answer: its form (how calls are written) and, apart from that, its meaning (which calls). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import orjson

from bridge.lab.case import Called, Case, Sample
from bridge.lab.checks import check_answer, name_f1, read_arguments
from bridge.lab.formats import NotCalls, PromptFormat, decode_calls, is_attempt
from bridge.lab.variant import LabVariant, Tags
from bridge.tools.parser import UNKNOWN_TOOL, ParsedCall, Rejected, Repair, ToolCallParser, WholeEvent, whole_events
from bridge.tools.payload import BAD_ARGUMENTS, TAG, Payload, decode_payload

Form = Literal["clean", "repaired", "broken", "leaked", "absent"]
FORMS: Mapping[str, str] = {
    "clean": "every call is written exactly as the format asks",
    "repaired": "calls that had to be repaired",
    "broken": "an attempted call that cannot be repaired",
    "leaked": "tags in the visible text",
    "absent": "no call",
}
ARGUMENTS_MISSING = "arguments_missing"
ARGUMENTS_QUOTED = "arguments_quoted"
SURPLUS_MEMBERS = "surplus_members"
"""Deviations that the parser accepts silently: no arguments, text where the wording wants an object, extra members."""
CODE_FENCE = "code_fence"
SURPLUS = "surplus_suffix"
"""The parser repairs these inside a block; around a block it leaves them in the text."""
BAD_CALLS = "bad_calls"
"""Why a text in a format of its own is rejected; the other reasons are the parser's."""
REPAIRS: Mapping[str, str] = {
    "trailing_comma": "a comma before a closing bracket",
    CODE_FENCE: "a code fence around the call",
    SURPLUS: "extra brackets after or around the call",
    "array_unwrapped": "the call is inside a list",
    "array_split": "several calls in one list",
    "arguments_coerced": "arguments are an object, not a string",
    "unclosed": "the closing tag is missing",
    "damaged_json": "the JSON is damaged after the beginning of the arguments",
    "repeated_closing_tag": "the closing tag is repeated",
    ARGUMENTS_MISSING: "arguments are missing",
    ARGUMENTS_QUOTED: "arguments are a string, not an object",
    SURPLUS_MEMBERS: "there are members other than name and arguments",
}
REJECTIONS: Mapping[str, str] = {
    "bad_json": "not JSON",
    "not_an_object": "not an object",
    "no_name": "no name",
    BAD_ARGUMENTS: "arguments are neither text nor an object",
    UNKNOWN_TOOL: "the function is not offered",
    "schema_mismatch": "arguments do not fit the schema",
    BAD_CALLS: "not a list of calls in the format of the prompt",
}

_FENCE_LINE = re.compile(r"^[ \t]*+```", re.MULTILINE)
_OPENS = re.compile(r"[\[{<]\Z|(?:\A|\n)[ \t]*+[\[{<]++\s*+\Z")
_CLOSES = re.compile(r"[>}\]]|\s*+[>}\]]++[ \t\r]*+(?:\n|\Z)")
"""Brackets that touch a block, or stand alone on the line before or after it. A quoted line (`> so`) is prose."""
_STRAY_FENCE = re.compile(r"`|\s*+```\s*+\Z")
_ATTEMPT = re.compile(r"""[\w"'(]|[ \t\r]*+\n\s*+\S|[ \t]++(?:["']|[\w.]++[(=])""")
"""How the body of an attempted call that is not JSON begins: right after the tag, on its own line, or like code. Prose
continues with a space or a punctuation mark."""


class Piece(NamedTuple):
    """A piece of a model's text; joined, the pieces are the text.

    The kinds are text, call, repair (a repaired call, or text that the parser dropped), unknown (a call of a function
    that is not offered) and reject.
    """

    text: str
    kind: str = "text"
    note: str = ""


@dataclass(slots=True)
class Reading:
    """The calls of an answer, native or in text, and the text that a person would see."""

    calls: list[Called] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)
    visible: str = ""
    final: str = ""
    """The visible text of the last answer of an episode; of any other sample all of it."""
    texts: list[list[Piece]] = field(default_factory=list)


def read_answer(case: Case, variant: LabVariant, sample: Sample) -> Reading:
    """Find the calls of an answer.

    A call of a function that is not offered has a form, too; only its meaning is wrong. In a conversation about tags it
    is an example and stays text, as it does for any client.
    """
    return _read_answer(variant.apply(case), variant, sample)


def _read_answer(case: Case, variant: LabVariant, sample: Sample) -> Reading:
    reading = Reading(calls=list(sample.calls))
    visible = [_read(text, case, variant, reading) for text in sample.texts]
    reading.visible = "\n".join(visible)
    reading.final = "\n".join(visible[sample.ended.last if sample.ended is not None else 0 :])
    reading.rejections += [BAD_ARGUMENTS for call in reading.calls if not isinstance(read_arguments(call), dict)]
    return reading


def _form(case: Case, reading: Reading) -> Form:
    if reading.rejections:
        return "broken"
    # A tag of another name is not a tag to the parser, but it is just as odd to a reader.
    if case.expect.leak == "forbidden" and (f"<{TAG}" in reading.visible or f"</{TAG}" in reading.visible):
        return "leaked"
    if not reading.calls:
        return "absent"
    return "repaired" if reading.repairs else "clean"


def _read(text: str, case: Case, variant: LabVariant, reading: Reading) -> str:
    """The visible part of a message; everything else goes into `reading`."""
    pieces: list[Piece] = []
    reading.texts.append(pieces)
    if variant.native:
        pieces += [Piece(text)] if text else []
        return text
    if variant.format is not None:
        return _read_format(text, variant.format, case, reading, pieces)
    tags, about_tags = variant.tags_for(case), case.expect.leak == "allowed"
    offered = {name for tool in case.tools for name in (tool.full_name, tool.name)}
    # The pieces that are blocks, the texts before, between and after them, and the position in the message.
    blocks, around, position = list[int](), [""], 0
    rejected: Rejected | None = None
    for event in _parse(text, offered, tags, any_name=not about_tags):
        if isinstance(event, Rejected):
            # Its text comes as the next event.
            rejected = event
            if not about_tags and (event.source.strip() != tags.open or _is_attempt(text, position, tags)):
                reading.rejections.append(event.reason)
            continue
        if isinstance(event, str):
            around[-1] += event
            if rejected is not None:
                pieces.append(Piece(event, "reject", REJECTIONS.get(rejected.reason, rejected.reason)))
            elif pieces and pieces[-1].kind == "text":
                pieces[-1] = Piece(pieces[-1].text + event)
            else:
                pieces.append(Piece(event))
        elif isinstance(event, Repair):
            reading.repairs.append(event.name)
            pieces.append(Piece(event.source, "repair", event.name))
        else:
            reading.calls.append(Called(event.name, event.arguments))
            if event.source:
                repairs = list(_repairs(event, tags, variant))
                reading.repairs += repairs
                blocks.append(len(pieces))
                around.append("")
                kind = "repair" if repairs else "call" if event.name in offered else "unknown"
                note = f"{event.name}: {', '.join(repairs)}" if repairs else event.name
                pieces.append(Piece(event.source, kind, note))
            else:  # another call of the same block
                pieces[-1] = pieces[-1]._replace(note=f"{event.name}, {pieces[-1].note}")
        rejected = None
        position += len(event if isinstance(event, str) else event.source)
    for index, surplus in zip(blocks, surplus_around(around), strict=True):
        reading.repairs += surplus
        if surplus:
            call = pieces[index]
            joined = f"{call.note}{', ' if call.kind == 'repair' else ': '}{', '.join(surplus)}"
            pieces[index] = Piece(call.text, "repair", joined)
    return "".join(around)


def _read_format(text: str, wanted: PromptFormat, case: Case, reading: Reading, pieces: list[Piece]) -> str:
    """A message in a format of its own, which is all calls or all text."""
    try:
        calls = decode_calls(text, wanted)
    except NotCalls:
        attempted = is_attempt(text, wanted, [tool.full_name for tool in case.tools])
        reading.rejections += [BAD_CALLS] * attempted
        pieces.append(Piece(text, "reject", REJECTIONS[BAD_CALLS]) if attempted else Piece(text))
        return "" if attempted else text
    reading.calls += calls
    pieces.append(Piece(text, "call", ", ".join(call.name for call in calls)))
    return ""


def _is_attempt(text: str, position: int, tags: Tags) -> bool:
    """Whether an opening tag without JSON after it begins a call, or is only mentioned."""
    start = position + len(tags.open)
    following = text.find(tags.open, start)
    end = text.find(tags.close, start, following if following >= 0 else len(text))
    return end >= 0 and _ATTEMPT.match(text, start, end) is not None


def surplus_around(stretches: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """For each block the code fence (counted once) and the brackets directly around it.

    The stretches are the texts before, between and after the blocks.
    """
    fenced = counted = False
    for before, after in pairwise(stretches):
        if len(_FENCE_LINE.findall(before)) % 2:
            fenced, counted = not fenced, False
        in_code = not counted and (fenced or before.endswith("`") or _STRAY_FENCE.match(after) is not None)
        counted = counted or (in_code and fenced)
        bracketed = _OPENS.search(before) is not None or _CLOSES.match(after) is not None
        yield (CODE_FENCE,) * in_code + (SURPLUS,) * bracketed


def _parse(text: str, offered: Iterable[str], tags: Tags, *, any_name: bool) -> list[WholeEvent]:
    """The parser's events. With `any_name`, every name that is called is known to the parser."""
    # Whether arguments fit a schema is a question of meaning; here every function accepts anything.
    names = set(offered)
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
        return  # of several calls in one block only the first has the source
    yield from (repair for repair in call.repairs if repair not in variant.allows)
    try:
        block = orjson.loads(_body(call.source, tags))
    except orjson.JSONDecodeError:
        return  # the repairs say it already
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


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one sample. It passed if a client would have got the right answer, after repairs if necessary."""

    form: Form
    checks: Mapping[str, bool | None]
    """The outcome of each of CHECKS; None if it does not apply."""
    repairs: tuple[str, ...] = ()
    rejections: tuple[str, ...] = ()
    calls: tuple[Called, ...] = ()
    visible: str = field(default="", repr=False)
    f1: float = 1.0

    @property
    def passed(self) -> bool:
        return self.form not in ("broken", "leaked") and False not in self.checks.values()


def score(case: Case, variant: LabVariant, sample: Sample) -> Score:
    """Score an answer. A sample with a `failure` has no score."""
    case = variant.apply(case)
    reading = _read_answer(case, variant, sample)
    return Score(
        _form(case, reading),
        check_answer(case, reading.calls, reading.final, sample.verdicts, sample.ended),
        tuple(reading.repairs),
        tuple(reading.rejections),
        tuple(reading.calls),
        reading.visible,
        name_f1(case.expect.calls, reading.calls),
    )
