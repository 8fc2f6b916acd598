"""A log's summaries, remembered: what was scanned once is not scanned again.

Each file of a log has an index of its own in the cache: its summaries as they ended, and a last line that tells how far
the file was read, how to know it again, and what had not ended there. A file that grew is read on from there; one that
changed is read anew. Whatever is wrong with an index or with the cache, the log is still read, only slower.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson
import platformdirs

from bridge import exact_json
from bridge.config import APP
from bridge.protolog.read import Trouble, read_blocks
from bridge.protolog.scan import Run, Scanner
from bridge.protolog.summary import Summary, summary_from_json

VERSION = 2
WORTH_KEEPING = 4 * 1024 * 1024
"""Less is read again in no time."""
BLOCK = 1024 * 1024
"""How much is looked at together: larger blocks are no faster, and cost memory."""
KEPT = 64
"""How many indexes there are at most; the oldest go first."""
_SAMPLE = 4096
_LAST_LINE = 1 << 16


def cache_dir() -> Path:
    """Where indexes are kept."""
    return Path(platformdirs.user_cache_path(APP)) / "log-index"


@dataclass(slots=True)
class State:
    """The last line of an index: how far its file was read, and with what result."""

    file: str
    inode: int
    size: int
    """The file's size then; `scanned` ends with its last whole line."""
    changed: int
    scanned: int
    head: str
    tail: str
    body: int
    """How many bytes of summaries the index has."""
    foreign: int
    first_foreign: int | None
    newer: int
    gaps: int
    runs: dict[str, tuple[int, int]]
    open: list[dict[str, Any]]
    version: int = VERSION


class BrokenIndex(Exception):
    """An index that cannot be used."""


@dataclass(slots=True)
class FileScan:
    """The summaries of one file, from its index as far as that goes, and from itself.

    `wanted` chooses by id; `told` hears how many bytes of the log are done with. After the iteration `scanner` holds
    what had not ended, `position` where the next line begins, and the index is written.
    """

    path: Path
    cache: Path | None
    trouble: Trouble
    wanted: Callable[[str], bool] | None = None
    told: Callable[[int], None] = lambda size: None
    scanner: Scanner = field(init=False)
    position: int = 0
    size: int = 0
    opened: list[Summary] = field(default_factory=list)
    """What had not ended when the file was over."""

    def __iter__(self) -> Iterator[Summary]:
        self.scanner = Scanner(self.path.name)
        given, found = 0, self._known()
        if found is not None:
            state, index = found
            self._resume(state)
            try:
                for summary in self._remembered(state, index):
                    if self.wanted is None or self.wanted(summary.id):
                        given += 1
                        yield summary
            except BrokenIndex:
                # Some were given out; the file tells the same ones again, in the same order.
                self.scanner, self.position = Scanner(self.path.name), 0
                found = None
            finally:
                index.close()
        self.told(self.position)
        yield from self._scan(found[0] if found else None, skip=0 if found else given)
        self.opened = list(self.scanner.rest(self.size))
        self.scanner.add_trouble(self.trouble)

    # From the file

    def _scan(self, known: State | None, skip: int) -> Iterator[Summary]:
        try:
            self.size = self.path.stat().st_size
        except OSError:
            self.size = 0
        fresh = self.size - self.position
        writer = Writer.begin(self.path, self.cache, known) if fresh >= WORTH_KEEPING else None
        try:
            blocks = read_blocks(self.path, self.trouble, start=self.position, end=self.size, size=BLOCK)
            for offset, block in blocks:
                whole = offset + len(block) <= self.size
                if not whole and writer is not None:
                    # A last line without its end counts now, but may still grow.
                    writer.end(self.path, self.scanner, offset, self.size)
                    writer = None
                ended = self.scanner.feed(offset, block)
                if whole:
                    self.position = offset + len(block)
                if writer is not None:
                    writer.write(ended)
                for summary in ended:
                    if self.wanted is not None and not self.wanted(summary.id):
                        continue
                    if skip:
                        skip -= 1
                    else:
                        yield summary
                self.told(len(block))
            if writer is not None:
                writer.end(self.path, self.scanner, self.position, self.size)
                writer = None
        finally:
            if writer is not None:
                writer.drop()

    # From the index

    def _known(self) -> tuple[State, IO[bytes]] | None:
        if self.cache is None:
            return None
        try:
            index = index_path(self.path, self.cache).open("rb")
        except OSError:
            return None
        try:
            state = read_state(index)
            if state.file == os.fsdecode(self.path.resolve()) and _is_same(self.path, state):
                index.seek(0)
                return state, index
        except (BrokenIndex, OSError):
            pass
        index.close()
        return None

    def _resume(self, state: State) -> None:
        scanner = self.scanner
        scanner.foreign, scanner.first_foreign = state.foreign, state.first_foreign
        scanner.newer, scanner.gaps = state.newer, state.gaps
        scanner.runs = {name: Run(*numbers) for name, numbers in state.runs.items()}
        scanner.open = {summary["id"]: self._summary(summary) for summary in state.open}
        self.position = state.scanned

    def _remembered(self, state: State, index: IO[bytes]) -> Iterator[Summary]:
        left = state.body
        for line in index:
            left -= len(line)
            if left < 0:
                break
            begin = line.find(b'"', 7)
            if self.wanted is not None and line.startswith(b'{"id":"') and not self.wanted(_decode(line[7:begin])):
                continue
            try:
                yield self._summary(orjson.loads(line))
            except (orjson.JSONDecodeError, TypeError, KeyError) as error:
                raise BrokenIndex from error

    def _summary(self, data: dict[str, Any]) -> Summary:
        summary = summary_from_json(data)
        for span in summary.spans:
            span.file = self.path.name
        return summary


