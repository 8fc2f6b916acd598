"""Requests and their answers as exports have them, and two of the exports: rows of JSON, and HAR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import orjson

from bridge import __version__
from bridge.exact_json import member, safe_dumps, try_loads
from bridge.log.content import Answer, Choice, backend_text, client_answer
from bridge.log.filters import parse_log_time
from bridge.log.record import TOKENS
from bridge.log.recording import EGRESS, Frame, Piece, Recording
from bridge.log.redact import Remover
from bridge.log.request import Part, tools_offered
from bridge.log.split_secrets import SplitSecretFinder
from bridge.log.summary import Summary
from bridge.redact import Redactor


class ExportedTurn:
    """A recording without secrets that were spelled out piece by piece, its summary, and the answer of the client.

    An export puts the pieces of a text together, or side by side, so a secret would become readable in it.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = cleaned(recording)
        self.summary = summary_of(self.recording)
        self.answer = collect_answer(self.recording)
        self.start = self.recording.start or {}

    @property
    def usage(self) -> dict[str, int] | None:
        """The tokens that are known; None when none are."""
        return {name: count for name in TOKENS if (count := getattr(self.summary, name)) is not None} or None

    @property
    def error(self) -> dict[str, Any] | None:
        """The members of the error that every export has."""
        error = self.answer.error
        names = ("code", "message", "http_status", "type", "param")
        return None if error is None else {name: member(error, name) for name in names}


def jsonl_row(recording: Recording) -> bytes:
    """The line of a recording. Every line has the same members; docs/event-log.md says what is in each."""
    turn = ExportedTurn(recording)
    recording, summary, answer = turn.recording, turn.summary, turn.answer
    row: dict[str, Any] = {
        "id": recording.id,
        "ts": recording.ts or None,
        "path": recording.path or None,
        "model": summary.model or None,
        "requested_model": summary.requested_model or None,
        "effort": turn.start.get("effort"),
        "backend": summary.backend or None,
        "status": recording.status,
        "streamed": recording.streamed,
        "outcome": summary.outcome,
        "reason": summary.reason,
        "first_event_s": summary.first_event_s,
        "total_s": summary.total_s,
        "usage": turn.usage or answer.usage,
        "tools": tools_offered(recording.body),
        "repairs": summary.repairs,
        "invalid_arguments": summary.invalid_arguments,
        "request": recording.body,
        "response_id": answer.response_id,
        "answered_by": answer.source,
        **_choice_members(answer.choices[0] if answer.choices else Choice()),
        "choices": [_choice_members(choice) for choice in answer.choices] if len(answer.choices) > 1 else None,
        "error": turn.error,
    }
    return Redactor().json(safe_dumps(row)) + b"\n"


def _choice_members(choice: Choice) -> dict[str, Any]:
    calls = []
    for call in choice.calls:
        calls.append({"id": call.call_id or None, "name": call.name, "arguments": call.text})
        if (parsed := try_loads(call.text)) is not None:
            calls[-1]["parsed"] = parsed
    return {
        "text": choice.joined("text"),
        "reasoning": choice.joined("reasoning"),
        "calls": calls,
        "finish_reason": choice.finish_reason,
    }


def summary_of(recording: Recording) -> Summary:
    """The summary of a recording, so that exports choose and describe requests as `log ls` does."""
    run = recording.header.get("run")
    summary = Summary(recording.id, run if isinstance(run, str) else "", recording.ts)
    summary.take_request(recording.request)
    summary.model = summary.requested_model
    for kind, payload in recording.notes:
        summary.take_note(kind, payload)
    summary.take_start(recording.start)
    summary.take_end(recording.end)
    return summary


def records_of(recording: Recording) -> Iterator[dict[str, Any]]:
    """The records with what the client sent and got and what the backend sent: what `--grep` searches."""
    yield {"phase": "http_ingress", "kind": "client_request", "payload": recording.request}
    for _, part in _parts(recording):
        yield _record(recording.id, part)
    yield {"phase": "turn", "kind": "turn_end", "payload": recording.end}


def collect_answer(recording: Recording) -> Answer:
    """The final answer of a recording, as much of it as was sent; where nothing of it was, as much as arrived."""
    answer = client_answer(recording)
    end = recording.end or {}
    # A transcript has no client; one that asked for an answer in the background got nothing but its name; and one that
    # wanted it whole gets nothing of an answer that fails.
    if not any(choice.parts for choice in answer.choices) and (text := backend_text(recording)):
        answer.choices, answer.source = [Choice([Part("assistant", "text", text)])], "backend"
    if isinstance(end.get("error"), dict):
        answer.error = end["error"]
    if isinstance(end.get("usage"), dict):
        answer.usage = end["usage"]
    return answer


def cleaned(recording: Recording) -> Recording:
    """The same without secrets that were spelled out piece by piece; the recording itself if it holds none."""
    records = [_record(req_id, part) for req_id, part in _parts(recording)]
    secrets = list(_split_secrets(records).shaped)
    if not secrets:
        return recording
    remover = Remover(secrets, split=_split_secrets(records, secrets))
    # Texts are replaced in place, so each record gets its own copy.
    payloads = (remover.entry(deepcopy(record), number)["payload"] for number, record in enumerate(records))
    return replace(
        recording,
        request=remover.value(recording.request),
        end=remover.value(recording.end),
        exit=remover.value(recording.exit),
        client=[replace(piece, payload=next(payloads)) for piece in recording.client],
        attempts={
            attempt: [replace(frame, payload=next(payloads)) for frame in frames]
            for attempt, frames in recording.attempts.items()
        },
        notes=[(kind, remover.value(payload)) for kind, payload in recording.notes],
    )


