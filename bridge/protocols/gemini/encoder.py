"""TurnEvents as the chunks of a Gemini stream, and as a whole GenerateContentResponse.

Each chunk is a response with the new parts; the last one has the reason of the end and the usage. A call is one part,
sent when it is complete: the API has no pieces of arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orjson import JSONDecodeError, dumps

from bridge import exact_json
from bridge.core.events import (
    Choice,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
)
from bridge.core.items import RawItem, full_name
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.protocols.chat.calls import unpack
from bridge.protocols.client import AnswerContext, Json, NewId
from bridge.protocols.event_encoder import EventEncoder
from bridge.protocols.gemini.protocol import error_body
from bridge.protocols.gemini.signatures import Thought, is_googles, signature_of
from bridge.protocols.sse import interrupted, join_events, restart_error
from bridge.tools.payload import INPUT, arguments_of

_REASONS = {"content_filter": "SAFETY"}
"""The finish reasons of incomplete answers. Any other one has reached a limit of tokens."""


@dataclass(slots=True)
class _Candidate:
    """One answer so far."""

    index: int
    parts: list[Json] = field(default_factory=list)
    """For a whole response; a stream keeps none, and has an empty text at its end."""
    pending: list[Thought] = field(default_factory=list)
    """Encrypted reasoning that waits for the next part. If none comes, an empty text takes it."""
    signatures: dict[str, str] = field(default_factory=dict)
    """Google's own, by the id of their call."""
    has_summary: bool = False
    thought: tuple[str, int, bool] | None = None
    """The part of the reasoning that was written last: there is a blank line between two."""
    reason: str | None = None
    usage: Usage | None = None


class GeminiEncoder(EventEncoder):
    """One response. If not `streaming`, nothing is sent before the end, and the upstream may restart.

    `events`: a stream of server-sent events; otherwise its chunks are the elements of a JSON array, one a line.
    """

    def __init__(
        self,
        model: str,
        new_id: NewId,
        *,
        streaming: bool = True,
        events: bool = True,
        candidates: int = 1,
        shows_thoughts: bool = True,
    ) -> None:
        super().__init__()
        self.id = new_id("resp")
        self.visible = False
        self.failure: BridgeError | None = None
        self._model = model
        self._streaming = streaming
        self._events = events
        self._shows_thoughts = shows_thoughts
        self._candidates = [_Candidate(index) for index in range(candidates)]
        self._candidate = self._candidates[0]
        """The one whose events are being encoded."""
        self._chunks = 0
        self._tail = dumps({"modelVersion": model, "responseId": self.id})[1:]
        self._out: list[bytes] = []

    def __repr__(self) -> str:
        return f"<GeminiEncoder {self.id} chunks={self._chunks} finished={self.finished}>"

    @property
    def usage(self) -> Usage | None:
        known = [each.usage for each in self._candidates if each.usage is not None]
        return sum(known[1:], known[0]) if known else None

    def begin(self) -> bytes:
        return b""

    def feed(self, events: list[TurnEvent]) -> bytes:
        if len(self._candidates) == 1:
            self._encode(events)
        else:
            self._encode_candidates(events)
        out, self._out = self._out, []
        return join_events(out)

    def body(self) -> bytes:
        """The whole response; at the end of a stream, what is left of it: the reasons of the end and the usage."""
        candidates = [_candidate_object(each, each.parts) for each in self._candidates]
        usage = usage_object(self.usage or Usage())
        return exact_json.dumps({**self._response(candidates), "usageMetadata": usage})

    # Parts

    def _encode_candidates(self, events: list[TurnEvent]) -> None:
        for event in events:
            if self.finished:
                break
            if isinstance(event, Choice):
                self._candidate = self._candidates[event.index]
                self._encode(event.events)
            elif isinstance(event, Finished):
                self._close(event)

    def _text(self, event: TextDelta) -> None:
        candidate, pieces = self._candidate, [piece for piece in event.pieces if piece]
        if pieces and candidate.pending:
            self._add(candidate, {"text": pieces.pop(0), **self._signed(candidate)})
        if not pieces:
            return
        self.visible = True
        if self._streaming:
            head = b'{"candidates":[{"content":{"parts":[{"text":'
            tail = b'}],"role":"model"},"index":%d}],%b' % (candidate.index, self._tail)
            for piece in pieces:
                self._send(b"%b%b%b" % (head, dumps(piece), tail))
        else:
            self._join(candidate, {"text": "".join(pieces)})

    def _reasoning(self, event: ReasoningDelta) -> None:
        candidate, text = self._candidate, "".join(event.pieces)
        # Raw reasoning repeats the summary at length, so it is shown only if no summary came before.
        if not text or not self._shows_thoughts or (event.raw and candidate.has_summary):
            return
        candidate.has_summary = candidate.has_summary or not event.raw
        part = (event.item, event.index, event.raw)
        if candidate.thought not in (None, part):
            text = "\n\n" + text
        candidate.thought = part
        self._join(candidate, {"text": text, "thought": True})

    def _reasoning_done(self, event: ReasoningDone) -> None:
        candidate = self._candidate
        if event.encrypted is None:
            return
        if is_googles(event.encrypted):
            candidate.signatures |= unpack(RawItem("reasoning", {"encrypted_content": event.encrypted}))
        else:
            candidate.pending.append(Thought(event.item, event.encrypted))

    def _tool_call(self, call: ToolCall) -> None:
        candidate = self._candidate
        signature = candidate.signatures.pop(call.call_id, None)
        signed = self._signed(candidate) if signature is None else {"thoughtSignature": signature}
        name = full_name(call.namespace, call.name)
        arguments = arguments_of(call.arguments) if call.custom else call.arguments
        self._add(
            candidate, {"functionCall": {"id": call.call_id, "name": name, "args": args_object(arguments)}, **signed}
        )

    def _usage(self, event: UsageUpdate) -> None:
        self._candidate.usage = event.usage

    def _signed(self, candidate: _Candidate) -> Json:
        pending, candidate.pending = candidate.pending, []
        return {"thoughtSignature": signature_of(pending)} if pending else {}

    def _join(self, candidate: _Candidate, part: Json) -> None:
        """Add a text to the last part, if that is one of the same kind."""
        last = candidate.parts[-1] if candidate.parts else {}
        if "text" in last and ("thought" in last) == ("thought" in part):
            last["text"] += part["text"]
        else:
            self._add(candidate, part)

    def _add(self, candidate: _Candidate, part: Json) -> None:
        self.visible = True
        if self._streaming:
            self._send(dumps(self._response([_candidate_object(candidate, [part])])))
        else:
            candidate.parts.append(part)

    # The end

    def _restart(self, event: Restarted) -> None:
        candidate = self._candidate
        if self.visible and self._streaming:
            self._close(Finished("failed", error=restart_error(event)))
            return
        candidate.parts.clear()
        candidate.pending.clear()
        candidate.signatures.clear()
        candidate.has_summary, candidate.thought = False, None
        self.visible = any(each.parts for each in self._candidates)

    def _finish(self, end: Finished) -> None:
        candidate = self._candidate
        if end.outcome in ("failed", "cancelled"):
            self._close(end)
            return
        if candidate.pending or self._streaming:
            # Google's SDKs take a stream for broken if a chunk has no part. Then they leave the turn out of a chat.
            candidate.parts.append({"text": "", **self._signed(candidate)})
        candidate.reason = "STOP"
        if end.outcome == "incomplete":
            candidate.reason = _REASONS.get(end.reason or "", "MAX_TOKENS")
        if len(self._candidates) == 1:
            self._close(end)

    def _close(self, end: Finished) -> None:
        self.finished = True
        if end.outcome in ("failed", "cancelled"):
            self.failure = end.error or interrupted()
            self._send(dumps(error_body(self.failure)))
        else:
            self._send(self.body())
        if self._streaming and not self._events:
            self._out.append(b"\n]\n")

    def _response(self, candidates: list[Json]) -> Json:
        return {"candidates": candidates, "modelVersion": self._model, "responseId": self.id}

    def _send(self, chunk: bytes) -> None:
        if not self._streaming:
            return
        if self._events:
            self._out.append(b"data: %b\n\n" % chunk)
        else:
            # One a line, so that a log of the stream can be read line by line.
            self._out.append(b"%b\n%b" % (b"\n," if self._chunks else b"[", chunk))
        self._chunks += 1


