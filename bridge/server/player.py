"""Answers from recordings: for each request the one that says the same, played through the code of today."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

from bridge import exact_json
from bridge.backends.base import EventStream, PlainBackend
from bridge.backends.replay.backend import ReplayBackend
from bridge.backends.replay.copying import copy_limits
from bridge.backends.router import Router
from bridge.errors import BridgeError, ConfigError
from bridge.protolog.asked import tools_offered
from bridge.protolog.assist import has_empty_pieces
from bridge.protolog.match import Ignore, Leaf, Spoken, differences, fingerprint, leaves, nearness
from bridge.protolog.names import Names
from bridge.protolog.read import RecordReader, played_files
from bridge.protolog.recording import Recording, read_recordings
from bridge.redact import Redactor
from bridge.server.cap.places import PLACES, RUN, SOCKET
from bridge.server.cap.recorded import recorded_rules, recorded_state, refuse_again
from bridge.server.service import HOLD, Service
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn

log = logging.getLogger("bridge.replay")

OnMiss = Literal["error", "forward", "nearest"]
PATHS: Mapping[str, Spoken] = {
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
    "exec": "responses",
    **dict.fromkeys((*PLACES, SOCKET, RUN), "cap"),
}
"""The places whose answers can be played, and what is spoken there."""


def asked_of(recording: Recording) -> dict[str, Any] | None:
    """The body of a recorded request; what came over the WebSocket of the Responses API may be wrapped."""
    body = recording.body or {}
    nested = body.get("response")
    wrapped = isinstance(nested, dict) and "input" not in body and PATHS.get(recording.path) == "responses"
    return nested if wrapped else recording.body


def has_nobody(recording: Recording) -> bool:
    """Whether nobody was asked, as in `exec --mock`: what the client got then came from no backend."""
    asked = recording.attempts or (recording.start or {}).get("backend") != "mock"
    return recording.path == "exec" and not asked


class NoRecording(BridgeError):
    """Nothing like this request is in the log."""

    code = "no_recording"
    http_status = 404
    kind = "invalid_request_error"


@dataclass(frozen=True, slots=True)
class _Entry:
    recording: Recording
    said: frozenset[Leaf]


class LogPlayer:
    """Plays a log. Equal requests get their answers in the recorded order, and then the last of them again.

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
        # What was a secret when it was recorded must look the same now.
        self._redactor = redactor or Redactor()
        self._entries: dict[bytes, list[_Entry]] = {}
        self._played: Counter[bytes] = Counter()
        for recording in recordings:
            spoken, body = PATHS.get(recording.path), asked_of(recording)
            if spoken is not None and body is not None and not has_nobody(recording):
                key = fingerprint(body, spoken, self._ignore)
                said = leaves(body, spoken, self._ignore)
                self._entries.setdefault(key, []).append(_Entry(recording, said))

    @property
    def forwards(self) -> bool:
        """Whether requests that are not in the log are answered live."""
        return self._on_miss == "forward"

    @property
    def router(self) -> Router:
        """What there is when nobody is asked live: the names of recorded models."""
        return _ModelNames(self.models())

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def models(self) -> list[str]:
        """The names that recorded requests used."""
        starts = [entry.recording.start or {} for entries in self._entries.values() for entry in entries]
        return list(dict.fromkeys(str(start["requested_model"]) for start in starts if start.get("requested_model")))

    def check(self, path: str) -> None:
        if path not in PATHS and not self.forwards:
            raise NoRecording(f"Answers of {path} are not played.")

    def choose(self, service: Service, spoken: Spoken, data: dict[str, Any]) -> Service:
        body = exact_json.loads(self._redactor.json(exact_json.dumps(data)))
        key = fingerprint(body, spoken, self._ignore)
        entries = self._entries.get(key)
        if entries is not None:
            number = self._played[key]
            self._played[key] += 1
            recording = entries[min(number, len(entries) - 1)].recording
            if spoken != "cap":
                _warn_of_tools(recording, body)
            return play(service, recording, self._speed)
        if self._on_miss == "forward":
            return service
        said = leaves(body, spoken, self._ignore)
        nearest = self._nearest(said)
        if nearest is None:
            raise NoRecording("The log holds no recording that could be played.")
        what = "; ".join(differences(said, nearest.said)) or "the kind of request"
        if self._on_miss == "nearest":
            log.warning("no recording of this request; %s is played, although %s", nearest.recording.id, what)
            if spoken != "cap":
                _warn_of_tools(nearest.recording, body)
            return play(service, nearest.recording, self._speed)
        raise NoRecording(
            f"No recording says the same as this request. The nearest is {nearest.recording.id}, but {what}. "
            "Record it anew, or start with --ignore PLACE or --on-miss nearest|forward."
        )

    def _nearest(self, said: frozenset[Leaf]) -> _Entry | None:
        entries = [entry for entries in self._entries.values() for entry in entries]
        return max(entries, key=lambda entry: nearness(said, entry.said), default=None)


