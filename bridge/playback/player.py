"""Answers from recordings: each request gets the answer of an equal recorded one, played through the current code."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import orjson

from bridge import exact_json
from bridge.app.service import AnswerSettings, Service
from bridge.appserver.standin.recorded import describe, differences, distance
from bridge.core.backend import Backend, EventStream
from bridge.core.turn import Turn
from bridge.errors import ConfigError, UsageError
from bridge.exact_json import member
from bridge.log.read import RecordReader, played_files
from bridge.log.recording import Recording, read_recordings
from bridge.log.request import tools_offered
from bridge.playback.recorded import NoRecording, play, request_body, spoken_at, why_unplayable
from bridge.protocols.cap.decoder import effective_meta
from bridge.protocols.reading import shape_of
from bridge.redact import Redactor
from bridge.routing.router import Router

log = logging.getLogger("bridge.replay")

OnMiss = Literal["error", "forward", "nearest"]


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


# Normalised requests: equal requests are equal, however a client spells them
#
# Two requests are equal when nothing differs that could change the answer: neither the order of members, nor a text
# spelled as a list of one part, nor streaming, nor what `ignore` names.

IGNORED = (
    "background",
    "client_metadata",
    "generate",
    "include_usage",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_id",
    "stream_options",
    "user",
)
"""Members of a request that do not reach the model."""
_WISHES = (
    "approval_policy",
    "cwd",
    "effort",
    "instructions",
    "locale",
    "model",
    "output_schema",
    "sandbox",
    "summary",
    "timezone",
)
"""Members of `meta` in a CAP request that change the answer. The current encoder decides which events are sent."""


class Ignore:
    """Paths of members that do not count, such as `input.*.id`; `*` is any one name or index."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._paths = [tuple(path.split(".")) for path in (*IGNORED, *paths)]
        if any(not name for path in self._paths for name in path):
            raise UsageError("--ignore takes the path of a member, such as input.*.id or metadata.")

    def strip(self, value: Any) -> Any:
        """The same value without these members."""
        for path in self._paths:
            value = _without(value, path)
        return value


def normalise(body: dict[str, Any], protocol: str, ignore: Ignore) -> dict[str, Any]:
    kept = ignore.strip(body)
    if protocol == "cap":
        return _normalise_cap(kept)
    name = "input" if shape_of(body, protocol) == "responses" else "messages"
    said = kept.get(name)
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    others = {name: value for name, value in kept.items() if name not in ("input", "messages", "model")}
    return {
        "model": str(kept.get("model", "")).lower(),
        name: [_normalise_item(item) for item in items] if isinstance(items, list) else items,
        **_without_nulls(others),
    }


def fingerprint(request: dict[str, Any]) -> bytes:
    """The same for equal requests that are normalised."""
    return blake2b(exact_json.dumps(request, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _normalise_cap(body: dict[str, Any]) -> dict[str, Any]:
    """A ServiceRequest without its id, its sender and its session, and without members that change no answer."""
    payload, wishes = body.get("payload"), effective_meta(member(body, "payload", "meta"))
    asked = {name: member(payload, name) or None for name in ("query", "files", "conversation_id")}
    wished = {name: wishes[name] for name in _WISHES if wishes.get(name) is not None}
    if isinstance(wished.get("model"), str):
        wished["model"] = wished["model"].lower()
    agent = member(body, "context", "agent", "id")
    spelled: dict[str, Any] = {
        "context": None if agent is None else {"agent": {"id": agent}},
        "payload": {**asked, "meta": wished or None},
    }
    found: dict[str, Any] = _without_nulls(spelled)
    return found


def _normalise_item(item: Any) -> Any:
    """A message, a call or an output, without ids from a store, and with a text instead of a list of one text."""
    spelled = _without_nulls(item)
    if not isinstance(spelled, dict):
        return spelled
    if "role" in spelled or "call_id" in spelled:
        spelled.pop("id", None)
        spelled.pop("status", None)
    if spelled.get("type") == "message":
        del spelled["type"]
    if "content" in spelled:
        spelled["content"] = _text(spelled["content"])
    return spelled


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(member) for member in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _text(content: Any) -> Any:
    """The only text of a message's content, or the content."""
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return content
    part = content[0]
    if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
        return content
    return content if part.keys() - {"type", "text", "annotations", "logprobs"} else part["text"]


def _without(value: Any, path: Sequence[str]) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(value, dict):
        names = value.keys() if name == "*" else value.keys() & {name}
        kept = {key: inner for key, inner in value.items() if rest or key not in names}
        return kept | {key: _without(value[key], rest) for key in names if rest}
    if isinstance(value, list) and (name == "*" or name.isdecimal()):
        hits = range(len(value)) if name == "*" else (int(name),)
        return [
            _without(inner, rest) if rest and index in hits else inner
            for index, inner in enumerate(value)
            if rest or index not in hits
        ]
    return value
