"""One request as a person would tell it: asked, answered, mended, ended."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from bridge.cli.log.explain import explain_error, explain_reject, explain_repair
from bridge.cli.log.table import local_time, told_outcome
from bridge.cli.log.terminal import Screen, one_line, printable
from bridge.protolog.answer import AnswerReader, sent_values
from bridge.protolog.asked import Part, messages_from_body, tools_offered
from bridge.protolog.crashes import EXIT, exit_cause, last_words
from bridge.protolog.heard import Heard
from bridge.protolog.loose import dumps, is_json, loads, member
from bridge.protolog.read import request_of
from bridge.protolog.summary import Summary
from bridge.protolog.transcript import body_from_calls
from bridge.tools.tags import CLOSE_TAG, OPEN_TAG

_BLOCK = re.compile(f"({re.escape(OPEN_TAG)}.*?(?:{re.escape(CLOSE_TAG)}|\\Z))", re.DOTALL)
_FILE = re.compile(r'(?<=")data:[^"]{76,}(?=")')
_LABELS = {"call": "call", "output": "result", "reasoning": "reasoning"}
_ROLES = {"user": "cyan", "assistant": "green", "call": "yellow", "result": "yellow"}
_OUTCOMES = {"completed": "green", "failed": "red"}
LAST_WORDS = 12
"""Lines of a child's stderr that are shown; `--json` has more."""


class Told:
    """What the records of one request tell. Texts are kept, messages are not."""

    def __init__(self) -> None:
        self.request: dict[str, Any] = {}
        self.start: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.answers: dict[int, Heard] = {}
        self.client = AnswerReader()
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.status: int | None = None
        self.streamed = False
        self.exit: dict[str, Any] | None = None
        self._calls: list[dict[str, Any]] = []
        self._thread: dict[str, Any] | None = None

    def add(self, record: dict[str, Any]) -> None:
        """One record."""
        kind, payload = record["kind"], record.get("payload")
        if record["phase"] == "client_egress":
            self.streamed = self.streamed or kind == "client_sse"
            if kind == "client_start" and isinstance(payload, dict):
                self.status = payload.get("status")
            for value in sent_values(kind, payload):
                self.client.take(value)
        elif not isinstance(payload, dict):
            return
        elif kind == "client_request":
            self.request = payload
        elif kind == "turn_start":
            self.start = payload
        elif kind == "turn_end":
            self.end = payload
        elif kind == EXIT:
            self.exit = payload
        elif record["phase"] == "tool_parse":
            self.notes.append((kind, payload))
        else:
            if kind == "rpc_request":
                self._calls.append(payload)
                self._thread = self._thread or record.get("thread")
            self.answers.setdefault(request_of(record["req_id"])[1], Heard()).add(kind, payload)

    @property
    def body(self) -> dict[str, Any]:
        """What was asked; made up from the calls where no client is on record."""
        body = self.request.get("body")
        if isinstance(body, dict):
            return body
        return (None if self.request else body_from_calls(self._calls, self._thread)) or {}


def show_conversation(screen: Screen, summary: Summary, records: Iterable[dict[str, Any]]) -> None:
    """The request and its answer."""
    told = Told()
    for record in records:
        told.add(record)
    _show_head(screen, summary, told)
    _title(screen, "asked")
    _show_asked(screen, summary, told)
    _title(screen, "answered")
    _show_answers(screen, summary, told)
    if told.notes or summary.invalid_arguments:
        _title(screen, "calls")
        _show_notes(screen, summary, told)
    _title(screen, "ended")
    _show_end(screen, summary, told)


def _show_head(screen: Screen, summary: Summary, told: Told) -> None:
    time = local_time(summary.time)
    screen.line(screen.style(one_line(summary.id), "bold") + (f"  {time:%Y-%m-%d %H:%M:%S %Z}" if time else ""))
    model = summary.requested_model or summary.model
    if summary.model and summary.model != model:
        model += f" → {summary.model}"
    about = [summary.path or "path unknown", "streamed" if told.streamed else "", model, summary.backend]
    effort = told.start.get("effort")
    about.append(f"effort {effort}" if effort else "")
    screen.line(one_line(" · ".join(part for part in about if part)))
    dropped = told.start.get("dropped")
    if isinstance(dropped, list) and dropped:
        screen.line(one_line(f"left out, because the backend has no place for it: {', '.join(map(str, dropped))}"))
    if not summary.begun:
        screen.line("The beginning of this request is not in the log.")


def _show_asked(screen: Screen, summary: Summary, told: Told) -> None:
    messages, names = list(_messages(told.body)), tools_offered(told.body)
    for label, text in messages or ([("body", dumps(told.body))] if told.body and not names else []):
        screen.line(screen.style(f"[{one_line(label)}]", _ROLES.get(label, "dim")))
        _text(screen, text)
    if names:
        _text(screen, f"tools: {', '.join(names)}", indent="")
    if told.request.get("unreadable") is not None:
        screen.line(one_line(f"The body could not be read ({told.request['unreadable']} bytes)."))
    elif told.request.get("unread"):
        screen.line("The body was not read.")
    elif not told.body:
        screen.line("Not in the log." if not told.request else "Nothing.")


