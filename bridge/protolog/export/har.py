"""HAR 1.2: an archive that browsers and HTTP tools open. One entry per request, written as they come.

The log knows the path of a request and neither its host nor its headers; the entry says so where it matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import orjson

from bridge import __version__
from bridge.protolog.export.cleaned import cleaned
from bridge.protolog.export.summarised import summary_of
from bridge.protolog.loose import dump, dumps
from bridge.protolog.recording import Recording

ORIGIN = "http://localhost"
UNKNOWN_TIME = "1970-01-01T00:00:00.000Z"
HTTP = "HTTP/1.1"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_STREAM, _JSON, _LINES = "text/event-stream", "application/json", "application/x-ndjson"


def har_pieces(recordings: Iterable[Recording]) -> Iterator[bytes]:
    """The archive, in pieces."""
    creator = {"name": "codex-bridge", "version": __version__}
    comment = "Made from an event log: secrets are removed, the host and the request's headers were not on record."
    yield b'{"log":{"version":"1.2","creator":%b,"comment":%b,"entries":[' % (
        orjson.dumps(creator),
        orjson.dumps(comment),
    )
    for number, recording in enumerate(recordings):
        yield (b",\n" if number else b"\n") + dump(har_entry(recording))
    yield b"\n]}}\n"


def har_entry(recording: Recording) -> dict[str, Any]:
    """One request and its answer."""
    recording = cleaned(recording)
    remarks: list[str] = []
    started = _time(recording.ts)
    if started is None:
        remarks.append("the log does not tell when it was")
    wait, receive = _timings(recording)
    request, response = _request(recording, remarks), _response(recording, remarks)
    told = summary_of(recording)
    if not recording.complete:
        remarks.append("the end of the request is not in the log")
    entry = {
        "startedDateTime": started or UNKNOWN_TIME,
        "time": round(wait + receive, 3),
        "request": request,
        "response": response,
        "cache": {},
        "timings": {"blocked": -1, "dns": -1, "connect": -1, "send": 0, "wait": wait, "receive": receive, "ssl": -1},
        "_id": recording.id,
        "_model": told.model,
        "_backend": told.backend,
        "_outcome": told.outcome,
    }
    return entry | ({"comment": "; ".join(remarks)} if remarks else {})


def _request(recording: Recording, remarks: list[str]) -> dict[str, Any]:
    path = recording.path or "/"
    if not path.startswith("/"):
        remarks.append(f"`codex-bridge {path}`, which is no HTTP request")
        path = f"/{path}"
    given = recording.request or {}
    body = dumps(given["body"]) if "body" in given else None
    if body is None:
        remarks.append("the body was not read, or could not be")
    headers = [_pair("content-type", _JSON)] if body is not None else []
    request = {
        "method": "POST",
        "url": ORIGIN + path,
        "httpVersion": HTTP,
        "cookies": [],
        "headers": headers,
        "queryString": [],
        "headersSize": -1,
        "bodySize": len(body.encode()) if body is not None else -1,
    }
    return request if body is None else request | {"postData": {"mimeType": _JSON, "text": body, "params": []}}


def _response(recording: Recording, remarks: list[str]) -> dict[str, Any]:
    status, body = recording.status, _sent(recording)
    if status is None:
        remarks.append("the status is not on record")
    kinds = {piece.kind for piece in recording.client}
    headers = _headers(recording)
    told = next((pair["value"] for pair in headers if pair["name"].lower() == "content-type"), None)
    lines = "client_line" in kinds or (recording.streamed and body.startswith(b"{"))
    guess = _LINES if lines else _STREAM if "client_sse" in kinds else _JSON
    return {
        "status": status or 0,
        "statusText": _PHRASES.get(status or 0, ""),
        "httpVersion": HTTP,
        "cookies": [],
        "headers": headers,
        "content": {"size": len(body), "mimeType": told or guess, "text": body.decode("utf-8", "replace")},
        "redirectURL": "",
        "headersSize": -1,
        "bodySize": len(body),
    }


def _sent(recording: Recording) -> bytes:
    """The body that the client got."""
    parts = []
    for piece in recording.client:
        if piece.kind == "client_sse" and isinstance(piece.payload, str):
            parts.append(piece.payload.encode())
        elif piece.kind == "client_json":
            parts.append(dump(piece.payload))
        elif piece.kind == "client_line":
            parts.append(dump(piece.payload) + b"\n")
    return b"".join(parts)


def _headers(recording: Recording) -> list[dict[str, str]]:
    return [_pair(name, value) for name, value in recording.headers or ()]


def _timings(recording: Recording) -> tuple[float, float]:
    """(until the first thing was sent, from there to the last), in milliseconds."""
    times = [piece.mono for piece in recording.client]
    if not times:
        end = recording.end_mono if recording.end_mono is not None else recording.at
        return _milliseconds(end - recording.at), 0.0
    return _milliseconds(times[0] - recording.at), _milliseconds(max(times) - times[0])


def _milliseconds(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1000, 3)


def _time(ts: str) -> str | None:
    """A time of the log as HAR has them; None when it is none."""
    try:
        moment = datetime.fromisoformat(ts)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat(timespec="milliseconds")


def _pair(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}
