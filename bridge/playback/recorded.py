"""One recording as an answer: what was asked and allowed, and the settings, ids and times that give the same again."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from math import inf
from typing import Any, get_args, get_type_hints

from bridge.app.service import AnswerSettings, Service
from bridge.cap import ASSIST_PATHS, RUN, SOCKET_PATH
from bridge.core.models import ModelChoice
from bridge.errors import BridgeError
from bridge.exact_json import member
from bridge.log.content import sent_values
from bridge.log.recording import Recording
from bridge.playback.backend import ReplayBackend, copy_limits, recorded_end
from bridge.protocols.cap import AssistRules, ConversationState
from bridge.protocols.cap.decoder import clock_readings, effective_meta
from bridge.protocols.registry import protocol_at
from bridge.routing.router import Router

_OTHERS: Mapping[str, str] = {"exec": "responses", **dict.fromkeys((*ASSIST_PATHS, SOCKET_PATH, RUN), "cap")}


def spoken_at(path: str) -> str | None:
    """The protocol of a path whose answers can be played."""
    protocol = protocol_at(path)
    return protocol.name if protocol is not None else _OTHERS.get(path)


def request_body(recording: Recording) -> dict[str, Any]:
    """The body of a recorded request; over the WebSocket of the Responses API it may be wrapped."""
    body = recording.body or {}
    nested = body.get("response")
    may_be_wrapped = "input" not in body and spoken_at(recording.path) == "responses"
    return nested if may_be_wrapped and isinstance(nested, dict) else body


def why_unplayable(recording: Recording) -> str | None:
    if recording.request is None:
        return "its request is not in the log"
    if spoken_at(recording.path) is None:
        return f"answers of {recording.path or 'this kind'} are not played"
    if recording.body is None:
        return "its body could not be read"
    if recording.path == "exec" and not recording.attempts and (recording.start or {}).get("backend") == "mock":
        return "the mock of exec has no backend to play"
    return None


def recorded_settings(recording: Recording) -> dict[str, Any]:
    """The settings of the recorded bridge that decide about answers."""
    settings = recording.header.get("settings")
    return settings if isinstance(settings, dict) else {}


class NoRecording(BridgeError):
    """The log contains no such request."""

    code = "no_recording"
    http_status = 404
    kind = "invalid_request_error"


def play(service: Service, recording: Recording, speed: float = 0, *, copies: bool = True) -> AnswerSettings:
    """The settings with which any request gets the answer of this recording, with its ids and times.

    `copies`: whether the backend's messages are recorded again. Raises the error with which a CAP request was refused,
    if reading it again cannot raise that.
    """
    if spoken_at(recording.path) == "cap":
        refuse_again(recording)
    names, recorder = RecordedIds(recording), service.recorder if copies and service.recorder.keeps_answers else None
    if recorder is not None and recording.limits is not None:
        copy_limits(recorder, recording.limits)
    backend = ReplayBackend(recording, new_id=names.new_id, speed=speed, recorder=recorder)
    settings = recorded_settings(recording)
    reasoning, state = settings.get("reasoning"), recording.client_header("x-conversation")
    return AnswerSettings(
        RecordedRouter(backend),
        names.new_id,
        now=names.now,
        hold=_hold(recording, speed),
        reasoning=reasoning if reasoning in ("content", "think", "hidden") else service.reasoning,
        stream_default=bool(settings.get("stream_default", service.stream_default)),
        cap=replace(service.cap, rules=recorded_rules(service.cap.rules, recording)),
        recorded_state=next((known for known in get_args(ConversationState) if known == state), None),
        # The bridge never sends packets without text, but `log redact` leaves them.
        keeps_empty=b'"op":"delta","p":""' in recording.sent or b'"data":{"thought":"",' in recording.sent,
        answered_by=recording.client_header("x-bridge-answered-by"),
        forgiving=recording.start is not None,
    )


def _hold(recording: Recording, speed: float) -> float:
    """Seconds to hold the answer back. It begins as a stream if and only if the recorded answer did.

    An answer that began with its first word waits for that again: until then there is news for the response headers.
    """
    first = next((piece.mono for piece in recording.client if piece.kind == "client_sse" and piece.payload), None)
    if first is None:
        return inf if recording.client else 0.0
    waited = max(0.0, first - recording.at)
    if speed > 0:
        return waited / speed
    hold = recorded_settings(recording).get("status_hold", 2.0)  # older logs were written when it was fixed
    if not isinstance(hold, (int, float)):
        hold = inf  # JSON has no infinity
    return inf if recording.status is not None and waited < hold else 0.0


# CAP

_NOT_REPRODUCIBLE = frozenset(
    {
        "conversation_not_found",
        "forbidden",
        "model_not_found",
        "no_recording",
        "request_id_conflict",
        "turn_busy",
        "unknown_agent",
    }
)
"""Refusals that depend on the operator's settings or on other requests at that time."""


