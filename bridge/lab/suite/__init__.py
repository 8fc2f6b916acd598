"""Load suites: a file of cases or a directory of them, with the files that they include, and check what the shape of a
file cannot tell.

Every fault names the file, the line and the key. All faults are reported at once; a suite with a fault gives no cases.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.errors import UsageError
from bridge.lab.case import Case
from bridge.lab.suite.cases import CaseReader, Tools, read_tools
from bridge.lab.suite.document import (
    ENDINGS,
    Document,
    Fault,
    did_you_mean,
    expand_repeats,
    raise_faults,
    read_document,
)
from bridge.lab.suite.models import CaseShape, check_shape
from bridge.tools.schema import NOTHING, plain_copy

__all__ = ["Suite", "case_from_dict", "did_you_mean", "load_suite"]

TOOLS_DIRECTORY = "tools"
"""Directories of this name hold tools for the suites around them, and no cases."""
MAX_FILES = 1_000


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases with distinct ids, and all files that they come from."""

    cases: tuple[Case, ...]
    files: tuple[Path, ...] = ()


def load_suite(path: Path | str) -> Suite:
    """The suite in a file, or in all files of a directory. Raises UsageError with one line per fault."""
    loader = _Loader()
    loader.load(Path(path))
    raise_faults(loader.faults)
    if not loader.cases:
        raise UsageError(f"{path}: contains no cases")
    return Suite(tuple(loader.cases.values()), tuple(loader.files.values()))


def case_from_dict(data: Mapping[str, Any], *, tools: Mapping[str, Mapping[str, Any]] | None = None) -> Case:
    """A case built by a program; `tools` are the shared tools. Raises UsageError with one line per fault."""
    content = plain_copy({"tools": tools or {}, "cases": [data]})
    if content is NOTHING:
        raise UsageError("the case holds a value that JSON cannot represent")
    loader = _Loader()
    loader.read(Document(None, content, loader.faults, hidden=("cases", 0)))
    raise_faults(loader.faults)
    (case,) = loader.cases.values()
    return case


class _Loader:
    """Loads a suite file by file."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.cases: dict[str, Case] = {}
        self.ids: dict[str, Fault] = {}
        """Where each id was first used."""
        self.files: dict[Path, Path] = {}
        """The files that were read, by their resolved path."""
        self.tools: dict[Path, Tools | None] = {}

    def load(self, path: Path, origin: Fault | None = None, within: tuple[Path, ...] = ()) -> None:
        """Load a file or directory. `origin` is where it was included, `within` the chain of including files."""
        if not path.exists():
            self.refuse(path, origin, "no such file")
            return
        files = list(_files_in(path)) if path.is_dir() else [path]
        if not files:
            self.refuse(path, origin, f"contains no file whose name ends in {', '.join(ENDINGS)}")
        for file in files:
            real = file.resolve()
            if real in within:
                cycle = " → ".join(str(self.files[each]) for each in (*within[within.index(real) :], real))
                self.refuse(file, origin, f"includes itself: {cycle}")
            elif real not in self.files and len(self.files) >= MAX_FILES:
                self.refuse(file, origin, f"a suite may have at most {MAX_FILES:,} files")
            elif real not in self.files:
                self.files[real] = file
                document = read_document(file, self.faults)
                if document is not None:
                    self.read(document, (*within, real))

    def read(self, document: Document, within: tuple[Path, ...] = ()) -> None:
        """Keep the correct cases of a document, report the faults of all others, and load what it includes."""
        data = expand_repeats(document)
        wrong = check_shape(data, "suite", document.report)
        if not isinstance(data, dict):
            return
        if not data.keys() & {"cases", "include"}:
            document.report((), "add cases or include; the file has neither")
        tools = data.get("tools", {})
        if isinstance(tools, str):
            shared = self.tools_at(tools, document)
        else:
            shared = read_tools(tools, ("tools",), wrong, document)
        defaults = data.get("defaults", {})
        for index, case in enumerate(_listed(data.get("cases"))):
            # Without its defaults a case cannot be checked.
            if not {("defaults",), ("cases", index)} & wrong:
                tags = [*defaults.get("tags", ()), *case.get("tags", ())]
                shape = CaseShape.model_validate({**defaults, **case, "tags": tags})
                reader = CaseReader(shape, defaults.keys() - case.keys(), shared, ("cases", index), document)
                if (read := reader.case()) is not None:
                    self.cases.setdefault(read.id, read)
            # Ids may clash with those of cases that have other faults.
            if isinstance(case, dict) and isinstance(name := case.get("id"), str):
                here = document.fault(("cases", index))
                if (first := self.ids.setdefault(name, here)) is not here:
                    message = f"duplicate id {name}; first used at {first.file}:{first.line}"
                    document.report(("cases", index, "id"), message)
        for index, name in enumerate(_listed(data.get("include"))):
            if isinstance(name, str) and name:
                self.load(_beside(document, name), document.fault(("include", index)), within)

    def tools_at(self, name: str, document: Document) -> Tools | None:
        """The tools in another file, which is read once; None if they cannot be read."""
        target = _beside(document, name)
        real = target.resolve()
        if real in self.tools:
            return self.tools[real]
        if not target.exists():
            self.refuse(target, document.fault(("tools",)), "no such file")
            return None
        self.files[real], self.tools[real] = target, None
        found = read_document(target, self.faults)
        if found is not None:
            self.tools[real] = read_tools(found.data, (), check_shape(found.data, "tools", found.report), found)
        return self.tools[real]

    def refuse(self, path: Path, origin: Fault | None, message: str) -> None:
        """Report a path where a file names it, or by itself if it came from the command line."""
        fault = Fault(path, 0, (), message)
        if origin is not None:
            fault = Fault(origin.file, origin.line, origin.path, f"{path}: {message}")
        self.faults.append(fault)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _files_in(directory: Path) -> Iterator[Path]:
    for where, inner, names in os.walk(directory):
        inner[:] = sorted(name for name in inner if name != TOOLS_DIRECTORY and not name.startswith("."))
        for name in sorted(names):
            if name.endswith(ENDINGS) and not name.startswith("."):
                yield Path(where, name)


def _beside(document: Document, name: str) -> Path:
    """The path that a file calls `name`, without `..`."""
    assert document.file is not None
    return Path(os.path.normpath(document.file.parent / name))
