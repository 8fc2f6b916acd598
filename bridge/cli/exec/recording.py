"""What --log-events records of a run: the request, each frame of the backend, each line of the wire protocol, the end.

It is loaded only where it is wanted: a run should begin quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio

from bridge.backends.responses.body import build_body, build_plain, item_object
from bridge.cli.exec.options import Options
from bridge.errors import UsageError
from bridge.ids import new_id
from bridge.protolog.event_log import EventLog, about
from bridge.protolog.turn_records import turn_end, turn_start
from bridge.redact import Redactor
from bridge.turn.events import Finished, ToolCall, TurnEvent, Usage, UsageUpdate
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Item, Message
from bridge.turn.turn import Turn

if TYPE_CHECKING:
    from bridge.cli.exec.choice import Choice


class RunLog:
    """The log of one run. Raises ConfigError when it cannot be written.

    `request` once, whatever happens; `start` when somebody is asked; `end` once, after the last line.
    """

    def __init__(self, options: Options, choice: Choice) -> None:
        from bridge.config import load_settings

        assert options.log_events is not None
        settings = choice.settings or load_settings({})
        self._log = EventLog(
            options.log_events, Redactor(_keys(options, choice)), about(settings), max_bytes=0, on_error="stop"
        )
        self._options = options
        self.id = new_id("req")
        self.recorder = self._log.recorder
        self._began: float | None = None
        self._first: float | None = None
        self._ended = False
        self._usage: Usage | None = None
        self._calls: list[ToolCall] = []
        self._finished: Finished | None = None

    async def run(self, failed: Callable[[], None], task_status: trio.TaskStatus[None]) -> None:
        """Write it until cancelled; `failed` is called when it cannot be written."""
        await self._log.run(failed, task_status)

    def check(self) -> None:
        """Raise LogFailed when something could not be recorded."""
        self._log.check()

    def request(self, turn: Turn, outputs: Mapping[str, str]) -> None:
        """What is asked; only the first time counts."""
        if self._began is not None:
            return
        self._began = trio.current_time()
        asked: dict[str, Any] = {"path": "exec", "body": body_of(turn)}
        if self._options.auto_tools:
            asked |= {"tool_outputs": dict(outputs), "max_steps": self._options.max_steps}
        self.recorder.event("http_ingress", "in", "client_request", self.id, asked)

    def start(self, turn: Turn, backend: str, dropped: Sequence[str]) -> None:
        """The turn is about to begin."""
        payload = turn_start(turn, backend, dropped)
        self.recorder.event("turn", "none", "turn_start", self.id, payload)

    def saw(self, events: list[TurnEvent]) -> None:
        """What the backend has answered."""
        if self._first is None:
            self._first = self._seconds()
        for event in events:
            if isinstance(event, ToolCall):
                self._calls.append(event)
            elif isinstance(event, UsageUpdate):
                self._usage = event.usage
            elif isinstance(event, Finished):
                self._finished = event

    def line(self, line: bytes) -> None:
        """A line of the wire protocol, whether it is shown or not."""
        self.recorder.client_line(self.id, line)

    def end(self, end: Finished) -> None:
        """How the run has ended, unless the backend has told it better; only the first time counts."""
        if self._ended:
            return
        self._ended = True
        told = self._finished
        if told is not None and told.outcome not in ("completed", "failed") and end.outcome == "failed":
            end = Finished(told.outcome, told.reason, end.error)
        payload = turn_end(end, self._usage, self._calls, self._first, self._seconds())
        self.recorder.event("turn", "none", "turn_end", self.id, payload)

    def _seconds(self) -> float:
        assert self._began is not None
        return round(trio.current_time() - self._began, 6)


def body_of(turn: Turn) -> dict[str, Any]:
    """A turn as the body of a Responses request: read again, it is the same turn."""
    body = build_plain(build_body(turn, turn.session or ""), turn)
    body["model"] = turn.requested_model
    body["input"] = [_item(item) for item in turn.items]
    if not turn.parallel:
        body["parallel_tool_calls"] = False
    if not turn.instructions:
        del body["instructions"]
    if turn.session is None:
        del body["prompt_cache_key"]
    return body


def _item(item: Item) -> dict[str, Any]:
    """As for a provider, without what is changed for its sake."""
    data = item_object(item)
    if isinstance(item, Message):
        data["role"] = item.role
        _restore_details(item, data["content"])
    elif isinstance(item, FunctionCall) and item.namespace is not None:
        data |= {"name": item.name, "namespace": item.namespace}
    elif isinstance(item, FunctionOutput) and isinstance(data["output"], list):
        _restore_details(item, data["output"])
    elif isinstance(item, FunctionOutput) and len(item.parts) > 1:
        data["output"] = [{"type": "input_text", "text": getattr(part, "text", "")} for part in item.parts]
    return data


def _restore_details(item: Message | FunctionOutput, content: list[dict[str, Any]]) -> None:
    for part, shown in zip(item.parts, content, strict=True):
        if isinstance(part, Image) and part.detail is None:
            del shown["detail"]


def _keys(options: Options, choice: Choice) -> tuple[str, ...]:
    """The secrets that this run knows of; none of them is to stand in its log."""
    keys = [options.provider_key, choice.plan.key if choice.plan is not None else None]
    if choice.settings is not None:
        keys += choice.settings.api_keys
    if choice.kind == "url":
        from bridge.cli.exec.backends import bridge_key

        with suppress(UsageError):
            keys.append(bridge_key(options, choice))
    return tuple(key for key in keys if key)
