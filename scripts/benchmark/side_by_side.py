"""One or two versions of the bridge, measured in turns.

What changes on the machine while it is measured (other programs, heat, page cache) then changes both alike.
"""

from __future__ import annotations

import io
import math
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent.parent
Values = dict[str, float]
"""Numbers by the names of their rows."""


class Unsupported(Exception):
    """A version cannot do what is measured. Of the version that is compared with, the row stays empty."""


@dataclass(frozen=True)
class Version:
    """A checkout, and the Python that has its dependencies."""

    name: str
    checkout: Path
    python: str


HERE = Version("this version", ROOT, sys.executable)


@contextmanager
def installed(ref: str) -> Iterator[Version]:
    """Another version of the repository, in a virtual environment of its own."""
    with tempfile.TemporaryDirectory(prefix="turnbridge-against-") as directory:
        checkout = Path(directory)
        # An archive and not a worktree: a run that is killed leaves nothing behind in the repository.
        packed = subprocess.run(["git", "archive", "--format=tar", ref], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(checkout, filter="data")
        progress(f"installing {ref} (a minute)")
        python = checkout / ".venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", checkout / ".venv"], check=True)
        install: list[str | Path] = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--editable",
            checkout,
        ]
        subprocess.run([python, *install], check=True)
        yield Version(ref, checkout, str(python))


@dataclass
class Run:
    """The versions to measure, how often, and what there is to say besides the numbers."""

    versions: list[Version]
    rounds: int = 5
    notes: list[str] = field(default_factory=list)

    def medians(
        self, subjects: Sequence[T | None], *measures: Callable[[T], Values], rounds: int | None = None
    ) -> list[Values]:
        """What each subject (a version's bridge, mostly) shows: the medians of rounds in which they take turns.

        A missing subject has no numbers, and neither has another version that raises `Unsupported`.
        """
        found: list[dict[str, list[float]]] = [{} for _ in subjects]
        lacking: set[tuple[int, int]] = set()
        for _ in range(rounds or self.rounds):
            for which, measure in enumerate(measures):
                for number, subject in enumerate(subjects):
                    if subject is None or (which, number) in lacking:
                        continue
                    try:
                        values = measure(subject)
                    except Unsupported as reason:
                        self.lacks(number, reason)
                        lacking.add((which, number))
                        continue
                    for name, value in values.items():
                        found[number].setdefault(name, []).append(value)
        return [{name: statistics.median(values) for name, values in column.items()} for column in found]

    def lacks(self, number: int, reason: Unsupported) -> None:
        """A subject cannot do something: a fault if it is this version's."""
        version = self.versions[number % len(self.versions)]
        if version is self.versions[0]:
            raise reason
        progress(f"  {version.name}: {reason}")


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the others is; not a number for none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else math.nan
