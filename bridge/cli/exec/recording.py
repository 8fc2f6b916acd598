"""The event log of a run (--log-events): its request, the backend's frames, the lines of the wire protocol, the end.

Loaded only when it is needed: a run should begin quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from bridge.cli.exec.backends import Choice, bridge_key
from bridge.cli.exec.options import Options, base_url
from bridge.core.events import Finished, TurnEvent, Usage, UsageUpdate
from bridge.core.observer import TurnFacts
from bridge.core.turn import Turn
from bridge.errors import UsageError
from bridge.ids import new_id
from bridge.log.event_log import EventLog, about
from bridge.log.record import LogObserver, calls_in
from bridge.protocols.responses.build import build_request
from bridge.redact import Redactor


class RunLog:
    """The log of one run. Raises ConfigError when it cannot be written.

    Call `request` in any case, `start` when the backend is, and `end` after the last line.
    """

    def __init__(self, options: Options, choice: Choice) -> None:
        from bridge.settings import load_settings

        assert options.log_events is not None
        settings = choice.settings or load_settings({})
        self._log = EventLog(
            options.log_events, Redactor(_keys(options, choice)), about(settings), max_bytes=0, on_error="stop"
        )
        self._options = options
        self.id = new_id("req")
        self.recorder = self._log.recorder
        self._observer = LogObserver(self.recorder)
        self._facts: TurnFacts | None = None
        self._ended = False
        self._usage: Usage | None = None
        self._finished: Finished | None = None

    async def run(self, failed: Callable[[], None], task_status: trio.TaskStatus[None]) -> None:
        """Write it until cancelled; `failed` is called when it cannot be written."""
        await self._log.run(failed, task_status)

    def check(self) -> None:
        """Raise LogFailed when something could not be recorded."""
        self._log.check()

    def request(self, turn: Turn, outputs: Mapping[str, str]) -> None:
        """Record the request; only the first call counts."""
        if self._facts is not None:
            return
        self._facts = TurnFacts(self.id, "", trio.current_time())
        request: dict[str, Any] = {"path": "exec", "body": build_request(turn)}
        if self._options.auto_tools:
            request |= {"tool_outputs": dict(outputs), "max_steps": self._options.max_steps}
        self._observer.arrived(self._facts, request)

    def start(self, turn: Turn, backend: str, dropped: Sequence[str]) -> None:
        """The turn is about to begin."""
        assert self._facts is not None
        self._facts.turn, self._facts.backend, self._facts.dropped = turn, backend, tuple(dropped)
        self._observer.starting(self._facts)

    def record_events(self, events: list[TurnEvent]) -> None:
        """Events of the backend's answer."""
        assert self._facts is not None
        if self._facts.first is None:
            self._facts.first = trio.current_time()
        self._facts.calls += calls_in(events)
        for event in events:
            if isinstance(event, UsageUpdate):
                self._usage = event.usage
            elif isinstance(event, Finished):
                self._finished = event

    def line(self, line: bytes) -> None:
        """A line of the wire protocol, whether it is shown or not."""
        self.recorder.client_line(self.id, line)

    def end(self, end: Finished) -> None:
        """Record how the run ended, unless the backend has reported it in more detail; only the first call counts."""
        if self._ended:
            return
        self._ended = True
        reported = self._finished
        if reported is not None and reported.outcome not in ("completed", "failed") and end.outcome == "failed":
            end = Finished(reported.outcome, reported.reason, end.error)
        assert self._facts is not None
        self._observer.ended(self._facts, end, self._usage, trio.current_time())


def _keys(options: Options, choice: Choice) -> tuple[str, ...]:
    """The secrets of this run, which its log must not contain."""
    keys = [options.provider_key, choice.plan.key if choice.plan is not None else None]
    if choice.settings is not None:
        keys += choice.settings.api_keys
    if choice.kind == "url" and options.url is not None:
        with suppress(UsageError):
            url = base_url(options.url, insecure_http=options.insecure_http)
            keys.append(bridge_key(url, options.provider_key, choice.required_settings))
    return tuple(key for key in keys if key)
