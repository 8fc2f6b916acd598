"""The program's log on stderr: lines for people or JSON objects for programs, without secrets or control characters.

All code logs through `logging`; this module sets up the format once. A line that belongs to a request carries the
request's id, which its tasks find in their context.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

import orjson

from bridge.redact import Redactor
from bridge.terminal import escape_block, escape_line

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

ACCESS = "bridge.access"
"""The logger with a line for each finished request; on the console it is silent unless the level is debug."""


@dataclass(frozen=True, slots=True)
class RequestNames:
    """A request: its id, and the id that its client gave it."""

    id: str | None
    clients: str | None = None
    is_http: bool = False
    """Whether the task serves this request alone. On a WebSocket each message is a request."""


_NO_REQUEST = RequestNames(None)
current_request: ContextVar[RequestNames] = ContextVar("current_request", default=_NO_REQUEST)
"""The request that this task works for."""

_RECORD_MEMBERS = {*logging.makeLogRecord({}).__dict__, "message", "asctime"}
"""What every record has; all else was passed as `extra`."""


class ConsoleFormatter(logging.Formatter):
    """`LEVEL name: message [request]`. A traceback is indented, so that no text in it can pass for a line."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self.redactor = redactor

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        request = current_request.get().id
        # Many messages contain the id already.
        marked = text if request is None or request in text else f"{text} [{request}]"
        return escape_line(marked)

    def format(self, record: logging.LogRecord) -> str:
        head, *more = super().format(record).split("\n")
        block = "\n".join([head, *(f"  {line}" for line in more)])
        return self.redactor.text(_encode(escape_block(block))).decode()


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `timestamp`, `level`, `logger`, `event`, the request's ids, then the extra members."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self.redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        request = current_request.get()
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if request.id is not None:
            line["request_id"] = request.id
        if request.clients is not None:
            line["client_request_id"] = request.clients
        line |= {name: value for name, value in record.__dict__.items() if name not in _RECORD_MEMBERS}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack_info"] = record.stack_info
        # orjson refuses half of a surrogate pair, so it is spelt out.
        texts = {name: _encode(value).decode() for name, value in line.items() if isinstance(value, str)}
        encoded = orjson.dumps(line | texts, default=repr)
        return escape_line(self.redactor.json(encoded).decode())


def set_up(
    form: LogFormat = "console", level: LogLevel = "warning", secrets: Sequence[str] = (), stream: TextIO | None = None
) -> Redactor:
    """Log to stderr in this format from now on. Returns the redactor that all lines pass through.

    `level` is for the program's own loggers; other libraries log warnings and above. `secrets` are values to redact in
    addition to everything that looks like a secret. Uncaught exceptions are logged in the same format.
    """
    redactor = Redactor(tuple(secrets))
    handler = _NonBlockingHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(redactor) if form == "json" else ConsoleFormatter(redactor))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _NonBlockingHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    own = logging.getLogger("bridge")
    own.setLevel(level.upper())
    quiet = form == "console" and not own.isEnabledFor(logging.DEBUG)
    logging.getLogger(ACCESS).setLevel(logging.WARNING if quiet else logging.NOTSET)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    return redactor


class _NonBlockingHandler(logging.StreamHandler[TextIO]):
    """Writes to stderr without ever waiting; a class of its own, so that handlers set up by others stay in place.

    A parent process that does not read our stderr would otherwise block the event loop, and with it every request.
    Lines that do not fit into the pipe are dropped, and a line with their number follows when there is room again.
    """

    _dropped = 0
    _torn = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            descriptor = self.stream.fileno()
        except (AttributeError, OSError, ValueError):  # not backed by a file descriptor
            super().emit(record)
            return
        try:
            lines = b"\n" if self._torn else b""
            if self._dropped:
                message = "%d log line(s) dropped: stderr was not read in time"
                about = ("bridge.logs", logging.WARNING, __file__, 0, message, (self._dropped,), None)
                lines += self._encoded(logging.LogRecord(*about))
            lines += self._encoded(record)
            written = _write_at_once(descriptor, lines)
            self._dropped = self._dropped + 1 if written < len(lines) else 0
            if written:
                self._torn = lines[written - 1] != ord("\n")
        except Exception:
            self.handleError(record)

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return _encode(self.format(record) + self.terminator)


def _write_at_once(descriptor: int, data: bytes) -> int:
    """Write as much as possible without waiting; returns the number of bytes written."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    written = 0
    while written < len(data):
        ready = poll.poll(0)
        if not ready or not ready[0][1] & select.POLLOUT:
            break
        # A pipe that is ready accepts PIPE_BUF bytes at once; anything else accepts all.
        written += os.write(descriptor, data[written : written + select.PIPE_BUF])
    return written


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        logging.getLogger("bridge").critical("the program stopped because of an internal error", exc_info=error)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