def _split_secrets(records: list[dict[str, Any]], secrets: Sequence[str] = ()) -> SplitSecretFinder:
    finder = SplitSecretFinder(secrets)
    for number, record in enumerate(records):
        finder.feed(number, record)
    return finder.end()


def _parts(recording: Recording) -> Iterator[tuple[str, Frame | Piece]]:
    """What the client was sent, then the messages of the backend, each with the `req_id` of its record."""
    yield from ((recording.id, piece) for piece in recording.client)
    for attempt, frames in recording.attempts.items():
        yield from ((f"{recording.id}#{attempt}", frame) for frame in frames)


def _record(req_id: str, part: Frame | Piece) -> dict[str, Any]:
    about = {"ts": "", "mono": part.mono, "seq": 0, "kind": part.kind, "req_id": req_id, "payload": part.payload}
    return about | ({"phase": "backend_io", "method": part.method} if isinstance(part, Frame) else {"phase": EGRESS})


# HAR 1.2: an archive that browsers and HTTP tools open. The log has the path of a request, but neither its host nor its
# headers; an entry says what is not known.

ORIGIN = "http://localhost"
UNKNOWN_TIME = "1970-01-01T00:00:00.000Z"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_JSON = "application/json"
_COMMENT = "Made from an event log: secrets are removed, the host and the request's headers are not in the log."


def har_pieces(recordings: Iterable[Recording]) -> Iterator[bytes]:
    creator = {"name": "turnbridge", "version": __version__}
    head = orjson.dumps({"version": "1.2", "creator": creator, "comment": _COMMENT})
    yield b'{"log":' + head[:-1] + b',"entries":['
    for number, recording in enumerate(recordings):
        yield (b",\n" if number else b"\n") + safe_dumps(har_entry(recording))
    yield b"\n]}}\n"


def har_entry(recording: Recording) -> dict[str, Any]:
    turn = ExportedTurn(recording)
    recording, summary = turn.recording, turn.summary
    path, given, started = recording.path or "/", recording.request or {}, _time(recording.ts)
    body = safe_dumps(given["body"]).decode() if "body" in given else None
    remarks = {
        "the log does not tell when it was": started is None,
        f"`turnbridge {path}`, which is not an HTTP request": not path.startswith("/"),
        "the body was not read, or could not be": body is None,
        "the status is not in the log": recording.status is None,
        "the end of the request is not in the log": not recording.complete,
    }
    request = {
        "method": "POST",
        "url": f"{ORIGIN}/{path.removeprefix('/')}",
        "headers": [] if body is None else [_pair("content-type", _JSON)],
        "queryString": [],
        "bodySize": -1 if body is None else len(body.encode()),
    }
    if body is not None:
        request["postData"] = {"mimeType": _JSON, "text": body, "params": []}
    status, sent = recording.status or 0, recording.sent
    response = {
        "status": status,
        "statusText": _PHRASES.get(status, ""),
        "headers": [_pair(name, value) for name, value in recording.headers or ()],
        "content": {"size": len(sent), "mimeType": _mime_type(recording), "text": sent.decode("utf-8", "replace")},
        "redirectURL": "",
        "bodySize": len(sent),
    }
    # HAR requires these of both.
    message = {"httpVersion": "HTTP/1.1", "cookies": [], "headersSize": -1}
    # Until the first thing was sent, and from there to the last.
    times = [piece.mono for piece in recording.client]
    end = recording.end_mono if recording.end_mono is not None else recording.at
    wait = _milliseconds((times[0] if times else end) - recording.at)
    receive = _milliseconds(max(times) - times[0]) if times else 0.0
    entry = {
        "startedDateTime": started or UNKNOWN_TIME,
        "time": round(wait + receive, 3),
        "request": request | message,
        "response": response | message,
        "cache": {},
        "timings": {"blocked": -1, "dns": -1, "connect": -1, "send": 0, "wait": wait, "receive": receive, "ssl": -1},
        "_id": recording.id,
        "_model": summary.model,
        "_backend": summary.backend,
        "_outcome": summary.outcome,
    }
    comment = "; ".join(remark for remark, applies in remarks.items() if applies)
    return entry | ({"comment": comment} if comment else {})


def _mime_type(recording: Recording) -> str:
    """What the header says; without one, what it must have been."""
    recorded = next((value for name, value in recording.headers or () if name.lower() == "content-type"), None)
    if recorded is not None:
        return recorded
    kinds = {piece.kind for piece in recording.client}
    if "client_line" in kinds or (recording.streamed and recording.sent.startswith(b"{")):
        return "application/x-ndjson"
    return "text/event-stream" if "client_sse" in kinds else _JSON


def _milliseconds(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1000, 3)


def _time(ts: str) -> str | None:
    """A time of the log as HAR has them; None if it is not a time."""
    moment = parse_log_time(ts)
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def _pair(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}