def _warn_of_tools(recording: Recording, body: dict[str, Any]) -> None:
    """Calls are found in a text only for tools that the request offers: others are played as text."""
    calls, offered = (recording.end or {}).get("calls"), tools_offered(body)
    missing = dict.fromkeys(str(name) for name in calls if name not in offered) if isinstance(calls, list) else {}
    if missing:
        log.warning("%s is played, but calls %s, which this request does not offer", recording.id, ", ".join(missing))


def play(service: Service, recording: Recording, speed: float = 0, *, copies: bool = True) -> Service:
    """A service that plays this recording, with its ids and times, whatever it is asked.

    `copies`: whether what the backend said is recorded anew. Raises why a request of CAP was refused then, where that
    cannot be found out anew.
    """
    if PATHS.get(recording.path) == "cap":
        refuse_again(recording)
    names = Names(recording)
    if copies and service.recorder is not None and recording.limits is not None:
        copy_limits(service.recorder, recording.limits)
    backend = ReplayBackend(recording, new_id=names.new_id, speed=speed, recorder=service.recorder if copies else None)
    settings = recording.header.get("settings")
    told = settings if isinstance(settings, dict) else {}
    return replace(
        service,
        router=RecordedRouter(backend),
        new_id=names.new_id,
        now=names.now,
        hold=_hold(recording, speed),
        reasoning=told["reasoning"] if told.get("reasoning") in ("content", "think", "hidden") else service.reasoning,
        stream_default=bool(told.get("stream_default", service.stream_default)),
        policy="drop",
        player=None,
        cap=replace(
            service.cap,
            rules=recorded_rules(service.cap.rules, recording),
            recorded_state=recorded_state(recording),
            keeps_empty=has_empty_pieces(recording.sent),
        ),
        forgiving=recording.start is not None,
    )


def _hold(recording: Recording, speed: float) -> float:
    """An answer that began as a stream does so again, whatever became of it; one that did not, does not.

    One that began with its first word waits for that again, because until then there is news for the response headers.
    """
    first = next((piece.mono for piece in recording.client if piece.kind == "client_sse" and piece.payload), None)
    if first is None:
        return inf if recording.client else 0.0
    waited = max(0.0, first - recording.at)
    if speed > 0:
        return waited / speed
    return inf if recording.status is not None and waited < HOLD else 0.0


def load_player(path: Path, **options: Any) -> LogPlayer:
    """Read a log to play it. Raises ConfigError when it cannot be read, is too large, or holds nothing to be played."""
    reader = RecordReader(played_files(path))
    player = LogPlayer(read_recordings(reader), **options)
    for sentence in reader.trouble.sentences():
        log.warning("%s: %s", path, sentence)
    if not len(player):
        raise ConfigError(f"{path} holds no request that could be played.")
    return player


class _ModelNames(Router):
    """Lists models, and answers for none of them."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(_Nobody())
        self._names = names

    def models(self, *, aliases: bool = True) -> list[str]:
        return self._names


class _Nobody(PlainBackend):
    name = "replay"

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        raise NoRecording("Nobody is asked live here; only recordings are played.")

    def status(self) -> tuple[bool, str]:
        return True, "answers are played from a log"


class RecordedRouter(Router):
    """Leads everything to one recording."""

    def __init__(self, backend: ReplayBackend) -> None:
        super().__init__(backend)
        self._backend = backend

    def backend(self, name: str) -> ReplayBackend:
        return self._backend

    def resolve(self, requested: str, *, keyed: bool = False) -> ModelChoice:
        return self._backend.resolve(requested)

    async def wait_for(self, requested: str) -> None:
        return
