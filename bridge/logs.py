"""What the program says on stderr: a line for people, or a JSON object for programs. No secrets, no control characters.

A line that belongs to a request has the request's id, which its tasks find in their context. Everybody writes through
`logging`; this is about how it looks, and it is set up once.
"""

from __future__ import annotations

import logging
import os
import re
import select
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TextIO

import orjson

from bridge.redact import Redactor

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

ACCESS = "bridge.access"
"""The logger that tells of each request when it has ended; on the console only where everything is told."""


@dataclass(frozen=True, slots=True)
class RequestNames:
    """A request: its id, and what its client calls it."""

    id: str | None
    clients: str | None = None
    is_http: bool = False
    """Whether the whole task is this one request's. On a WebSocket each message is a request."""


NOBODYS = RequestNames(None)
current_request: ContextVar[RequestNames] = ContextVar("current_request", default=NOBODYS)
"""The request that this task works for."""

_FIRST = ("timestamp", "level", "logger", "event", "request_id", "client_request_id")
_HIDDEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
"""What a terminal would obey, or would show as something else than it is."""
_IN_BLOCK = re.compile(f"[{_HIDDEN}]")
_IN_LINE = re.compile(f"[\n\t{_HIDDEN}]")


class ConsoleFormatter(logging.Formatter):
    """`LEVEL name: message [request]`; what follows of a traceback is indented, so that nothing can pass for a line."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self.redactor = redactor

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        request = current_request.get().id
        # Many messages name it already, in their own words.
        marked = text if request is None or request in text else f"{text} [{request}]"
        return _IN_LINE.sub(_escaped, marked)

    def format(self, record: logging.LogRecord) -> str:
        head, *more = super().format(record).split("\n")
        block = "\n".join([head, *(f"  {line}" for line in more)])
        return _redacted(self.redactor, _IN_BLOCK.sub(_escaped, block))


def json_formatter(redactor: Redactor) -> logging.Formatter:
    """One JSON object a line: `timestamp`, `level`, `logger`, `event`, the request's ids, and what else is known."""
    structlog = _load_structlog()

    def add_request(logger: Any, name: str, event: dict[str, Any]) -> dict[str, Any]:
        names = current_request.get()
        for member, found in (("request_id", names.id), ("client_request_id", names.clients)):
            if found is not None:
                event.setdefault(member, found)
        return event

    def render(logger: Any, name: str, event: dict[str, Any]) -> str:
        ordered = {member: event.pop(member) for member in _FIRST if member in event} | event
        line = orjson.dumps({member: _plain(value) for member, value in ordered.items()}, default=repr)
        return _IN_LINE.sub(_escaped, redactor.json(line).decode())

    formatter: logging.Formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_logger_name,
            structlog.stdlib.add_log_level,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            add_request,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            render,
        ],
        use_get_message=True,
    )
    return formatter


def set_up(
    form: LogFormat = "console", level: LogLevel = "warning", secrets: Sequence[str] = (), stream: TextIO | None = None
) -> Redactor:
    """Write what is said to stderr from now on, in this form; the redactor that looks at all of it.

    `level` is for the program's own loggers, others tell from warnings on. `secrets` are values that never show, beside
    all that look like one. What nobody catches is told in the same way.
    """
    redactor = Redactor(tuple(secrets))
    handler = _Said(stream or sys.stderr)
    handler.setFormatter(json_formatter(redactor) if form == "json" else ConsoleFormatter(redactor))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Said)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    own = logging.getLogger("bridge")
    own.setLevel(level.upper())
    quiet = form == "console" and not own.isEnabledFor(logging.DEBUG)
    logging.getLogger(ACCESS).setLevel(logging.WARNING if quiet else logging.NOTSET)
    logging.captureWarnings(True)
    sys.excepthook = _tell_uncaught
    return redactor


class _Said(logging.StreamHandler[TextIO]):
    """Ours: what another program that loads us has set up stays as it is.

    It never waits. Whoever started us may not read what we say; to wait for that would be to wait in the event loop,
    for everybody. Lines for which there is no room are dropped, and it is told when there is room again.
    """

    _dropped = 0
    _torn = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            descriptor = self.stream.fileno()
        except (AttributeError, OSError, ValueError):  # not a file of the system's
            super().emit(record)
            return
        try:
            lines = b"\n" if self._torn else b""
            if self._dropped:
                lines += self._encoded(_dropped_lines(self._dropped))
            lines += self._encoded(record)
            written = _write_at_once(descriptor, lines)
            self._dropped = self._dropped + 1 if written < len(lines) else 0
            if written:
                self._torn = lines[written - 1] != ord("\n")
        except Exception:
            self.handleError(record)

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return (self.format(record) + self.terminator).encode("utf-8", "backslashreplace")


def _dropped_lines(count: int) -> logging.LogRecord:
    message = "%d line(s) were dropped here: nobody read them in time"
    return logging.LogRecord("bridge.logs", logging.WARNING, __file__, 0, message, (count,), None)


def _write_at_once(descriptor: int, data: bytes) -> int:
    """Write what can be written without waiting; how much that was."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    written = 0
    while written < len(data):
        ready = poll.poll(0)
        if not ready or not ready[0][1] & select.POLLOUT:
            break
        # What is ready takes so much; what is no pipe takes all.
        written += os.write(descriptor, data[written : written + select.PIPE_BUF])
    return written


def _tell_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        logging.getLogger("bridge").critical("the program ended by a mistake of its own", exc_info=error)


def _redacted(redactor: Redactor, text: str) -> str:
    return redactor.text(text.encode("utf-8", "backslashreplace")).decode()


def _plain(value: Any) -> Any:
    """A value as JSON takes it: half of a surrogate pair is spelt out."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _escaped(found: re.Match[str]) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(found[0], f"\\u{ord(found[0]):04x}")


def _load_structlog() -> Any:
    """structlog, without rich: it would load it for coloured tracebacks, and it is four times as large as all of it."""
    missing = "rich" not in sys.modules
    if missing:
        sys.modules["rich"] = None  # type: ignore[assignment]  # which is how an import is told that there is none
    try:
        import structlog
    finally:
        if missing:
            del sys.modules["rich"]
    return structlog
