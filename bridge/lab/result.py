"""Results of a run, one JSON object a line, appended as they come: a broken run goes on where it was.

The first line tells what was run, and so does each line that begins a run of more cases or variants. A line that is
torn, or not ours, is passed over and counted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson

from bridge.errors import BridgeError, ConfigError
from bridge.lab.sample import Called, Sample
from bridge.lab.score import CHECKS, FORMS, Form, Score

FORMAT = 1
_HEAD = b'{"lab":'
"""How a line begins that tells what was run."""
Status = Literal["scored", "error"]


class Cell(NamedTuple):
    """One of the things to be done: a case, asked of a model in a variant, for the n-th time."""

    model: str
    variant: str
    case: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a cell came to. An error of the machinery has no form and no checks."""

    cell: Cell
    status: Status
    form: Form | None = None
    passed: bool = False
    repairs: tuple[str, ...] = ()
    rejections: tuple[str, ...] = ()
    checks: Mapping[str, bool | None] = field(default_factory=dict)
    f1: float = 0.0
    calls: tuple[Called, ...] = ()
    texts: tuple[str, ...] = ()
    error: Mapping[str, str] | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    req_id: str | None = None

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The checks of its meaning that failed."""
        return tuple(name for name in CHECKS if self.checks.get(name) is False)


def scored(cell: Cell, sample: Sample, score: Score, req_id: str | None = None) -> Result:
    """The result of a sample that has a score."""
    return Result(
        cell,
        "scored",
        score.form,
        score.passed,
        score.repairs,
        score.rejections,
        score.checks,
        round(score.f1, 4),
        score.calls,
        sample.texts,
        None,
        sample.input_tokens,
        sample.output_tokens,
        round(sample.seconds, 3),
        req_id,
    )


def failed(cell: Cell, sample: Sample, req_id: str | None = None) -> Result:
    """The result of a sample that never came."""
    assert sample.failure is not None
    error = {"code": sample.failure.code, "message": sample.failure.message}
    return Result(
        cell,
        "error",
        error=error,
        input_tokens=sample.input_tokens,
        output_tokens=sample.output_tokens,
        seconds=round(sample.seconds, 3),
        req_id=req_id,
    )


_MEMBERS = tuple(member.name for member in fields(Result) if member.name != "cell")


def to_line(result: Result) -> bytes:
    """A result as a line of the file."""
    return orjson.dumps(result.cell._asdict() | {name: getattr(result, name) for name in _MEMBERS}) + b"\n"


def from_line(line: bytes) -> Result | None:
    """A line as a result; None for one that is none."""
    try:
        data = orjson.loads(line)
        cell = Cell(str(data["model"]), str(data["variant"]), str(data["case"]), int(data["repeat"]))
        form = data["form"]
        return Result(
            cell,
            "scored" if data["status"] == "scored" and form in FORMS else "error",
            form if form in FORMS else None,
            data["passed"] is True,
            tuple(map(str, data["repairs"])),
            tuple(map(str, data["rejections"])),
            {name: value for name, value in data["checks"].items() if value in (True, False, None)},
            float(data["f1"]),
            tuple(Called(str(call["name"]), str(call["arguments"])) for call in data["calls"]),
            tuple(map(str, data["texts"])),
            {str(name): str(value) for name, value in data["error"].items()} if data["error"] is not None else None,
            int(data["input_tokens"]),
            int(data["output_tokens"]),
            float(data["seconds"]),
            data["req_id"],
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None


class ResultsLost(BridgeError):
    """What came back cannot be kept, so nothing more is asked."""

    code = "results_lost"


class ResultFile:
    """Appends results; reads them back one by one. Raises ConfigError for what is no file of results.

    With `own_directory` the directory is the program's own, and made with the file; else it must exist.
    """

    def __init__(self, path: Path, *, own_directory: bool = False) -> None:
        self.path = path
        self._own_directory = own_directory
        self.unread = 0
        """Lines that were no results."""
        self._descriptor: int | None = None

    def open(self, about: Mapping[str, Any], *, anew: bool = False) -> None:
        """Make ready to append, after a line that tells what follows, unless there is nothing to tell.

        One run at a time has the file: two would ask everything twice. `anew` empties it.
        """
        try:
            if self._own_directory:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if anew:
                os.ftruncate(self._descriptor, 0)
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                self._write(b"\n")
        except BlockingIOError:
            raise ConfigError(f"Another run is writing its results to {self.path}; name another file.") from None
        except OSError as error:
            raise ConfigError(f"The results cannot be written to {self.path}: {error.strerror}.") from error
        if about:
            self._write(orjson.dumps({"lab": FORMAT, **about}) + b"\n")

    def append(self, result: Result) -> None:
        """Write one result. Raises ResultsLost; what was written of it then is a torn line."""
        self._write(to_line(result))

    def _write(self, line: bytes) -> None:
        assert self._descriptor is not None
        try:
            why = "the disk is full" if os.write(self._descriptor, line) < len(line) else None
        except OSError as error:
            why = error.strerror
        if why is not None:
            raise ResultsLost(f"The results cannot be written to {self.path}: {why}.")

    def close(self) -> None:
        """Nothing more is appended."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def header(self) -> dict[str, Any]:
        """What the file says of itself."""
        try:
            with self.path.open("rb") as file:
                head = orjson.loads(file.readline(1024 * 1024))
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}.") from error
        except orjson.JSONDecodeError:
            head = None
        if not isinstance(head, dict) or not isinstance(head.get("lab"), int):
            raise ConfigError(f"{self.path} holds no results of `lab run`.")
        if head["lab"] > FORMAT:
            raise ConfigError(f"{self.path} was written by a newer program than this.")
        return head

    def known(self, name: str) -> dict[str, Any]:
        """All that the lines which tell what was run say under a name."""
        self.header()
        found: dict[str, Any] = {}
        with self.path.open("rb") as file:
            for line in file:
                if line.startswith(_HEAD):
                    with suppress(orjson.JSONDecodeError, TypeError, ValueError):
                        found.update(orjson.loads(line).get(name) or {})
        return found

    def __iter__(self) -> Iterator[Result]:
        self.header()
        with self.path.open("rb") as file:
            file.readline()
            for line in file:
                result = from_line(line)
                if result is None:
                    self.unread += bool(line.strip()) and not line.startswith(_HEAD)
                else:
                    yield result
