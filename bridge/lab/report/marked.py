"""An answer's text, cut where its tags are: which of it is a call, which was mended, which is none. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.lab.case import Case, Expect
from bridge.lab.form import read_answer, rubbish_around
from bridge.lab.report.words import REJECTION_WORDS
from bridge.lab.result import Result
from bridge.lab.sample import Sample
from bridge.lab.variant import LabVariant
from bridge.protolog.export.marked import PLAIN, Stretch
from bridge.tools.parser import ParsedCall, Rejected, Repair, ToolCallParser, WholeEvent, whole_events
from bridge.turn.items import FunctionTool


def stand_in_case(result: Result) -> Case:
    """A case for a result whose own is not at hand: it offers what was called."""
    names = dict.fromkeys(call.name for call in result.calls)
    return Case(result.cell.case, "", (), Expect(), tuple(FunctionTool(name) for name in names))


def visible_text(result: Result, case: Case, variant: LabVariant) -> str:
    """What a reader of the answer would see."""
    return read_answer(case, variant, Sample(result.texts)).visible


def mark_text(text: str, called: Iterable[str], case: Case, variant: LabVariant) -> list[Stretch]:
    """The stretches of a text; joined, they are the text.

    Their kinds: text, call, repair (a call that was mended, or what was swallowed), unknown (a call of a function that
    is not offered) and reject. `called` are the functions that the answer calls.
    """
    offered = {name for tool in case.tools for name in (tool.full_name, tool.name)}
    if variant.native or not text:
        return [Stretch(text)] if text else []
    stretches: list[Stretch] = []
    refused: Rejected | None = None
    # Where in the stretches calls are, and the texts before, between and behind them.
    blocks, around = list[int](), [""]
    for event in _parse(text, {*offered, *called}, case, variant):
        if isinstance(event, Rejected):
            refused = event
            continue
        if isinstance(event, str):
            _add_text(event, refused, stretches)
            around[-1] += event
        elif isinstance(event, Repair):
            stretches.append(Stretch(event.source, "repair", event.name))
        elif event.source:
            blocks.append(len(stretches))
            around.append("")
            stretches.append(_call(event, offered, case, variant))
        else:  # one more call of the same block
            last = stretches[-1]
            stretches[-1] = Stretch(last.text, last.kind, f"{event.name}, {last.note}")
        refused = None
    for place, found in zip(blocks, rubbish_around(around), strict=True):
        if found:
            call = stretches[place]
            note = ", ".join([call.note, *found] if call.kind == "repair" else [f"{call.note}: {found[0]}", *found[1:]])
            stretches[place] = Stretch(call.text, "repair", note)
    return stretches


def _parse(text: str, names: Iterable[str], case: Case, variant: LabVariant) -> list[WholeEvent]:
    tags = variant.tags_for(case)
    parser = ToolCallParser(dict.fromkeys(names), open_tag=tags.open, close_tag=tags.close)
    return whole_events(parser, text)


def _call(event: ParsedCall, offered: Iterable[str], case: Case, variant: LabVariant) -> Stretch:
    # The block is scored by itself, so that what is shown as mended is what was counted as mended.
    repairs = read_answer(case, variant, Sample((event.source,))).repairs
    if repairs:
        return Stretch(event.source, "repair", f"{event.name}: {', '.join(repairs)}")
    return Stretch(event.source, "call" if event.name in offered else "unknown", event.name)


def _add_text(text: str, refused: Rejected | None, stretches: list[Stretch]) -> None:
    if refused is not None:
        stretches.append(Stretch(text, "reject", REJECTION_WORDS.get(refused.reason, refused.reason)))
    elif stretches and stretches[-1].kind == PLAIN:
        stretches[-1] = Stretch(stretches[-1].text + text)
    else:
        stretches.append(Stretch(text))
