"""The chunks of a Gemini answer as TurnEvents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import exact_json
from bridge.core.events import Finished, ReasoningDone, ToolCall, Usage, UsageUpdate
from bridge.errors import UpstreamError
from bridge.protocols.gemini.signatures import thoughts_in
from bridge.protocols.upstream import UpstreamBuffer, error_from_object, string

_CUT_SHORT = {"MAX_TOKENS": "max_output_tokens"}
_FILTERED = (
    "SAFETY",
    "RECITATION",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "LANGUAGE",
    "IMAGE_SAFETY",
    "MODEL_ARMOR",
)
_CODES = {
    "RESOURCE_EXHAUSTED": "rate_limit_error",
    "UNAUTHENTICATED": "authentication_error",
    "PERMISSION_DENIED": "permission_error",
    "INVALID_ARGUMENT": "invalid_request_error",
    "NOT_FOUND": "not_found_error",
    "UNAVAILABLE": "overloaded",
}


class GeminiBuffer(UpstreamBuffer):
    """One answer: the first candidate, for an answer with several."""

    def __init__(self) -> None:
        super().__init__()
        self._items_begun = 0
        self._kind = ""
        """What the open item is: text or thought."""
        self._current = ""
        self._spent: Mapping[str, Any] | None = None

    def receive_event(self, event: Any) -> None:
        if isinstance(event.get("error"), dict):
            self._failed(event["error"])
            return
        if isinstance(event.get("responseId"), str):
            self.answer_id = self.answer_id or event["responseId"]
        if isinstance(event.get("usageMetadata"), dict):
            self._spent = event["usageMetadata"]
        candidates = event.get("candidates") or ()
        for candidate in candidates:
            if not candidate.get("index"):
                self._candidate(candidate)
        if not candidates and isinstance(blocked := event.get("promptFeedback"), dict) and blocked.get("blockReason"):
            self.finish_reason = str(blocked["blockReason"])
            self._end()

    def over(self, *, told: bool) -> None:
        if not self.finished and (told or self.finish_reason is not None):
            self._end()

    def _candidate(self, candidate: Mapping[str, Any]) -> None:
        for part in (candidate.get("content") or {}).get("parts") or ():
            self._part(part)
        if candidate.get("finishReason"):
            self.finish_reason = str(candidate["finishReason"])
            self._end()

    def _part(self, part: Mapping[str, Any]) -> None:
        call, signature = part.get("functionCall"), part.get("thoughtSignature")
        call_id = None
        if call is not None:
            call_id = string(call["id"]) if call.get("id") else f"call_{self._items_begun + 1}"
        if signature is not None:
            for item, content in thoughts_in(string(signature), call_id):
                self._open("signature")
                self._streamed.setdefault(item or self._current, 0)
                self.add(ReasoningDone(item or self._current, content))
        if call is not None and call_id is not None:
            self._open("call")
            arguments = exact_json.dumps(call.get("args") or {}).decode()
            self.called(ToolCall(self._current, call_id, string(call["name"]), arguments))
        elif part.get("text"):
            text = string(part["text"])
            kind = "thought" if part.get("thought") is True else "text"
            if kind != self._kind:
                self._open(kind)
            if kind == "text":
                self.text(self._current, text)
            else:
                self.reasoning(self._current, 0, text, raw=False)

    def _open(self, kind: str) -> None:
        self._kind = kind
        self._items_begun += 1
        self._current = f"{kind}_{self._items_begun}"

    def _usage(self) -> None:
        if self._spent is None:
            return
        counts = {name: value for name, value in self._spent.items() if type(value) is int and value >= 0}
        thoughts = counts.get("thoughtsTokenCount", 0)
        self.usage(
            UsageUpdate(
                Usage(
                    counts.get("promptTokenCount", 0),
                    counts.get("cachedContentTokenCount", 0),
                    counts.get("candidatesTokenCount", 0) + thoughts,
                    thoughts,
                )
            )
        )

    def _end(self) -> None:
        self._usage()
        reason = self.finish_reason
        if reason in _CUT_SHORT or reason in _FILTERED:
            self.ended = True
            self.finish(Finished("incomplete", reason=_CUT_SHORT.get(str(reason), "content_filter")))
        elif reason in (None, "STOP"):
            self.complete()
        else:
            self.ended = True
            self.fail(UpstreamError(f"The model could not answer: {str(reason)[:60]}.", code="broken_answer"))

    def _failed(self, given: dict[str, Any]) -> None:
        self.ended = True
        self.error_object = given
        self.fail(error_from_object({"message": given.get("message"), "type": _CODES.get(str(given.get("status")))}))
