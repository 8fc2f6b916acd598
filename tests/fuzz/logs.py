"""Event logs: whatever a file holds, every reader reads it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fuzz.cutting import choice

from bridge.errors import ConfigError
from bridge.log.child_side import read_child
from bridge.log.content import AnswerReader, backend_messages, sent_values
from bridge.log.log import Log
from bridge.log.read import RecordReader, Trouble, log_files, read_blocks
from bridge.log.recording import Recording, read_recordings
from bridge.log.request import messages_from_body, tools_offered
from bridge.log.summary import Scanner


def read_log(data: bytes) -> None:
    """The quick look and the slow reading come to their end, and all that is shown of a request can be made."""
    body = data[1:]
    directory = Path(tempfile.gettempdir()) / f"fuzzed-log-{os.getpid()}"
    directory.mkdir(exist_ok=True)
    path = directory / "log.ndjson"
    try:
        path.write_bytes(body)
        _read(path, 1 + choice(data))
    except ConfigError:
        pass
    finally:
        path.unlink()
        directory.rmdir()


def _read(path: Path, block: int) -> None:
    log = Log(path)
    summaries = list(log.summaries())
    for summary in summaries:
        list(log.records(summary))
    log.trouble.sentences()
    _scan(path, block)
    for recording in read_recordings(RecordReader(log_files(path))):
        _show(recording)
    read_child(RecordReader(log_files(path)))


def _scan(path: Path, size: int) -> None:
    """The quick look, in blocks of this size."""
    scanner, trouble = Scanner(path.name), Trouble()
    for at, block in read_blocks(path, trouble, size=size):
        scanner.feed(at, block)
    list(scanner.rest(path.stat().st_size))
    trouble.add(scanner.trouble)


def _show(recording: Recording) -> None:
    list(messages_from_body(recording.body))
    tools_offered(recording.body)
    backend_messages(recording)
    answer = AnswerReader()
    for piece in recording.client:
        for value in sent_values(piece.kind, piece.payload):
            answer.take(value)
    answer.answer()
    assert recording.sent is not None
