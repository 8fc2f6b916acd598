"""One request in words: input, answer, tool calls, end; or its records, one per line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from bridge import exact_json
from bridge.exact_json import is_json, member, text_of, try_loads
from bridge.log.commands.requests import local_time, show_outcome, show_time
from bridge.log.content import backend_answers, client_answer
from bridge.log.log import Log
from bridge.log.recording import EXIT, Recording, exit_cause, last_words, read_recordings
from bridge.log.request import Part, messages_from_body, tools_offered
from bridge.log.summary import Summary
from bridge.terminal import Screen, cells, escape_block, escape_line, fit
from bridge.tools.payload import CLOSE_TAG, OPEN_TAG

_REPAIRS = {
    "trailing_comma": "a trailing comma was removed",
    "code_fence": "a code fence around it was removed",
    "surplus_suffix": "characters after the object were removed",
    "array_unwrapped": "the array around it was removed",
    "array_split": "an array of calls became several calls",
    "arguments_coerced": "the arguments were an object and became a JSON string",
    "unclosed": "the closing tag was missing",
    "damaged_json": "the block was damaged after its arguments had begun to stream; they end where they broke off",
}
_REJECTS = {
    "bad_json": "the text between the tags is not JSON",
    "not_an_object": "the text between the tags is not an object",
    "no_name": "it does not name a tool",
    "bad_arguments": "the arguments are not a JSON string of an object",
    "unknown_tool": "the request offered no tool of this name",
    "schema_mismatch": "the arguments do not fit the tool's schema",
    "not_parallel": "the request allowed one call at a time, and this is another",
    "choice_unmet": "the request demanded a call, and the model made none",
}
_ARROWS = {
    ("http_ingress", "in"): ("client →", "cyan"),
    ("client_egress", "out"): ("client ←", "cyan"),
    ("backend_submission", "out"): ("→ backend", "blue"),
    ("backend_io", "out"): ("→ backend", "blue"),
    ("backend_io", "in"): ("← backend", "blue"),
}
_KINDS = {"rpc_request": "", "rpc_notification": "", "rpc_response": "answer to ", "rpc_error": "error to "}
_BLOCK = re.compile(f"({re.escape(OPEN_TAG)}.*?(?:{re.escape(CLOSE_TAG)}|\\Z))", re.DOTALL)
_FILE = re.compile(r'(?<=")data:[^"]{76,}(?=")')
_LABELS = {"call": "call", "output": "result", "reasoning": "reasoning"}
_ROLES = {"user": "cyan", "assistant": "green", "call": "yellow", "result": "yellow"}
_OUTCOMES = {"completed": "green", "failed": "red"}
LAST_WORDS = 12
"""Lines of a child's stderr that are shown; `--json` has more."""


def show_frames(screen: Screen, summary: Summary, records: Iterable[dict[str, Any]]) -> None:
    """The records of one request, with the seconds since it came."""
    screen.line(screen.style(f"{escape_line(summary.id)}  {show_time(summary.time).strip()}", "bold"))
    began: float | None = None
    for record in records:
        began = record["mono"] if began is None else began
        screen.line(show_record(screen, record, f"{record['mono'] - began:+10.4f}"))


def show_record(screen: Screen, record: dict[str, Any], when: str) -> str:
    """One record on one line: when, from where to where, what, and how its content begins."""
    arrow, style = _ARROWS.get((record["phase"], record.get("direction", "")), ("· bridge", "magenta"))
    kind, method = str(record["kind"]), record.get("method")
    what = f"{_KINDS[kind]}{method}" if isinstance(method, str) and kind in _KINDS else kind
    attempt = str(record["req_id"] or "").partition("#")[2]
    what = escape_line(f"#{attempt} {what}" if attempt else what)
    left = screen.width - len(when) - 12 - max(24, cells(what)) - 2
    content = fit(_content(record.get("payload")), left).rstrip() if left >= 8 else ""
    return f"{when}  {screen.style(f'{arrow:9}', style)} {what}{' ' * max(1, 25 - cells(what))}{content}".rstrip()


def _content(payload: Any) -> str:
    """What a record carries, without what all of its kind carry."""
    if isinstance(payload, dict) and ("method" in payload or "id" in payload):
        inner = (payload.get(name) for name in ("params", "result", "error"))
        payload = next((each for each in inner if isinstance(each, dict)), payload)
        if isinstance(payload.get("delta"), str):
            payload = payload["delta"]
    if isinstance(payload, str):
        return payload
    return exact_json.dumps(payload, default=str)[:2000].decode("utf-8", "replace")


