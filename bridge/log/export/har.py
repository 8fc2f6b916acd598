"""HAR 1.2: an archive that browsers and HTTP tools open. One entry per request, written as they come.

The log has the path of a request, but neither its host nor its headers; an entry says what is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import orjson

from bridge import __version__
from bridge.log.export.turn import ExportedTurn
from bridge.log.filters import parse_log_time
from bridge.log.json_access import dump, dumps
from bridge.log.recording import Recording

ORIGIN = "http://localhost"
UNKNOWN_TIME = "1970-01-01T00:00:00.000Z"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_JSON = "application/json"
_COMMENT = "Made from an event log: secrets are removed, the host and the request's headers are not in the log."


def har_pieces(recordings: Iterable[Recording]) -> Iterator[bytes]:
    """The archive, in pieces."""
    creator = {"name": "turnbridge", "version": __version__}
    head = orjson.dumps({"version": "1.2", "creator": creator, "comment": _COMMENT})
    yield b'{"log":' + head[:-1] + b',"entries":['
    for number, recording in enumerate(recordings):
        yield (b",\n" if number else b"\n") + dump(har_entry(recording))
    yield b"\n]}}\n"


def har_entry(recording: Recording) -> dict[str, Any]:
    """One request and its answer."""
    turn = ExportedTurn(recording)
    recording, summary = turn.recording, turn.summary
    path, given, started = recording.path or "/", recording.request or {}, _time(recording.ts)
    body = dumps(given["body"]) if "body" in given else None
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