def _messages(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(label, text) of what was said before the answer. The words and pictures of one message stand together."""
    for message in messages_from_body(body):
        for in_words, parts in groupby(message, lambda part: part.kind in ("text", "media")):
            said = [(part.role if in_words else _LABELS.get(part.kind, part.name), _asked(part)) for part in parts]
            if in_words:
                said = [(said[0][0], "\n".join(text for _, text in said))]
            yield from (each for each in said if each != ("assistant", ""))


def _asked(part: Part) -> str:
    """A part as text, without what nobody can read."""
    if part.kind == "call":
        return f"{part.name}({part.text})"
    if part.kind != "media":
        return _FILE.sub(lambda found: _shortened(found[0]), part.text) if part.kind == "output" else part.text
    source = member(loads(part.text), "image_url")
    source = source.get("url") if isinstance(source, dict) else source
    return f"[{part.name}: {_shortened(source)}]" if isinstance(source, str) else f"[{part.name}]"


def _shortened(url: str) -> str:
    return url if len(url) <= 80 else f"{url[:30]}… {len(url):,} characters"


def _show_answers(screen: Screen, summary: Summary, told: Told) -> None:
    answers = {number: parts for number, heard in told.answers.items() if (parts := heard.parts)}
    if not answers:
        if not (answered := told.client.answer().parts):
            screen.line("Nothing.")
            return
        refused = told.request and told.end and not told.start
        why = "no backend was asked" if refused else "the backend's own words are not in the log"
        screen.line(screen.style(f"(as the client got it: {why})", "dim"))
        answers = {0: answered}
    for number, parts in sorted(answers.items()):
        if len(answers) > 1:
            screen.line(screen.style(f"answer {number + 1}", "bold"))
        for part in parts:
            _show_part(screen, summary, part)


def _show_part(screen: Screen, summary: Summary, part: Part) -> None:
    if part.kind == "text":
        screen.line(screen.style("[assistant]", "green"))
        for piece in _BLOCK.split(part.text):
            if piece.startswith(OPEN_TAG):
                _text(screen, piece, indent="▶ ", styles=("yellow",))
            elif piece.strip():
                _text(screen, piece.strip("\n"))
    elif part.kind == "reasoning":
        screen.line(screen.style("[reasoning]", "dim"))
        _text(screen, part.text, styles=("dim",))
    elif part.kind == "call":
        invalid = part.name in summary.invalid_arguments and not is_json(part.text)
        screen.line(screen.style("[call: the arguments are not JSON]" if invalid else "[call]", "yellow"))
        _text(screen, part.words, indent="▶ ", styles=("yellow",))
    else:
        screen.line(screen.style(f"[{part.kind}]", "red" if part.kind == "error" else "yellow"))
        _text(screen, part.text)


def _show_notes(screen: Screen, summary: Summary, told: Told) -> None:
    for kind, payload in told.notes:
        name = payload.get("name")
        if kind == "tool_call":
            _text(screen, f"called    {name}  {payload.get('call_id', '')}", indent="")
        elif kind == "tool_repair":
            repairs = payload.get("repairs")
            for repair in repairs if isinstance(repairs, list) else ():
                _text(screen, f"repaired  {f'{name}: ' if name else ''}{explain_repair(str(repair))}", indent="")
        elif kind == "tool_reject":
            reason = explain_reject(str(payload.get("reason")), payload)
            _text(screen, f"rejected  {f'{name}: ' if name else ''}{reason}", indent="", styles=("red",))
            if isinstance(payload.get("source"), str):
                _text(screen, payload["source"], indent="            ", styles=("dim",))
    for name in summary.invalid_arguments:
        _text(screen, f"invalid   {name}: the arguments are not JSON", indent="", styles=("red",))


def _show_end(screen: Screen, summary: Summary, told: Told) -> None:
    outcome = told_outcome(summary)
    style = _OUTCOMES.get(summary.outcome, "yellow")
    status = f", HTTP {told.status}" if told.status is not None else ""
    times = []
    if summary.first_event_s is not None:
        times.append(f"first event after {summary.first_event_s:.3f} s")
    if summary.total_s is not None:
        times.append(f"{summary.total_s:.3f} s in all")
    screen.line(screen.style(one_line(outcome), style) + status + (f", {', '.join(times)}" if times else ""))
    if summary.outcome == "unfinished":
        screen.line("The log does not tell its end: it still runs, the bridge was stopped, or the log was cut.")
    if summary.input_tokens is not None or summary.output_tokens is not None:
        screen.line(
            f"tokens: {summary.input_tokens or 0:,} in ({summary.cached_tokens or 0:,} cached), "
            f"{summary.output_tokens or 0:,} out ({summary.reasoning_tokens or 0:,} reasoning)"
        )
    error = told.end.get("error")
    if isinstance(error, dict):
        _text(screen, str(error.get("message") or "no message"), styles=("red",))
        for line in explain_error(error):
            _text(screen, line)
        if told.exit is not None:
            _show_exit(screen, told.exit)
    elif summary.message:
        _text(screen, summary.message, styles=("red",))


def _show_exit(screen: Screen, exit: dict[str, Any]) -> None:
    words = last_words(exit).splitlines()
    _text(screen, f"The child {exit_cause(exit)}{'. Its last words on stderr:' if words else ', silently.'}")
    for line in words[-LAST_WORDS:]:
        _text(screen, line, indent="    ", styles=("dim",))


def _title(screen: Screen, name: str) -> None:
    width = min(screen.width, 80)
    screen.line()
    screen.line(screen.style(f"── {name} {'─' * (width - len(name) - 4)}", "dim"))


def _text(screen: Screen, text: str, *, indent: str = "  ", styles: tuple[str, ...] = ()) -> None:
    """A recorded text, indented, wrapped on a terminal, and harmless."""
    for line in printable(text).split("\n"):
        wrapped = [line]
        if screen.on_terminal and len(line) > screen.width - len(indent):
            room = screen.width - len(indent)
            wrapped = textwrap.wrap(line, room, replace_whitespace=False, break_on_hyphens=False) or [""]
        for each in wrapped:
            screen.line((indent + (screen.style(each, *styles) if styles else each)).rstrip())
