"""How two requests differ: in the request, the backend's output, the client's answer, and the outcome."""

from __future__ import annotations

import difflib
import os
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import orjson

from bridge import exact_json
from bridge.log.commands.requests import find_request
from bridge.log.commands.show import Conversation
from bridge.log.content import sent_values
from bridge.log.filters import Filters, chosen
from bridge.log.log import Log
from bridge.log.record import TOKENS
from bridge.log.request import Part
from bridge.log.summary import Summary
from bridge.terminal import Screen, escape_block, escape_line

MAX_LINES = 4000
"""Longer texts are compared only this far, from the first line that differs."""
CONTEXT = 3
_ID = re.compile(
    r"(?:[a-z]{1,12}[_-])?(?:[0-9a-f]{12,}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?:req|resp|msg|rs|fc|ctc|ws|call|chatcmpl|turn|item|conv|thread|toolu)[_-][0-9A-Za-z_-]+"
)
_TIMES = frozenset(
    {
        "created", "created_at", "createdAt", "completed_at", "updatedAt", "recencyAt", "emittedAtMs", "expires_at",
        "timestamp", "duration_ms", "ttft_ms",
    }
)  # fmt: skip
_ISO = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)")
_PER_RUN = frozenset({"sequence_number", "obfuscation", "system_fingerprint"})
_COUNTS = (*TOKENS, "calls", "repairs", "invalid_arguments", "model", "backend")

View = dict[str, list[str]]
"""The parts of a request, each as lines to compare, by title."""


def compare_requests(screen: Screen, logs: Sequence[Log], names: Sequence[str]) -> bool:
    """Show how two requests differ. Returns whether they are the same."""
    left, right = [(log, find_request(log, name)) for log, name in zip(logs, names, strict=True)]
    screen.progress.clear()
    same = _show(screen, left, right)
    if same:
        screen.line("no difference")
    return same


def compare_logs(screen: Screen, logs: Sequence[Log], filters: Filters) -> bool:
    """Show how the requests of two logs differ, in pairs. Returns whether all are the same."""
    first, second = logs
    partners: defaultdict[tuple[str, str], deque[Summary]] = defaultdict(deque)
    for summary in chosen(second, filters):
        partners[summary.path, summary.requested_model or summary.model].append(summary)
    alone, pairs, different = [], 0, 0
    for summary in chosen(first, filters):
        queue = partners[summary.path, summary.requested_model or summary.model]
        if queue:
            pairs += 1
            different += not _show(screen, (first, summary), (second, queue.popleft()))
        else:
            alone.append(summary)
    rest = [summary for queue in partners.values() for summary in queue]
    screen.progress.clear()
    for log, summaries in ((first, alone), (second, rest)):
        for summary in summaries:
            screen.line(screen.style(f"only in {escape_line(str(log.path))}: {_title(summary)}", "yellow"))
    counts = f"{pairs:,} pairs, {pairs - different:,} without a difference, {different:,} with"
    screen.line(f"{counts}; {len(alone):,} only in the first log, {len(rest):,} only in the second")
    return not (different or alone or rest)


def split_name(text: str) -> tuple[Path, str]:
    """The log and the request (or nothing) of LOG[:REQUEST]. The name of a file may contain a colon."""
    log, colon, request = text.rpartition(":")
    return (Path(log), request) if colon and log and not os.path.exists(text) else (Path(text), "")


def _show(screen: Screen, left: tuple[Log, Summary], right: tuple[Log, Summary]) -> bool:
    before, after = Conversation(*left), Conversation(*right)
    # The events of a stream have nothing in common with a body: then only the texts are compared.
    by_event = before.recording.streamed == after.recording.streamed
    ours, theirs = _view(before, by_event=by_event), _view(after, by_event=by_event)
    if ours == theirs:
        return True
    screen.line(screen.style(f"--- {_title(left[1])}", "bold"))
    screen.line(screen.style(f"+++ {_title(right[1])}", "bold"))
    for title, lines in ours.items():
        if lines != theirs[title]:
            screen.line(screen.style(f"@@ {title}", "cyan"))
            for line in _difference(lines, theirs[title]):
                style = {"-": ("red",), "+": ("green",)}.get(line[0], ())
                screen.line(screen.style(escape_block(line), *style))
    screen.line()
    return False


def _title(summary: Summary) -> str:
    return escape_line(f"{summary.id} {summary.path} {summary.requested_model or summary.model}")


