"""Answers from recordings: each request gets the answer of an equal recorded one, played through the current code."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from bridge import exact_json
from bridge.app.service import AnswerSettings, Service
from bridge.appserver.standin.matching import describe, differences, distance
from bridge.cap import ASSIST_PATHS, RUN, SOCKET_PATH
from bridge.core.backend import Backend, EventStream
from bridge.core.models import ModelChoice
from bridge.core.turn import Turn
from bridge.errors import BridgeError, ConfigError
from bridge.exact_json import member
from bridge.log.read import RecordReader, played_files
from bridge.log.recording import Recording, read_recordings
from bridge.log.request import tools_offered
from bridge.playback.backend import ReplayBackend, copy_limits, recorded_end
from bridge.playback.match import Ignore, fingerprint, normalise
from bridge.playback.recorded_ids import RecordedIds
from bridge.protocols.cap import AssistRules, ConversationState
from bridge.protocols.cap.decoder import effective_meta
from bridge.protocols.registry import protocol_at
from bridge.redact import Redactor
from bridge.routing.router import Router

log = logging.getLogger("bridge.replay")

OnMiss = Literal["error", "forward", "nearest"]
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
    """Why a recording cannot be played, or None."""
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


class LogPlayer:
    """Plays a log. Equal requests get their answers in recorded order; the last answer repeats.

    `speed`: how fast the answers come, as in Pace.
    """

    def __init__(
        self,
        recordings: Iterable[Recording],
        *,
        on_miss: OnMiss = "error",
        speed: float = 0,
        ignore: Iterable[str] = (),
        redactor: Redactor | None = None,
    ) -> None:
        self._on_miss = on_miss
        self._speed = speed
        self._ignore = Ignore(ignore)
        # A secret was redacted when it was recorded, and must be before it is compared.
        self._redactor = redactor or Redactor()
        self._recordings: dict[bytes, list[tuple[Recording, dict[str, Any]]]] = {}
        """Recordings and their normalised requests, by fingerprint."""
        self._played: Counter[bytes] = Counter()
        for recording in recordings:
            if why_unplayable(recording) is None:
                request = normalise(request_body(recording), spoken_at(recording.path) or "", self._ignore)
                self._recordings.setdefault(fingerprint(request), []).append((recording, request))

    @property
    def forwards(self) -> bool:
        """Whether requests that are not in the log are answered live."""
        return self._on_miss == "forward"

    @property
    def router(self) -> Router:
        """The names of recorded models, for when nothing is answered live."""
        return _ModelNames(self.models())

    def __len__(self) -> int:
        return sum(map(len, self._recordings.values()))

    def models(self) -> list[str]:
        """The names that recorded requests used."""
        starts = [recording.start or {} for equal in self._recordings.values() for recording, _ in equal]
        return list(dict.fromkeys(str(start["requested_model"]) for start in starts if start.get("requested_model")))

    def check(self, path: str) -> None:
        if spoken_at(path) is None and not self.forwards:
            raise NoRecording(f"Answers of {path} cannot be replayed.")

    def choose(self, service: Service, spoken: str, data: dict[str, Any]) -> AnswerSettings:
        body = exact_json.loads(self._redactor.json(exact_json.dumps(data)))
        request = normalise(body, spoken, self._ignore)
        key = fingerprint(request)
        if equal := self._recordings.get(key):
            recording, _ = equal[min(self._played[key], len(equal) - 1)]
            self._played[key] += 1
        elif self._on_miss == "forward":
            return service
        else:
            recording = self._nearest(request)
        calls, offered = (recording.end or {}).get("calls"), tools_offered(body)
        if spoken != "cap" and isinstance(calls, list):
            # Calls are found in a text only for tools that the request offers.
            missing = ", ".join(dict.fromkeys(str(name) for name in calls if name not in offered))
            if missing:
                log.warning("%s is played, but calls %s, which this request does not offer", recording.id, missing)
        return play(service, recording, self._speed)

    def _nearest(self, request: dict[str, Any]) -> Recording:
        """The most similar recording. Raises NoRecording if the log is empty or a miss is an error."""
        recorded = (each for equal in self._recordings.values() for each in equal)
        nearest = min(recorded, key=lambda each: distance(each[1], request), default=None)
        if nearest is None:
            raise NoRecording("The log contains no request that can be replayed.")
        recording, found = nearest
        how = describe(differences(found, request)) or "its kind, or in members that are null"
        if self._on_miss != "nearest":
            raise NoRecording(
                f"No recorded request equals this one. The nearest is {recording.id}; it differs in {how}. "
                "Record the request, or start with --ignore MEMBER or --on-miss nearest|forward."
            )
        log.warning("no recorded request equals this one; %s is played, although it differs in %s", recording.id, how)
        return recording


def play(service: Service, recording: Recording, speed: float = 0, *, copies: bool = True) -> AnswerSettings:
    """The settings with which any request gets the answer of this recording, with its ids and times.

    `copies`: whether the backend's messages are recorded again. Raises the error with which a CAP request was refused,
    if reading it again cannot raise that.
    """
    if spoken_at(recording.path) == "cap":
        refuse_again(recording)
    names, recorder = RecordedIds(recording), service.recorder if copies else None
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


# A whole log


def load_player(path: Path, **options: Any) -> LogPlayer:
    """Read a log to play it. Raises ConfigError if it cannot be read, is too large, or contains nothing to play."""
    reader = RecordReader(played_files(path))
    player = LogPlayer(read_recordings(reader), **options)
    for sentence in reader.trouble.sentences():
        log.warning("%s: %s", path, sentence)
    if not len(player):
        raise ConfigError(f"{path} contains no request that can be replayed.")
    return player


class _ModelNames(Router):
    """Lists models, and answers for none of them."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(_NoBackend())
        self._names = names

    def models(self, *, aliases: bool = True) -> list[str]:
        return self._names


class _NoBackend(Backend):
    name = "replay"

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        raise NoRecording("This bridge only plays recordings.")

    def status(self) -> tuple[bool, str]:
        return True, "answers are played from a log"


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
