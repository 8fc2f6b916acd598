"""The result of a request, and the file of a run's results, so that a run can be continued.

The file has one JSON object per line, appended as results come. The first line describes the run; a run that adds cases
or variants appends another such line. Lines that are torn or not results are skipped and counted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from sys import intern
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, Field, TypeAdapter

from bridge.core.items import FunctionTool
from bridge.errors import BridgeError, ConfigError
from bridge.lab.case import Called, Case, Ended, Expect, Sample, Verdict
from bridge.lab.checks import CHECKS, explain
from bridge.lab.score import Form, Reading, read_answer, score
from bridge.lab.variant import LabVariant

FORMAT = 1
_HEAD = b'{"lab":'
"""How a line that describes a run begins."""


class Cell(NamedTuple):
    """One request of a run: a case, asked of a model in a variant, for the n-th time."""

    model: str
    variant: str
    case: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a cell. A failed request has an error, but no form and no checks."""

    cell: Cell
    status: Literal["scored", "error"]
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
    verdicts: tuple[Verdict, ...] = ()
    ended: Ended | None = None
    """Of an episode."""

    @property
    def failed_checks(self) -> tuple[str, ...]:
        return tuple(name for name in CHECKS if self.checks.get(name) is False)

    def explain(self, case: Case | None, variant: LabVariant | None) -> tuple[Reading, list[tuple[str, str]]]:
        """The answer, read again, and (check, sentence) for each reason why it failed.

        Without its case, whose suite may have moved, an answer is read as if what it calls were offered. A variant that
        is not known is assumed to have the usual tags.
        """
        offered = tuple(FunctionTool(name) for name in dict.fromkeys(call.name for call in self.calls))
        known = case or Case(self.cell.case, "", (), Expect(), offered)
        variant = variant or LabVariant(self.cell.variant)
        reading = read_answer(known, variant, Sample(self.texts, ended=self.ended))
        asked = variant.apply(case) if case is not None else None
        return reading, explain(self.failed_checks, asked, self.calls, reading.final, self.verdicts, self.ended)


def score_sample(cell: Cell, case: Case, variant: LabVariant, sample: Sample, req_id: str | None = None) -> Result:
    """The result of a cell, whether there is an answer or not."""
    spent: dict[str, Any] = {
        "input_tokens": sample.input_tokens,
        "output_tokens": sample.output_tokens,
        "seconds": round(sample.seconds, 3),
        "req_id": req_id,
    }
    if sample.failure is not None:
        return Result(cell, "error", error={"code": sample.failure.code, "message": sample.failure.message}, **spent)
    found = score(case, variant, sample)
    return Result(
        cell,
        "scored",
        found.form,
        found.passed,
        found.repairs,
        found.rejections,
        found.checks,
        round(found.f1, 4),
        found.calls,
        sample.texts,
        **spent,
        verdicts=sample.verdicts,
        ended=sample.ended,
    )


_MEMBERS = tuple(member.name for member in fields(Result) if member.name != "cell")
_RARE = ("verdicts", "ended")
"""Members that few results have."""
_RESULT = TypeAdapter(Result)


def to_line(result: Result) -> bytes:
    data = result.cell._asdict() | {name: getattr(result, name) for name in _MEMBERS}
    data["verdicts"] = [verdict._asdict() for verdict in result.verdicts]
    return orjson.dumps({name: value for name, value in data.items() if value or name not in _RARE}) + b"\n"


def from_line(line: bytes) -> Result | None:
    """The result in a line; None for any other line."""
    try:
        data = orjson.loads(line)
        # Many lines have the same few names: keep each once.
        cell = Cell(intern(data["model"]), intern(data["variant"]), intern(data["case"]), data["repeat"])
        return _RESULT.validate_python({**data, "cell": cell})
    except (KeyError, TypeError, ValueError):
        return None


class About(BaseModel):
    """What a line that describes a run says: fingerprints by name, and repetitions by model and variant."""

    lab: int
    suite: str = ""
    log: str | None = Field(None, alias="from")
    """The log whose answers were scored."""
    cases: dict[str, str] = {}
    variants: dict[str, str] = {}
    levels: dict[str, dict[str, str]] = {}
    """The level of each dimension, by the name of a variant of a matrix."""
    plan: dict[str, dict[str, int]] = {}


