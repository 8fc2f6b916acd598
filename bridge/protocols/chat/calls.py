"""Tool calls from the pieces of a stream.

In OpenAI's streams a piece belongs to the call with its `index`; the first one has the id and the name, the others have
more of the arguments. Servers differ:

* no index at all (Gemini, Ollama before 0.4.7), or always 0 (Ollama, vLLM): an id that is new begins a call;
* no ids either, or the id, or the name, again in each piece;
* the name in pieces; the arguments as an object; all of a call in one piece.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from bridge.core.events import CallBegun
from bridge.core.items import RawItem
from bridge.core.thoughts import GEMINI

# Gemini's thought signatures: calls have them, and must have them again when their outputs are sent.
#
# Gemini 3 refuses a follow-up (400) if the first call of an answer has lost its signature. Clients of the chat
# completions API cannot keep one. Clients of the Responses API can: they send encrypted reasoning back unchanged. So
# the signatures of an answer are in a reasoning item before its calls. Calls without one get the value that Google
# documents (ai.google.dev/gemini-api/docs/thought-signatures); the model then continues without its earlier reasoning.

NO_SIGNATURE = "skip_thought_signature_validator"
_NEEDS_NONE = re.compile(r"gemini-[12]\b")


def signature_of(call: Mapping[str, Any]) -> str | None:
    """The signature in a call of the stream."""
    extra = call.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return signature if isinstance(signature, str) and signature else None


def pack(signatures: Mapping[str, str]) -> str:
    """Signatures by call id, as the content of a reasoning item."""
    return GEMINI + orjson.dumps(dict(signatures)).decode()


def unpack(item: RawItem) -> dict[str, str]:
    """The signatures in an item of the history; none in an item that was not packed here."""
    content = item.data.get("encrypted_content") if item.type == "reasoning" else None
    if not isinstance(content, str) or not content.startswith(GEMINI):
        return {}
    try:
        packed = orjson.loads(content.removeprefix(GEMINI))
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(packed, dict):
        return {}
    return {call_id: signature for call_id, signature in packed.items() if isinstance(signature, str)}


def extra_content(signature: str | None, model: str, *, first: bool) -> dict[str, Any]:
    """The member of a call in the history beside its function. Only the first call of an answer needs one."""
    if signature is None and first and not _NEEDS_NONE.search(model):
        signature = NO_SIGNATURE
    return {} if signature is None else {"extra_content": {"google": {"thought_signature": signature}}}


@dataclass(slots=True, eq=False)
class PartialCall:
    """One call so far."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    signature: str | None = None
    custom: bool = False
    """Its input is a text instead of JSON."""
    begun: CallBegun | None = None
    """Its event, once it was sent; from then on its name and id are fixed."""
    sent: int = 0
    """The number of pieces that were sent."""
    is_over: bool = False
    """Whether the complete call was sent."""

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a whole JSON object. A custom tool's text ends only with the answer."""
        if self.custom:
            return False
        last = next((piece for piece in reversed(self.pieces) if not piece.isspace()), "")
        if not last.rstrip().endswith("}"):
            return False  # a cheap test first: this is called for each piece if pieces repeat the name
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


class _AnyName(Collection[str]):
    """Any name, for answers to an unknown offer."""

    def __contains__(self, name: object) -> bool:
        return bool(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


ANY_NAME = _AnyName()


class Calls:
    """The calls of one answer, in the order in which they begin. `known` has the names of the offered functions."""

    def __init__(self, known: Collection[str] = ()) -> None:
        self.all: list[PartialCall] = []
        self._known = known
        self._by_index: dict[int, PartialCall] = {}
        self._by_id: dict[str, PartialCall] = {}

    def add(self, entries: Iterable[Mapping[str, Any]]) -> list[PartialCall]:
        """Add the `tool_calls` of one chunk, and return the calls that they extend. Raises TypeError or AttributeError
        for an unknown shape.
        """
        in_this_chunk: list[PartialCall] = []
        for entry in entries:
            custom = entry.get("custom")
            function = custom or entry.get("function") or {}
            index = entry.get("index")
            piece = _Piece(
                index if isinstance(index, int) else None,
                _string(entry.get("id")),
                _string(function.get("name")),
                _arguments(function.get("input" if custom else "arguments")),
            )
            if not (piece.id or piece.name or piece.arguments):
                call = self.all[-1] if self.all else None  # perhaps it has only a signature
            else:
                call = self._call_of(piece, in_this_chunk)
                self._extend(call, piece)
                call.custom = call.custom or custom is not None
                in_this_chunk.append(call)
            if call is not None:
                call.signature = signature_of(entry) or call.signature
        return in_this_chunk

    def is_settled(self, call: PartialCall) -> bool:
        """Whether the name of a call is complete: it is known, and arguments follow or no other name begins so."""
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
        """The call that a piece may belong to."""
        if piece.index is not None and piece.index in self._by_index:
            return self._by_index[piece.index]
        if piece.id in self._by_id and (piece.index is None or not piece.name):
            return self._by_id[piece.id]
        if piece.index is None and not (piece.id and piece.name):
            return self.all[-1] if self.all else None
        return None

    def _begins_another(self, call: PartialCall, piece: _Piece, is_second: bool) -> bool:
        """Whether a piece with a name begins another call. `is_second`: this chunk has a piece of `call` already."""
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
        """A name and the next piece of it: the rest of the name, or the name again."""
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