def _difference(before: list[str], after: list[str]) -> Iterator[str]:
    """A unified diff without its head."""
    # difflib takes quadratic time, and what both begin with needs no comparison.
    same = next((at for at, pair in enumerate(zip_longest(before, after)) if pair[0] != pair[1]), 0)
    begin = max(0, same - CONTEXT)
    left, right = before[begin : begin + MAX_LINES], after[begin : begin + MAX_LINES]
    for number, line in enumerate(difflib.unified_diff(left, right, lineterm="", n=CONTEXT)):
        if number >= 2 and not line.startswith("@@"):
            yield line
        elif number > 2:
            yield "  …"
    if max(len(before), len(after)) > begin + MAX_LINES:
        yield f"  … not compared any further than {MAX_LINES:,} lines from the first difference"


def _view(conversation: Conversation, *, by_event: bool) -> View:
    """A request without what differs in every run."""
    summary, recording, numbers = conversation.summary, conversation.recording, IdNumbers()
    request = {"body": conversation.body} | conversation.request | {"path": summary.path}
    rejects = [payload.get("reason") for kind, payload in recording.notes if kind == "tool_reject"]
    end = {
        "outcome": summary.outcome,
        "reason": summary.reason,
        "error": conversation.end.get("error") or summary.error,
        "rejected": rejects,
        **{name: getattr(summary, name) for name in _COUNTS},
    }
    asked = _pretty(numbers.without(request))  # first: this numbers its ids
    events = [value for piece in recording.client for value in sent_values(piece.kind, piece.payload)]
    sent = [line for event in _joined(events) for line in _pretty(numbers.without(event))]
    status = [f"HTTP {recording.head.get('status')}"] if recording.head else []
    return {
        "the request": asked,
        "the backend's output": [
            line for number, parts in conversation.answers.items() for line in _texts(parts, number)
        ],
        "the client's answer": status + (sent if by_event else _texts(conversation.client, 0)),
        "the outcome": _pretty(end),
    }


class IdNumbers:
    """Replaces ids by their numbers in the order in which they appear, and times by a constant."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def without(self, value: Any) -> Any:
        """The same value without ids and times."""
        if isinstance(value, dict):
            return {
                key: "<time>" if key in _TIMES and _is_time(member) else self.without(member)
                for key, member in value.items()
                if key not in _PER_RUN
            }
        if isinstance(value, list):
            return [self.without(member) for member in value]
        if isinstance(value, str) and len(value) <= 80 and _ID.fullmatch(value):
            return self._numbers.setdefault(value, f"<id {len(self._numbers) + 1}>")
        return value


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and _ISO.fullmatch(value) is not None)


def _joined(events: Iterable[Any]) -> Iterator[Any]:
    """Events with neighbouring pieces of one text joined: how a text is split into deltas is chance."""
    for key, group in groupby(map(_piece, events), lambda piece: piece[:2]):
        about, name = key
        if name:
            yield about | {name: "".join(text for _, _, text in group)}
        else:
            yield from (about for about, _, _ in group)


def _piece(event: Any) -> tuple[Any, str, str]:
    """What all pieces of this text have in common, the name of the text, and the piece; or the event alone."""
    if not isinstance(event, dict):
        return event, "", ""
    if isinstance(event.get("delta"), str):
        return {name: each for name, each in event.items() if name not in _PER_RUN | {"delta"}}, "delta", event["delta"]
    if event.get("op") == "delta" and isinstance(event.get("p"), str):
        return {"op": "delta"}, "p", event["p"]
    choices = event.get("choices")
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        delta = choices[0].get("delta")
        if isinstance(delta, dict) and len(delta) == 1 and not choices[0].get("finish_reason"):
            [(name, text)] = delta.items()
            if isinstance(text, str) and name in ("content", "reasoning_content"):
                return {"object": event.get("object"), "index": choices[0].get("index"), "of": name}, "delta", text
    return event, "", ""


def _pretty(value: Any) -> list[str]:
    """JSON as lines. Long strings are broken at their newlines, so that a difference in a text is one line."""
    if isinstance(value, str):
        return [value]
    lines = []
    data = exact_json.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS, default=str)
    for line in data.decode().split("\n"):
        first, *rest = line.split("\\n") if len(line) > 80 else [line]
        lines += [first, *(f"      {each}" for each in rest)]
    return lines


def _texts(parts: list[Part], number: int) -> list[str]:
    lines = []
    for part in parts:
        lines.append(f"[{part.kind} of answer {number + 1}]" if number else f"[{part.kind}]")
        lines += [f"  {line}" for line in part.words.split("\n")]
    return lines
