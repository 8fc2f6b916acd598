"""Tool calls put together from a stream's pieces.

As OpenAI has it, a piece belongs to the call with its `index`; the first one has the id and the name, the others have
more of the arguments. Servers differ:

* no index at all (Gemini, Ollama before 0.4.7), or always 0 (Ollama, vLLM): an id that is new begins a call;
* no ids either, or the id, or the name, again in each piece;
* the name in pieces; the arguments as an object; all of a call in one piece.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from bridge.backends.openai_compatible.signatures import signature_of
from bridge.turn.events import CallBegun


@dataclass(slots=True, eq=False)
class PartialCall:
    """One call, as far as it has come."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    signature: str | None = None
    begun: CallBegun | None = None
    """What was told of it; from then on its name and id are settled."""
    told: int = 0
    """The pieces that were told."""
    is_over: bool = False
    """The call was told as complete."""

    @property
    def arguments(self) -> str:
        """What has come of them."""
        return "".join(self.pieces)

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a whole JSON object."""
        last = next((piece for piece in reversed(self.pieces) if not piece.isspace()), "")
        if not last.rstrip().endswith("}"):
            return False  # a cheap look: it is asked for again and again where the name comes with each piece
        try:
            return isinstance(orjson.loads(self.arguments), dict)
        except orjson.JSONDecodeError:
            return False


@dataclass(slots=True)
class _Piece:
    index: int | None
    id: str
    name: str
    arguments: str


class Calls:
    """The calls of one answer, in the order of their beginnings. `known` are the names that were offered."""

    def __init__(self, known: Collection[str] = ()) -> None:
        self.all: list[PartialCall] = []
        self._known = known
        self._by_index: dict[int, PartialCall] = {}
        self._by_id: dict[str, PartialCall] = {}

    def add(self, entries: Iterable[Mapping[str, Any]]) -> list[PartialCall]:
        """The `tool_calls` of one chunk; those that there is more of. Raises TypeError or AttributeError for what they
        cannot be.
        """
        in_this_chunk: list[PartialCall] = []
        for entry in entries:
            function = entry.get("function") or {}
            index = entry.get("index")
            piece = _Piece(
                index if isinstance(index, int) else None,
                _string(entry.get("id")),
                _string(function.get("name")),
                _arguments(function.get("arguments")),
            )
            if not (piece.id or piece.name or piece.arguments):
                call = self.all[-1] if self.all else None  # nothing but a signature, perhaps
            else:
                call = self._call_of(piece, in_this_chunk)
                self._extend(call, piece)
                in_this_chunk.append(call)
            if call is not None:
                call.signature = signature_of(entry) or call.signature
        return in_this_chunk

    def is_settled(self, call: PartialCall) -> bool:
        """Whether the name of a call is whole: it is known, and arguments follow or no longer name begins so."""
        if call.name not in self._known:
            return False
        return bool(call.pieces) or not any(name != call.name and name.startswith(call.name) for name in self._known)

    def _call_of(self, piece: _Piece, in_this_chunk: list[PartialCall]) -> PartialCall:
        call = self._begun(piece)
        if call is None or (piece.name and self._begins_another(call, piece, call in in_this_chunk)):
            call = PartialCall()
            self.all.append(call)
        if piece.index is not None:
            self._by_index[piece.index] = call
        if piece.id:
            self._by_id[piece.id] = call
        return call

    def _begun(self, piece: _Piece) -> PartialCall | None:
        """The call that a piece may be part of."""
        if piece.index is not None and piece.index in self._by_index:
            return self._by_index[piece.index]
        if piece.id in self._by_id and (piece.index is None or not piece.name):
            return self._by_id[piece.id]
        if piece.index is None and not (piece.id and piece.name):
            return self.all[-1] if self.all else None
        return None

    def _begins_another(self, call: PartialCall, piece: _Piece, is_second: bool) -> bool:
        """Whether a piece with a name is not `call`'s after all. `is_second`: this chunk has one for it already."""
        if piece.id and call.id:
            if piece.id != call.id:
                return True
            if piece.index is not None:
                return False
        if is_second:
            return True
        if call.is_complete:
            return bool(piece.arguments.strip()) or piece.name != call.name
        if call.name not in self._known:
            return False
        return piece.name != call.name and piece.name in self._known and call.name + piece.name not in self._known

    def _extend(self, call: PartialCall, piece: _Piece) -> None:
        call.id = call.id or piece.id
        if piece.name and call.begun is None:
            call.name = self._longer_name(call, piece.name)
        if call.is_over and piece.arguments.strip():
            raise TypeError(piece.arguments)
        if piece.arguments and not call.is_over:
            call.pieces.append(piece.arguments)

    def _longer_name(self, call: PartialCall, more: str) -> str:
        """A name and what came after it: the rest of it, or the same again."""
        whole = call.name + more
        if call.name not in self._known and whole in self._known:
            return whole
        if more == call.name or more in self._known:
            return more
        return call.name if call.pieces else whole


def _string(value: Any) -> str:
    """A text; nothing for null. Numbers are ids too."""
    if value is None:
        return ""
    if isinstance(value, str | int):
        return str(value)
    raise TypeError(value)


def _arguments(value: Any) -> str:
    if isinstance(value, dict | list):
        return orjson.dumps(value).decode()
    if value is None or isinstance(value, str):
        return value or ""
    raise TypeError(value)