class Writer:
    """Writes an index beside the scan. When that fails it gives up, and nobody is bothered."""

    def __init__(self, path: Path, file: IO[bytes], target: Path) -> None:
        self._path, self._target = path, target
        self._file: IO[bytes] | None = file
        self._body = 0

    @classmethod
    def begin(cls, path: Path, cache: Path | None, known: State | None) -> Writer | None:
        """A new index; it begins with what is `known` already."""
        if cache is None:
            return None
        target = index_path(path, cache)
        try:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=cache, prefix="new-")  # 0600
            writer = cls(Path(name), os.fdopen(descriptor, "wb", buffering=1 << 20), target)
        except OSError:
            return None
        if known is not None:
            writer._copy(target, known.body)
        return writer

    def _copy(self, source: Path, size: int) -> None:
        assert self._file is not None
        try:
            with source.open("rb") as file:
                while self._body < size and (data := file.read(min(1 << 20, size - self._body))):
                    self._file.write(data)
                    self._body += len(data)
        except OSError:
            self.drop()

    def write(self, summaries: list[Summary]) -> None:
        """The next ones."""
        if self._file is None or not summaries:
            return
        data = b"".join([exact_json.dumps(summary) + b"\n" for summary in summaries])
        try:
            self._file.write(data)
            self._body += len(data)
        except OSError:
            self.drop()

    def end(self, log: Path, scanner: Scanner, scanned: int, size: int) -> None:
        """The log was read up to `scanned`; from now on the index counts."""
        if self._file is None or scanner.transcripts:
            self.drop()
            return
        try:
            about = log.stat()
            head, tail = _samples(log, scanned)
            state = State(
                os.fsdecode(log.resolve()),
                about.st_ino,
                size,
                about.st_mtime_ns,
                scanned,
                head,
                tail,
                self._body,
                scanner.foreign,
                scanner.first_foreign,
                scanner.newer,
                scanner.gaps,
                {name: (run.first, run.next) for name, run in scanner.runs.items()},
                [asdict(summary) for summary in scanner.open.values()],
            )
            self._file.write(exact_json.dumps(state) + b"\n")
            self._file.close()
            os.replace(self._path, self._target)
            self._file = None
            _prune(self._target.parent)
        except (OSError, TypeError):  # TypeError: a name that is no Unicode
            self.drop()

    def drop(self) -> None:
        """No index is made."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                self._path.unlink()


def index_path(log: Path, cache: Path) -> Path:
    """Where the index of a log's file is, or would be."""
    return cache / (hashlib.sha256(os.fsencode(log.resolve())).hexdigest()[:32] + ".index")


def read_state(index: IO[bytes]) -> State:
    """The last line of an index. Raises BrokenIndex."""
    size = index.seek(0, os.SEEK_END)
    reach = _LAST_LINE
    while True:
        index.seek(max(0, size - reach))
        data = index.read()
        begin = data.rfind(b"\n", 0, -1) + 1
        if begin or reach >= size:
            break
        reach *= 8
    try:
        state = State(**orjson.loads(data[begin:]))
        if state.version != VERSION or state.body != size - len(data) + begin or not data.endswith(b"\n"):
            raise BrokenIndex
        numbers = (state.inode, state.size, state.changed, state.scanned, state.foreign, state.newer, state.gaps)
        if not all(isinstance(number, int) for number in numbers):
            raise BrokenIndex
    except (orjson.JSONDecodeError, TypeError) as error:
        raise BrokenIndex from error
    return state


def _is_same(log: Path, state: State) -> bool:
    """Whether the file is the one that was read, perhaps longer now."""
    about = log.stat()
    if about.st_ino != state.inode or about.st_size < state.size:
        return False
    if about.st_size == state.size and about.st_mtime_ns != state.changed:
        return False
    return _samples(log, state.scanned) == (state.head, state.tail)


def _samples(log: Path, scanned: int) -> tuple[str, str]:
    """Digests of the first and the last bytes that were read."""
    with log.open("rb") as file:
        first = file.read(min(_SAMPLE, scanned))
        file.seek(max(0, scanned - _SAMPLE))
        last = file.read(min(_SAMPLE, scanned))
    return hashlib.sha256(first).hexdigest(), hashlib.sha256(last).hexdigest()


def _prune(cache: Path) -> None:
    indexes = [(entry.stat().st_mtime, entry) for entry in cache.glob("*.index")]
    for _, entry in sorted(indexes, reverse=True)[KEPT:]:
        entry.unlink(missing_ok=True)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")