class Conversation:
    """One request, put together from its records, with the answers that its backend gave and the client got."""

    def __init__(self, log: Log, summary: Summary) -> None:
        self.summary = summary
        records = list(log.records(summary))
        recordings = list(read_recordings((log.path, record) for record in records))
        self.recording = recordings[0] if recordings else Recording(summary.id, log.path)
        self.recording.exit = next((each.get("payload") for each in records if each["kind"] == EXIT), None)
        self.request, self.start = self.recording.request or {}, self.recording.start or {}
        self.end = self.recording.end or {}
        made_up = None if self.request else self.recording.made_up_body()
        self.body = self.recording.body or made_up or {}
        """The input; made up from the calls to the child if no client is in the log."""
        self.answers = backend_answers(self.recording)
        self.client = client_answer(self.recording).parts


def show_conversation(screen: Screen, conversation: Conversation) -> None:
    summary = conversation.summary
    _show_head(screen, conversation)
    _title(screen, "asked")
    _show_asked(screen, conversation)
    _title(screen, "answered")
    _show_answers(screen, conversation)
    if conversation.recording.notes or summary.invalid_arguments:
        _title(screen, "calls")
        _show_notes(screen, conversation)
    _title(screen, "ended")
    _show_end(screen, conversation)


def _show_head(screen: Screen, conversation: Conversation) -> None:
    summary, start = conversation.summary, conversation.start
    time = local_time(summary.time)
    screen.line(screen.style(escape_line(summary.id), "bold") + (f"  {time:%Y-%m-%d %H:%M:%S %Z}" if time else ""))
    model = summary.requested_model or summary.model
    if summary.model and summary.model != model:
        model += f" → {summary.model}"
    streamed = "streamed" if conversation.recording.streamed else ""
    effort = f"effort {start['effort']}" if start.get("effort") else ""
    about = [summary.path or "path unknown", streamed, model, summary.backend, effort]
    screen.line(escape_line(" · ".join(part for part in about if part)))
    dropped = start.get("dropped")
    if isinstance(dropped, list) and dropped:
        screen.line(escape_line(f"left out, because the backend does not support it: {', '.join(map(str, dropped))}"))
    if not summary.begun:
        screen.line("The beginning of this request is not in the log.")


def _show_asked(screen: Screen, conversation: Conversation) -> None:
    body, request = conversation.body, conversation.request
    messages, names = list(_messages(body)), tools_offered(body)
    for label, text in messages or ([("body", text_of(body))] if body and not names else []):
        screen.line(screen.style(f"[{escape_line(label)}]", _ROLES.get(label, "dim")))
        _text(screen, text)
    if names:
        _text(screen, f"tools: {', '.join(names)}", indent="")
    if request.get("unreadable") is not None:
        screen.line(escape_line(f"The body could not be read ({request['unreadable']} bytes)."))
    elif request.get("unread"):
        screen.line("The body was not read.")
    elif not body:
        screen.line("Nothing." if request else "Not in the log.")


