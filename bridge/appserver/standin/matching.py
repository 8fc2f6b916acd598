"""Which recorded turn is meant: the calls of a thread, compared with those on the tapes. Pure.

What a turn is asked is the chain of the calls that made it. Two chains are equal when their calls are, without what
differs from one run to the next: ids, the directory, members that are null. A thread follows its trail through the
recorded chains call by call; equal ones are given out in their order, and after the last one the last again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from bridge import exact_json
from bridge.appserver.standin.tape import BEGINS, Dialect, Message, Scene, Tape
from bridge.redact import Redactor

Place = tuple[int, int]
"""(tape, scene)."""
Trail = tuple[bytes, ...]
"""The chains that the calls of a thread so far are equal to: the whole one, and one whose beginning was cut off."""

_VOLATILE = frozenset(
    {"threadId", "conversationId", "turnId", "expectedTurnId", "cwd", "path", "rolloutPath", "clientUserMessageId"}
)
_ITEMS = frozenset({"items", "input", "history"})
_CALL_IDS = frozenset({"call_id", "callId"})
_CALL_ID = re.compile(r"(?<=\[function_call call_id=)\S+|(?<=\[function_call_output call_id=)\S+|\bcall_\w{16,}")
"""Ids of calls in a text: after the labels of a conversation that was given as text, and those that are made up."""

_SHOWN = 3
_WINDOW = 40
_ROOT = b""
_redactor = Redactor()


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it is compared."""

    method: str
    params: Any
    digest: bytes


@dataclass(frozen=True, slots=True)
class Difference:
    """A member that is not as recorded; None for one that is not there."""

    path: str
    recorded: Any
    asked: Any

    def __str__(self) -> str:
        recorded, asked = _show_both(self.recorded, self.asked)
        return f"{self.path}: recorded {recorded}, asked {asked}"


@dataclass(slots=True)
class _Shelf:
    """Places with equal chains, in recorded order. All before `next` are taken."""

    places: list[Place] = field(default_factory=list)
    next: int = 0


class Repertoire:
    """Everything that can be played, found by its chain."""

    def __init__(self, tapes: tuple[Tape, ...]) -> None:
        self._tapes = tapes
        self._shelves: dict[bytes, _Shelf] = {}
        self._following: dict[bytes, list[Place]] = {}
        self._chains: dict[Place, bytes] = {}
        self._at: dict[tuple[bytes, int], Place] = {}
        self._taken: set[Place] = set()
        self._headless: set[Dialect] = set()
        for number, tape in enumerate(tapes):
            chain = _headless(tape.dialect) if tape.headless else _ROOT
            if tape.headless:
                self._headless.add(tape.dialect)
            for index, scene in enumerate(tape.scenes):
                self._following.setdefault(chain, []).append((number, index))
                chain = _extend(chain, compared(scene.method, scene.params, redacted=True))
                self._shelves.setdefault(chain, _Shelf()).places.append((number, index))
                self._chains[number, index] = chain
                self._at[chain, number] = number, index
        for shelf in self._shelves.values():
            shelf.places.sort(key=lambda place: self._scene(place).order)

    def follow(self, trail: Trail | None, call: Asked) -> Trail:
        """The trail after one more call (`None`: the call that makes a thread); empty where it leads nowhere."""
        if trail is not None:
            return tuple(chain for before in trail if (chain := _extend(before, call)) in self._shelves)
        begun = _extend(_ROOT, call)
        found = (begun,) if begun in self._shelves else ()
        dialect = BEGINS[call.method]
        return (*found, _headless(dialect)) if dialect in self._headless else found

    def choose(self, trail: Trail, own: int | None) -> Place | None:
        """Take the place to be played: that of the tape `own` if it is there and free, else the first free one.

        When all are taken it is the last, of those that were not refused. None before a tape whose beginning is not
        on record.
        """
        for chain in trail:
            if chain in self._shelves:
                place = self._pick(chain, own)
                self._taken.add(place)
                return place
        return None

    def trail_of(self, place: Place) -> Trail:
        """The trail of a thread that has been taken to this place."""
        return (self._chains[place],)

    def nearest(
        self, trail: Trail | None, call: Asked, *, anywhere: bool = False
    ) -> tuple[Place, list[Difference]] | None:
        """The place with the most similar call of this method among those that may follow, or `anywhere`."""
        places: Iterable[Place] = self._chains if anywhere else self._after(trail)
        best: tuple[float, Place, list[Difference]] | None = None
        for place in places:
            scene = self._scene(place)
            if scene.method != call.method:
                continue
            found = list(differences(compared(scene.method, scene.params, redacted=True).params, call.params))
            distance = sum(map(_distance, found))
            if best is None or distance < best[0]:
                best = distance, place, found
        return None if best is None else (best[1], best[2])

    def explain(self, trail: Trail | None, call: Asked) -> str:
        """Why nothing matches, for a person."""
        found = self.nearest(trail, call)
        if found is not None:
            place, different = found
            rest = f" (and {len(different) - _SHOWN} more)" if len(different) > _SHOWN else ""
            shown = "; ".join(map(str, different[:_SHOWN])) or "its place alone"
            return (
                f"no recorded turn matches: {call.method} differs from the nearest recording "
                f"({self._scene(place)}) in {shown}{rest}"
            )
        if trail is None:
            begins = sorted({self._scene(place).method for place in self._after(None)})
            return f"no recorded turn matches: the recording begins with {' or '.join(begins)}, not {call.method}"
        expected = sorted({self._scene(place).method for place in self._after(trail)})
        if expected:
            return f"no recorded turn matches: the recording goes on with {' or '.join(expected)}, not {call.method}"
        return f"no recorded turn matches: the recording has no further call in this thread, {call.method} was asked"

    def _after(self, trail: Trail | None) -> Iterator[Place]:
        for chain in (_ROOT,) if trail is None else trail:
            yield from self._following.get(chain, ())

    def _pick(self, chain: bytes, own: int | None) -> Place:
        shelf = self._shelves[chain]
        at_hand = self._at.get((chain, own)) if own is not None else None
        if at_hand is not None and at_hand not in self._taken:
            return at_hand
        while shelf.next < len(shelf.places) and shelf.places[shelf.next] in self._taken:
            shelf.next += 1
        if shelf.next < len(shelf.places):
            return shelf.places[shelf.next]
        served = [place for place in shelf.places if not self._scene(place).refused]
        return (served or shelf.places)[-1]

    def _scene(self, place: Place) -> Scene:
        return self._tapes[place[0]].scenes[place[1]]