def _candidate_object(candidate: _Candidate, parts: list[Json]) -> Json:
    found: Json = {"content": {"parts": parts, "role": "model"}, "index": candidate.index}
    return found if candidate.reason is None else {**found, "finishReason": candidate.reason}


def args_object(arguments: str) -> Json:
    """The arguments as an object. Others are sent under the name of a custom tool's text, so that nothing is lost."""
    try:
        given = exact_json.loads(arguments) if arguments.strip() else {}
    except JSONDecodeError:
        given = None
    return given if isinstance(given, dict) else {INPUT: arguments}


def usage_object(usage: Usage) -> Json:
    """Usage as the API writes it: thoughts are not part of the candidates' tokens."""
    return {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": max(0, usage.output - usage.reasoning),
        "totalTokenCount": usage.total,
        "cachedContentTokenCount": usage.cached,
        "thoughtsTokenCount": usage.reasoning,
    }


def make_encoder(turn: Turn, data: Json, context: AnswerContext) -> GeminiEncoder:
    """The encoder of the answer to a body. Thoughts are shown where the client asks for them."""
    config = data.get("generationConfig") or data.get("generation_config") or {}
    thinking = (config.get("thinkingConfig") or config.get("thinking_config")) if isinstance(config, dict) else None
    wanted = thinking if isinstance(thinking, dict) else {}
    return GeminiEncoder(
        turn.requested_model,
        context.new_id,
        streaming=bool(turn.stream),
        events=data.get("alt") == "sse",
        candidates=turn.n or 1,
        shows_thoughts=(wanted.get("includeThoughts") or wanted.get("include_thoughts")) is True
        and context.reasoning != "hidden",
    )