class ResultsLost(BridgeError):
    """Results cannot be written, so nothing more is asked."""

    code = "results_lost"


class ResultFile:
    """Appends results and reads them one by one. Raises ConfigError for a file without results.

    With `own_directory` the directory is created with the file; otherwise it must exist.
    """

    def __init__(self, path: Path, *, own_directory: bool = False) -> None:
        self.path = path
        self._own_directory = own_directory
        self.unread = 0
        """Lines that are not results."""
        self._descriptor: int | None = None

    def open(self, about: Mapping[str, Any], *, truncate: bool = False) -> None:
        """Prepare to append, after a line that describes the run, unless `about` is empty. `truncate` empties it first.

        Only one run at a time has the file: two would ask everything twice.
        """
        try:
            if self._own_directory:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if truncate:
                os.ftruncate(self._descriptor, 0)
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                self._write(b"\n")
        except BlockingIOError:
            raise ConfigError(f"Another run is writing its results to {self.path}. Choose another file.") from None
        except OSError as error:
            raise ConfigError(f"Cannot write results to {self.path}: {error.strerror}.") from error
        if about:
            self._write(orjson.dumps({"lab": FORMAT, **about}) + b"\n")

    def append(self, result: Result) -> None:
        """Write one result. Raises ResultsLost, which may leave a torn line."""
        self._write(to_line(result))

    def _write(self, line: bytes) -> None:
        assert self._descriptor is not None
        try:
            why = "the disk is full" if os.write(self._descriptor, line) < len(line) else None
        except OSError as error:
            why = error.strerror
        if why is not None:
            raise ResultsLost(f"Cannot write results to {self.path}: {why}.")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def head(self) -> About:
        """The first line."""
        try:
            with self.path.open("rb") as file:
                head = About.model_validate_json(file.readline(1024 * 1024), strict=True)
        except OSError as error:
            raise ConfigError(f"Cannot read {self.path}: {error.strerror}.") from error
        except ValueError:
            raise ConfigError(f"{self.path} does not hold results of `lab run`.") from None
        if head.lab > FORMAT:
            raise ConfigError(f"{self.path} was written by a newer version of this program.")
        return head

    def about(self) -> About:
        """The first line, with what later lines add to it."""
        about = self.head()
        with self.path.open("rb") as file:
            for line in file:
                if line.startswith(_HEAD):
                    with suppress(ValueError):
                        more = About.model_validate_json(line)
                        about.cases |= more.cases
                        about.variants |= more.variants
                        about.levels |= more.levels
                        about.plan |= more.plan
        return about

    def __iter__(self) -> Iterator[Result]:
        self.head()
        with self.path.open("rb") as file:
            file.readline()
            for line in file:
                result = from_line(line)
                if result is None:
                    self.unread += bool(line.strip()) and not line.startswith(_HEAD)
                else:
                    yield result


class Only(NamedTuple):
    """Which results of a file are wanted. An empty collection means all."""

    cases: Collection[str] = ()
    variants: Collection[str] = ()
    models: Collection[str] = ()

    def accepts(self, cell: Cell) -> bool:
        return (
            (not self.cases or cell.case in self.cases)
            and (not self.variants or cell.variant in self.variants)
            and (not self.models or cell.model in self.models)
        )


ALL = Only()


class CountedResults:
    """The results of a file that count, one per cell. Each iteration reads the file again.

    If a cell was asked again its last result counts; an error counts only if there is no score. Raises ConfigError for
    a file without results.
    """

    def __init__(self, file: ResultFile, only: Only = ALL) -> None:
        self._file = file
        self._replaced: set[int] = set()
        """The results that do not count. Only line numbers are kept in memory, one per cell."""
        self.left_out = 0
        """How many results are not wanted."""
        unread = file.unread
        best: dict[Cell, tuple[int, bool]] = {}
        for number, result in enumerate(file):
            cell, scored = result.cell, result.status == "scored"
            known, known_scored = best.get(cell, (-1, False))
            if not only.accepts(cell):
                self._replaced.add(number)
                self.left_out += 1
            elif known_scored and not scored:
                self._replaced.add(number)
            else:
                self._replaced.add(known)
                best[cell] = (number, scored)
        self.unread = file.unread - unread
        """How many lines are not results."""

    def __iter__(self) -> Iterator[Result]:
        return (result for number, result in enumerate(self._file) if number not in self._replaced)
