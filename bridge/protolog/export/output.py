"""Where an export goes: a file that is there whole or not at all, or stdout."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.errors import BridgeError, ConfigError


class WriteFailed(BridgeError):
    """What was begun could not be written to its end: the disk is full, perhaps."""

    code = "write_failed"


def write_pieces(path: Path, pieces: Iterable[bytes], *, instead_of: Iterable[Path] = ()) -> None:
    """Write to a file (0600: it tells what a log tells), or to stdout when it is `-`.

    Raises ConfigError when there is no place for it, or it is one of `instead_of`, the files that it is made from, and
    WriteFailed when it cannot be written to its end.
    """
    if str(path) == "-":
        _to_stdout(pieces)
        return
    refuse_input(path, instead_of)
    if path.exists() and not path.is_file():
        _to_device(path, pieces)
        return
    with unfinished(path) as temporary:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        temporary.replace(path)


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A new file (0600) beside `path`, to be renamed to it when it is whole; else it is gone at the end."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
    os.close(descriptor)
    try:
        yield Path(name)
    except OSError as error:
        raise WriteFailed(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        Path(name).unlink(missing_ok=True)


def refuse_input(path: Path, inputs: Iterable[Path]) -> None:
    """Raises ConfigError when a file would take the place of what it is made from."""
    for source in inputs:
        if path.resolve() == source.resolve() or (path.exists() and path.samefile(source)):
            raise ConfigError(f"{path} is the log itself. Give the copy another name.")


def _to_device(path: Path, pieces: Iterable[bytes]) -> None:
    """A pipe or a device stays what it is."""
    try:
        with path.open("wb") as file:
            for piece in pieces:
                file.write(piece)
    except OSError as error:
        raise WriteFailed(f"{path} cannot be written: {error.strerror}.") from error


def _to_stdout(pieces: Iterable[bytes]) -> None:
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except OSError as error:
        # Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # then whoever reads has enough
            raise WriteFailed(f"stdout cannot be written: {error.strerror}.") from error