def refuse_again(recording: Recording) -> None:
    """Raise the error with which a request was refused before its turn began, unless parsing it raises that again."""
    if recording.start is None and recording.end is not None:
        error = recorded_end(recording).error
        if error is not None and (error.kind != "invalid_request_error" or error.code in _NOT_REPRODUCIBLE):
            raise error


def recorded_rules(rules: AssistRules, recording: Recording) -> AssistRules:
    """Rules that allow what the request was allowed. They need not be the current ones: a replay executes nothing."""
    model = str((recording.start or {}).get("requested_model") or "unknown")
    asked = effective_meta(member(recording.body, "payload", "meta")).get("approval_policy")
    policies = get_args(get_type_hints(AssistRules)["approval_policy"])
    return replace(
        rules,
        default_model=model,
        agent_model=lambda _: model,
        sandbox="danger-full-access",
        approval_policy=next((policy for policy in policies if policy == asked), rules.approval_policy),
        cwd="/",
    )


class RecordedRouter(Router):
    """Leads every model name to one recording."""

    def __init__(self, backend: ReplayBackend) -> None:
        super().__init__(backend)
        self._backend = backend

    def backend(self, name: str) -> ReplayBackend:
        return self._backend

    def resolve(self, requested: str, *, keyed: bool = False) -> ModelChoice:
        return self._backend.resolve(requested)

    async def wait_for(self, requested: str) -> None:
        return


class RecordedIds:
    """The ids and times of a recorded answer, given out again in their order, so that it can be made byte for byte.

    They are read from what the client got: all ids there that neither the backend nor the request had. Those that the
    client did not get are derived from the recording, so that every replay gives the same.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording.id
        self._made = Counter[str]()
        self._ids: defaultdict[str, deque[str]] = defaultdict(deque)
        values = (value for piece in recording.client for value in sent_values(piece.kind, piece.payload))
        sent = [value for value in values if isinstance(value, dict)]
        # In CAP only a header has the id of a conversation.
        ids = [value for name, value in recording.headers or () if name == "x-conversation-id"]
        ids += _ids_in(sent, lambda name: name in ("id", "item_id", "call_id"))
        given = [*(frame.payload for frame in recording.frames if frame.direction == "in"), recording.body]
        foreign = set(_ids_in(given, lambda name: name.lower().endswith("id")))
        for name in dict.fromkeys(ids):
            prefix, _, rest = name.replace("-", "_", 1).partition("_")
            if rest and name not in foreign:
                self._ids[prefix].append(f"{prefix}_{rest}")
        times = clock_readings(sent, recording.end) or dict.fromkeys(_times_in(sent))
        self._times = deque(times or _request_times(recording))

    def new_id(self, prefix: str) -> str:
        """The next recorded id with this prefix; after the last, a derived one."""
        if self._ids[prefix]:
            return self._ids[prefix].popleft()
        self._made[prefix] += 1
        name = f"{self._recording} {prefix} {self._made[prefix]}".encode("utf-8", "surrogatepass")
        return f"{prefix}_{blake2b(name, digest_size=16).hexdigest()}"

    def now(self) -> float:
        """The next recorded time; the last one repeats."""
        return self._times.popleft() if len(self._times) > 1 else self._times[0]


def _ids_in(value: Any, is_id: Callable[[str], bool]) -> Iterator[str]:
    """The strings in members that are ids, in their order; those of an object before those within it."""
    stack = [value]
    while stack:  # no recursion: a log may be nested as deep as JSON can be parsed
        node = stack.pop()
        if isinstance(node, dict):
            yield from (text for name, text in node.items() if isinstance(text, str) and is_id(name))
            stack += reversed(node.values())
        elif isinstance(node, list):
            stack += reversed(node)


def _times_in(sent: list[dict[str, Any]]) -> Iterator[float]:
    """When the answer was begun, and completed."""
    for event in sent:
        holder = event.get("response", event)
        for name in ("created_at", "created", "completed_at"):
            if isinstance(value := member(holder, name), int | float):
                yield float(value)


def _request_times(recording: Recording) -> tuple[float, float]:
    """When the request arrived and when its turn ended; from 0 in a transcript, which has no dates."""
    try:
        begun = datetime.fromisoformat(recording.ts).timestamp()
    except (ValueError, OverflowError):
        begun = 0.0
    ended = recording.at if recording.end_mono is None else recording.end_mono
    return begun, begun + max(0.0, ended - recording.at)
