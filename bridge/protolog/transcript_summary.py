"""Summaries of the turns in a plain transcript, from the records that `TranscriptReader` makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bridge.protolog.summary import TRANSCRIPT, Span, Summary

_PROMPTS = ("turn/start", "sendUserTurn", "sendUserMessage")


@dataclass(slots=True)
class _Turn:
    summary: Summary
    began: float
    prompted: float | None = None


@dataclass(slots=True)
class TranscriptSummaries:
    """Takes records in, keeps one summary for each thread."""

    _turns: dict[str, _Turn] = field(default_factory=dict)

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
            model = params.get("model")
            model = model if isinstance(model, str) else ""
            summary = Summary(name, path=TRANSCRIPT, model=model, requested_model=model, backend="app-server")
            turn = self._turns[name] = _Turn(summary, at)
        method = record.get("method")
        if record["kind"] == "rpc_request" and method in _PROMPTS:
            turn.prompted = at
        elif record["kind"] == "rpc_error" and method in _PROMPTS:
            _fail(turn, payload.get("error"), at)
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
    elif kind == "thread/tokenUsage/updated":
        _count(summary, _inside(params, "tokenUsage", "total"), "Tokens")
    elif kind == "token_count":
        _count(summary, _inside(message, "info", "total_token_usage"), "_tokens")
    elif kind == "error" and not params.get("willRetry"):
        _fail(turn, params.get("error") if method == "error" else message, at)
    elif kind == "turn/completed":
        status = _inside(params, "turn").get("status")
        if status == "completed":
            _end(turn, "completed", at)
        elif status == "interrupted":
            _end(turn, "cancelled", at)
        else:
            _fail(turn, _inside(params, "turn").get("error"), at)
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


def _count(summary: Summary, counts: dict[str, Any], ending: str) -> None:
    def number(name: str) -> int | None:
        value = counts.get(name)
        return value if isinstance(value, int) else None

    legacy = ending == "_tokens"
    summary.input_tokens = number(f"input{ending}")
    summary.output_tokens = number(f"output{ending}")
    summary.cached_tokens = number("cached_input_tokens" if legacy else "cachedInputTokens")
    summary.reasoning_tokens = number("reasoning_output_tokens" if legacy else "reasoningOutputTokens")


def _inside(value: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        inner = value.get(name)
        if not isinstance(inner, dict):
            return {}
        value = inner
    return value