def compared(method: str, params: Message, *, redacted: bool = False) -> Asked:
    """A call as it is compared. What comes from a log has lost its secrets already; others lose them here."""
    try:
        return _compared(method, params, redacted=redacted)
    except (TypeError, RecursionError):
        return _compared(method, {"params": "nested too deeply to be compared"}, redacted=True)


def _compared(method: str, params: Message, *, redacted: bool) -> Asked:
    kept = {name: value for name, value in params.items() if name not in _VOLATILE and value is not None}
    for name in _ITEMS & kept.keys():
        if isinstance(kept[name], list):
            kept[name] = [_without_id(item) for item in kept[name]]
    # The names of calls count, not their spelling: each is the n-th that is mentioned.
    plain = _rename_calls(kept, {})
    data = exact_json.dumps(plain, option=orjson.OPT_SORT_KEYS)
    if not redacted and (clean := _redactor.json(data)) != data:
        plain = exact_json.loads(clean)
        data = exact_json.dumps(plain, option=orjson.OPT_SORT_KEYS)
    return Asked(method, plain, blake2b(method.encode() + b"\0" + data, digest_size=16).digest())


def differences(recorded: Any, asked: Any, path: str = "") -> Iterator[Difference]:
    """The members in which two values differ, the deepest that can be named."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in dict.fromkeys((*recorded, *asked)):
            yield from differences(recorded.get(name), asked.get(name), f"{path}.{name}" if path else name)
    elif isinstance(recorded, list) and isinstance(asked, list):
        for index in range(max(len(recorded), len(asked))):
            one = recorded[index] if index < len(recorded) else None
            other = asked[index] if index < len(asked) else None
            yield from differences(one, other, f"{path}[{index}]")
    elif recorded != asked or type(recorded) is not type(asked):
        yield Difference(path, recorded, asked)


def _without_id(item: Any) -> Any:
    return {name: value for name, value in item.items() if name != "id"} if isinstance(item, dict) else item


def _rename_calls(value: Any, known: dict[str, str]) -> Any:
    def name(found: str) -> str:
        return known.setdefault(found, f"call#{len(known) + 1}")

    if isinstance(value, dict):
        return {
            member: name(inner) if member in _CALL_IDS and isinstance(inner, str) else _rename_calls(inner, known)
            for member, inner in value.items()
        }
    if isinstance(value, list):
        return [_rename_calls(inner, known) for inner in value]
    return _CALL_ID.sub(lambda found: name(found[0]), value) if isinstance(value, str) else value


def _distance(difference: Difference) -> float:
    """How far apart two values are: 1, or less for texts that begin and end alike."""
    one, other = difference.recorded, difference.asked
    if not isinstance(one, str) or not isinstance(other, str):
        return 1.0
    longest = max(len(one), len(other))
    head = _common(one, other)
    tail = min(_common(one[::-1], other[::-1]), min(len(one), len(other)) - head)
    return 1 - (head + tail) / longest * 0.9


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _show_both(recorded: Any, asked: Any) -> tuple[str, str]:
    """Two values, of long texts the piece around their first difference."""
    start = 0
    if isinstance(recorded, str) and isinstance(asked, str):
        start = max(0, _common(recorded, asked) - _WINDOW // 2)
    return _show(recorded, start), _show(asked, start)


def _show(value: Any, start: int) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        piece = value[start : start + _WINDOW]
        before, after = "…" if start else "", "…" if start + _WINDOW < len(value) else ""
        return before + orjson.dumps(piece.encode("utf-8", "replace").decode()).decode() + after
    text = exact_json.dumps(value).decode()
    return text if len(text) <= _WINDOW else f"{text[:_WINDOW]}…"


def _extend(chain: bytes, call: Asked) -> bytes:
    return blake2b(chain + call.digest, digest_size=16).digest()


def _headless(dialect: Dialect) -> bytes:
    return b"headless " + dialect.encode()