def _messages(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(label, text) of the messages before the answer. The words and pictures of one message stand together."""
    for message in messages_from_body(body):
        for in_words, group in groupby(message, lambda part: part.kind in ("text", "media")):
            parts = [(part.role if in_words else _LABELS.get(part.kind, part.name), _asked(part)) for part in group]
            if in_words:
                parts = [(parts[0][0], "\n".join(text for _, text in parts))]
            yield from (each for each in parts if each != ("assistant", ""))


def _asked(part: Part) -> str:
    """A part as text, without the bytes of files."""
    if part.kind == "call":
        return f"{part.name}({part.text})"
    if part.kind != "media":
        return _FILE.sub(lambda found: _shortened(found[0]), part.text) if part.kind == "output" else part.text
    source = member(data := try_loads(part.text), "image_url") or member(data, "file_data")
    source = source.get("url") if isinstance(source, dict) else source
    return f"[{part.name}: {_shortened(source)}]" if isinstance(source, str) else f"[{part.name}]"


def _shortened(url: str) -> str:
    return url if len(url) <= 80 else f"{url[:30]}… {len(url):,} characters"


def _show_answers(screen: Screen, conversation: Conversation) -> None:
    answers = conversation.answers
    if not answers:
        if not conversation.client:
            screen.line("Nothing.")
            return
        refused = conversation.request and conversation.end and not conversation.start
        why = "no backend was called" if refused else "the backend's output is not in the log"
        screen.line(screen.style(f"(as the client got it: {why})", "dim"))
        answers = {0: conversation.client}
    for number, parts in answers.items():
        if len(answers) > 1:
            screen.line(screen.style(f"answer {number + 1}", "bold"))
        for part in parts:
            _show_part(screen, conversation.summary, part)


def _show_part(screen: Screen, summary: Summary, part: Part) -> None:
    if part.kind == "text":
        screen.line(screen.style("[assistant]", "green"))
        for piece in _BLOCK.split(part.text):
            if piece.startswith(OPEN_TAG):
                _text(screen, piece, indent="▶ ", style="yellow")
            elif piece.strip():
                _text(screen, piece.strip("\n"))
    elif part.kind == "reasoning":
        screen.line(screen.style("[reasoning]", "dim"))
        _text(screen, part.text, style="dim")
    elif part.kind == "call":
        invalid = part.name in summary.invalid_arguments and not is_json(part.text)
        screen.line(screen.style("[call: the arguments are not JSON]" if invalid else "[call]", "yellow"))
        _text(screen, part.words, indent="▶ ", style="yellow")
    else:
        screen.line(screen.style(f"[{part.kind}]", "red" if part.kind == "error" else "yellow"))
        _text(screen, part.text)


def _show_notes(screen: Screen, conversation: Conversation) -> None:
    for kind, payload in conversation.recording.notes:
        name = payload.get("name")
        tool = f"{name}: " if name else ""
        if kind == "tool_call":
            _text(screen, f"called    {name}  {payload.get('call_id', '')}", indent="")
        elif kind == "tool_repair" and isinstance(payload.get("repairs"), list):
            for repair in map(str, payload["repairs"]):
                meaning = f": {_REPAIRS[repair]}" if repair in _REPAIRS else ""
                _text(screen, f"repaired  {tool}{repair}{meaning}", indent="")
        elif kind == "tool_reject":
            reason, choice = str(payload.get("reason")), payload.get("tool_choice")
            meaning = f": {_REJECTS[reason]}" if reason in _REJECTS else ""
            demanded = f" (tool_choice {choice})" if choice else ""
            _text(screen, f"rejected  {tool}{reason}{meaning}{demanded}", indent="", style="red")
            if isinstance(payload.get("source"), str):
                _text(screen, payload["source"], indent="            ", style="dim")
    for name in conversation.summary.invalid_arguments:
        _text(screen, f"invalid   {name}: the arguments are not JSON", indent="", style="red")


def _show_end(screen: Screen, conversation: Conversation) -> None:
    summary, status = conversation.summary, conversation.recording.head.get("status")
    about = [screen.style(escape_line(show_outcome(summary)), _OUTCOMES.get(summary.outcome, "yellow"))]
    about += [f"HTTP {status}"] if status is not None else []
    about += [f"first event after {summary.first_event_s:.3f} s"] if summary.first_event_s is not None else []
    about += [f"{summary.total_s:.3f} s in all"] if summary.total_s is not None else []
    screen.line(", ".join(about))
    if summary.outcome == "unfinished":
        screen.line("The log does not have its end: it still runs, the bridge was stopped, or the log was cut.")
    if summary.input_tokens is not None or summary.output_tokens is not None:
        screen.line(
            f"tokens: {summary.input_tokens or 0:,} in ({summary.cached_tokens or 0:,} cached), "
            f"{summary.output_tokens or 0:,} out ({summary.reasoning_tokens or 0:,} reasoning)"
            + ("" if summary.cost is None else f", {summary.cost:.6f} {summary.currency or ''}".rstrip())
        )
    error, exit = conversation.end.get("error"), conversation.recording.exit
    if isinstance(error, dict):
        _text(screen, str(error.get("message") or "no message"), style="red")
        for line in _explain_error(error):
            _text(screen, line)
        if exit is not None:
            words = last_words(exit).splitlines()
            more = ". Its last words on stderr:" if words else " and wrote nothing to stderr."
            _text(screen, f"The child {exit_cause(exit)}{more}")
            for line in words[-LAST_WORDS:]:
                _text(screen, line, indent="    ", style="dim")
    elif summary.message:
        _text(screen, summary.message, style="red")


def _explain_error(error: dict[str, Any]) -> Iterator[str]:
    """What an error means for the client, and what to do."""
    status, kind, param = error.get("http_status"), error.get("type"), error.get("param")
    about = [f"HTTP {status}" if status else "", str(kind or ""), f"parameter {param}" if param else ""]
    if any(about):
        yield " · ".join(filter(None, about))
    wait = error.get("retry_after")
    if isinstance(wait, int | float):
        yield f"What to do: try again after {wait:g} s, as the client was advised."
    elif error.get("severity") == "transient":
        yield "What to do: try again; it may go away by itself."
    elif kind == "invalid_request_error":
        yield "What to do: change the request; it fails the same way each time."
    elif error.get("severity") == "fatal":
        yield "What to do: trying again does not help; `turnbridge doctor` checks the setup."


def _title(screen: Screen, name: str) -> None:
    screen.line()
    screen.line(screen.style(f"── {name} {'─' * (min(screen.width, 80) - len(name) - 4)}", "dim"))


def _text(screen: Screen, text: str, *, indent: str = "  ", style: str = "") -> None:
    """A recorded text: escaped, indented, and wrapped on a terminal."""
    room = screen.width - len(indent)
    for line in escape_block(text).split("\n"):
        wrapped = [line]
        if screen.on_terminal and len(line) > room:
            wrapped = textwrap.wrap(line, room, replace_whitespace=False, break_on_hyphens=False) or [""]
        for each in wrapped:
            screen.line((indent + (screen.style(each, style) if style else each)).rstrip())
