"""Summaries of the turns in a plain transcript, from the records that `TranscriptReader` makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bridge.appserver.standin.tape import PROMPTS
from bridge.protolog.loose import member
from bridge.protolog.summary import TRANSCRIPT, Span, Summary
from bridge.protolog.transcript import COUNTS, total_used


@dataclass(slots=True)
class _Turn:
    summary: Summary
    began: float
    prompted: float | None = None
    used: dict[str, Any] = field(default_factory=dict)
    """What the thread had used before."""
    answered: bool = False
    """Whether the prompt was accepted. A resumed or forked thread may tell what it had used shortly before that."""


@dataclass(slots=True)
class TranscriptSummaries:
    """Takes records in, keeps one summary for each turn."""

    _turns: dict[str, _Turn] = field(default_factory=dict)
    _used: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How many tokens each thread has used until now."""

    def __bool__(self) -> bool:
        return bool(self._turns)

    def add(self, record: dict[str, Any]) -> None:
        """One record of a transcript."""
        name, at, payload = record["req_id"], record["mono"], record["payload"]
        if name is None:
            return
        params = payload.get("params")
        params = params if isinstance(params, dict) else {}
        turn = self._turns.get(name)
        if turn is None:
            turn = self._turns[name] = _Turn(Summary(name, path=TRANSCRIPT, backend="app-server"), at)
            _name_model(turn, params)
        method, thread = record.get("method"), record.get("conversation_id") or ""
        if record["kind"] == "rpc_request" and method in PROMPTS:
            if turn.prompted is None:
                turn.used = self._used.get(thread, {})
            turn.prompted = at
            _name_model(turn, record.get("thread"))
        elif record["kind"] == "rpc_error" and method in PROMPTS:
            _fail(turn, payload.get("error"), at)
        elif record["kind"] == "rpc_response" and method in PROMPTS:
            turn.answered = True
        elif method in COUNTS:
            if (total := total_used(payload)) is not None:
                self._used[thread] = total
                if turn.answered:
                    _count(turn, total)
                else:
                    turn.used = total
        elif record["kind"] == "rpc_notification" and isinstance(method, str):
            message = params.get("msg")
            _take(turn, method, params, message if isinstance(message, dict) else {}, at)

    def summaries(self, span: Span) -> Iterator[Summary]:
        """All of them; their lines stand in `span`."""
        for turn in self._turns.values():
            turn.summary.spans = [span]
            yield turn.summary


def _take(turn: _Turn, method: str, params: dict[str, Any], message: dict[str, Any], at: float) -> None:
    summary = turn.summary
    kind = message.get("type") if method.startswith("codex/event") else method
    if isinstance(kind, str) and kind.lower().endswith("delta") and summary.first_event_s is None:
        summary.first_event_s = round(at - (turn.prompted or turn.began), 6)
    elif kind == "error" and not params.get("willRetry"):
        _fail(turn, params.get("error") if method == "error" else message, at)
    elif kind == "turn/completed":
        status = member(params, "turn", "status")
        if status == "completed":
            _end(turn, "completed", at)
        elif status == "interrupted":
            _end(turn, "cancelled", at)
        else:
            _fail(turn, member(params, "turn", "error"), at)
    elif kind == "turn_aborted":
        _end(turn, "cancelled", at)
    elif kind == "task_complete" and summary.outcome != "failed":
        _end(turn, "completed", at)


def _end(turn: _Turn, outcome: str, at: float) -> None:
    turn.summary.outcome, turn.summary.total_s = outcome, round(at - turn.began, 6)


def _fail(turn: _Turn, error: Any, at: float) -> None:
    _end(turn, "failed", at)
    if isinstance(error, dict):
        info = error.get("codexErrorInfo") or error.get("codex_error_info")
        name = next(iter(info), "") if isinstance(info, dict) else info
        turn.summary.error = name if isinstance(name, str) and name else turn.summary.error or "error"
        turn.summary.message = str(error.get("message", ""))[:400]


def _count(turn: _Turn, total: dict[str, Any]) -> None:
    """A thread counts from its beginning; what a turn has used is the difference."""

    def number(name: str) -> int | None:
        value, before = total.get(name), turn.used.get(name, 0)
        return value - before if isinstance(value, int) and isinstance(before, int) else None

    summary = turn.summary
    summary.input_tokens, summary.output_tokens = number("inputTokens"), number("outputTokens")
    summary.cached_tokens, summary.reasoning_tokens = number("cachedInputTokens"), number("reasoningOutputTokens")


def _name_model(turn: _Turn, about: Any) -> None:
    model = member(about, "model")
    if isinstance(model, str):
        turn.summary.model = turn.summary.requested_model = model
