"""Suites from files: a file, or a directory of them, with everything that they include."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.errors import UsageError
from bridge.lab.case import Case
from bridge.lab.suite.choose import choose_cases
from bridge.lab.suite.content import read_cases, read_tools
from bridge.lab.suite.document import ENDINGS, read_document
from bridge.lab.suite.faults import Fault, Faults, Place
from bridge.lab.suite.nodes import Document
from bridge.lab.suite.shape import shape_faults
from bridge.lab.suite.tools import Known
from bridge.tools.schema import NOTHING, plain_copy

TOOLS_DIRECTORY = "tools"
"""Directories of this name hold no cases, but tools for those around them."""
MAX_FILES = 1_000


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases, each with another id, and the files that they come from, those of tools too."""

    cases: tuple[Case, ...]
    files: tuple[Path, ...] = ()


def load_suite(path: Path | str, *, only: Sequence[str] = ()) -> Suite:
    """The suite in a file, or in all files of a directory. `only` are patterns for `choose_cases`.

    Raises UsageError when anything is wrong with any of it: a line for each fault, with file, line and key.
    """
    path, loading = Path(path), _Loading()
    loading.load(path, None, ())
    loading.faults.raise_any()
    if not loading.cases:
        raise UsageError(f"{path}: there are no cases in it")
    return Suite(choose_cases(list(loading.cases.values()), only), tuple(loading.files.values()))


def case_from_dict(data: Mapping[str, Any], *, tools: Mapping[str, Mapping[str, Any]] | None = None) -> Case:
    """A case that a program made; `tools` are those that it names. Raises UsageError with a line for each fault."""
    faults = Faults()
    content = plain_copy({"tools": tools or {}, "cases": [data]})
    if content is NOTHING:
        raise UsageError("the case holds something that JSON does not know")
    cases = list(read_cases(Document(None, content, hidden=("cases", 0)), faults, lambda path: None))
    faults.raise_any()
    return cases[0][1]


class _Loading:
    """A suite being read, file by file."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.cases: dict[str, Case] = {}
        self.ids: dict[str, Fault] = {}
        """Where each id was first given."""
        self.files: dict[Path, Path] = {}
        """The files that were read, each by the one path that it has on this machine."""
        self.tools: dict[Path, Known | None] = {}

    def load(self, path: Path, asked: Fault | None, within: tuple[Path, ...]) -> None:
        """Read a file or directory. `asked` is where it was included, `within` the files that include each other."""
        if not path.exists():
            self.refuse(path, asked, "there is no such file")
            return
        if not path.is_dir():
            self.load_file(path, asked, within)
            return
        found = list(_files_in(path))
        if not found:
            self.refuse(path, asked, f"there is no file in it whose name ends in {', '.join(ENDINGS)}")
        for file in found:
            self.load_file(file, asked, within)

    def load_file(self, path: Path, asked: Fault | None, within: tuple[Path, ...]) -> None:
        real = path.resolve()
        if real in within:
            circle = " → ".join(str(self.files[file]) for file in (*within[within.index(real) :], real))
            self.refuse(path, asked, f"a file includes itself: {circle}")
        elif real not in self.files and self.counts(path, real, asked):
            document = read_document(path, self.faults)
            if document is not None:
                self.read(document, path, (*within, real))

    def read(self, document: Document, path: Path, within: tuple[Path, ...]) -> None:
        for _, case in read_cases(document, self.faults, lambda name: self.tools_at(name, document, path)):
            self.cases.setdefault(case.id, case)
        self.note_ids(document)
        include = document.data.get("include") if isinstance(document.data, dict) else None
        for index, name in enumerate(include if isinstance(include, list) else ()):
            if isinstance(name, str) and name:
                self.load(_beside(path, name), document.fault(("include", index), ""), within)

    def note_ids(self, document: Document) -> None:
        """Tell of ids that are taken, also of cases with other faults."""
        cases = document.data.get("cases") if isinstance(document.data, dict) else None
        for index, case in enumerate(cases if isinstance(cases, list) else ()):
            name = case.get("id") if isinstance(case, dict) else None
            if not isinstance(name, str):
                continue
            place: Place = ("cases", index)
            here = document.fault(place, "")
            if (first := self.ids.setdefault(name, here)) is not here:
                said = f"this id is taken: {name} is the case of {first.file}:{first.line}, too"
                self.faults.add(document.fault((*place, "id"), said))

    def tools_at(self, name: str, document: Document, path: Path) -> Known | None:
        """The tools in another file, which is read once."""
        target = _beside(path, name)
        asked = document.fault(("tools",), "")
        if not target.exists():
            self.refuse(target, asked, "there is no such file")
            return None
        real = target.resolve()
        if real not in self.tools:
            self.tools[real] = self.read_tools(target) if self.counts(target, real, asked) else None
        return self.tools[real]

    def read_tools(self, path: Path) -> Known | None:
        document = read_document(path, self.faults)
        if document is None:
            return None

        def report(place: Place, said: str) -> None:
            self.faults.add(document.fault(place, said))

        wrong: set[Place] = set()
        for place, said in shape_faults(document.data, "tools"):
            report(place, said)
            wrong.add(place[:1])
        return read_tools(document.data, (), wrong, report)

    def counts(self, path: Path, real: Path, asked: Fault | None) -> bool:
        """Whether one more file may be read."""
        if len(self.files) >= MAX_FILES:
            self.refuse(path, asked, f"a suite has at most {MAX_FILES:,} files")
            return False
        self.files[real] = path
        return True

    def refuse(self, path: Path, asked: Fault | None, said: str) -> None:
        """Tell of a path where it was asked for; by itself when a person gave it."""
        if asked is None:
            self.faults.add(Fault(path, 0, (), said))
        else:
            self.faults.add(Fault(asked.file, asked.line, asked.place, f"{path}: {said}"))


def _files_in(directory: Path) -> Iterator[Path]:
    for where, inner, names in os.walk(directory):
        inner[:] = sorted(name for name in inner if name != TOOLS_DIRECTORY and not name.startswith("."))
        for name in sorted(names):
            if name.endswith(ENDINGS) and not name.startswith("."):
                yield Path(where, name)


def _beside(path: Path, name: str) -> Path:
    """What a file calls `name`, without the detours that it may describe."""
    return Path(os.path.normpath(path.parent / name))
