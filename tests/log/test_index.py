"""The index of a log: what was scanned once is not scanned again, and a wrong index never counts."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli.log.making import LogMaker, name_of

from bridge.log import log as module
from bridge.log.log import Log, index_path
from bridge.log.read import read_blocks
from bridge.log.summary import Summary


@pytest.fixture(autouse=True)
def _every_log_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_KEEPING", 1)


class Indexed:
    """A log with a cache, and how much of it was read."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "log.ndjson"
        self.cache = directory / "cache" / "log-index"
        self.made = LogMaker()
        self.log: Log

    @property
    def file(self) -> Path:
        return index_path(self.path, self.cache)

    def grow(self, *numbers: int) -> None:
        """Write requests, and what was made besides."""
        for number in numbers:
            self.made.whole(number)
        self.path.write_bytes(self.made.data) if not self.path.exists() else self._append()

    def _append(self) -> None:
        with self.path.open("ab") as file:
            file.write(self.made.data[self.path.stat().st_size :])

    def read(self) -> list[Summary]:
        self.log = Log(self.path, self.cache)
        return list(self.log.summaries())

    def scanned(self) -> int:
        """How many bytes a reading scans."""
        before = dict(_reads)
        self.read()
        return _reads.get(self.path, 0) - before.get(self.path, 0)


_reads: dict[Path, int] = {}


@pytest.fixture(autouse=True)
def _count_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what is read of each log; the reading itself is the real one."""
    really = read_blocks

    def counted(path: Path, *arguments: object, **options: object) -> Iterator[tuple[int, bytes]]:
        for offset, block in really(path, *arguments, **options):  # type: ignore[arg-type]
            _reads[path] = _reads.get(path, 0) + len(block)
            yield offset, block

    monkeypatch.setattr(module, "read_blocks", counted)


@pytest.fixture
def indexed(tmp_path: Path) -> Indexed:
    return Indexed(tmp_path)


def test_the_second_time_nothing_is_scanned(indexed: Indexed) -> None:
    """The answers are the same, to the last member; the index is the user's alone."""
    indexed.grow(1, 2, 3)
    first = indexed.read()
    assert indexed.scanned() == 0
    assert indexed.read() == first
    assert stat.S_IMODE(indexed.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(indexed.cache.stat().st_mode) == 0o700


def test_one_request_is_found_without_the_others(indexed: Indexed) -> None:
    """By the beginning of its id, with or without `req_`."""
    indexed.grow(*range(1, 20))
    indexed.read()
    log = Log(indexed.path, indexed.cache)
    for prefix in ("0007", "req_0007", name_of(7)):
        assert [each.id for each in log.find(prefix)] == [name_of(7)]
    assert len(list(log.records(log.find("0007")[0]))) == len(indexed.made.lines) // 19


def test_a_log_that_grew_is_read_on_from_there(indexed: Indexed) -> None:
    """Also a request that had begun before; and again, and again."""
    indexed.grow(1)
    open_name = indexed.made.begin(2)
    indexed.grow()
    assert [each.outcome for each in indexed.read()] == ["completed", "unfinished"]
    old = indexed.path.stat().st_size
    indexed.made.end(open_name, calls=("look",))
    indexed.grow(3)
    assert indexed.scanned() == indexed.path.stat().st_size - old
    indexed.grow(4)
    found = indexed.read()
    assert found == list(Log(indexed.path).summaries())
    assert [(each.id, each.calls) for each in found[1:2]] == [(open_name, ["look"])]
    assert indexed.scanned() == 0


def test_a_log_that_grew_within_a_line(indexed: Indexed) -> None:
    """A torn line is told as torn, and read when it is whole."""
    indexed.grow(1)
    indexed.made.whole(2)
    whole = indexed.made.data
    indexed.path.write_bytes(whole[:-30])
    assert [each.outcome for each in indexed.read()] == ["completed", "unfinished"]
    assert indexed.log.trouble.torn == 1
    indexed.grow()
    assert [each.outcome for each in indexed.read()] == ["completed", "completed"]
    assert indexed.log.trouble.sentences() == []


def test_a_last_line_without_newline_is_not_remembered(indexed: Indexed) -> None:
    """It counts, but the next writer may add to it."""
    indexed.grow(1, 2)
    whole = indexed.made.data
    indexed.path.write_bytes(whole[:-1])
    assert [each.outcome for each in indexed.read()] == ["completed", "completed"]
    assert [each.outcome for each in indexed.read()] == ["completed", "completed"]
    indexed.grow(3)
    found = indexed.read()
    assert [each.id for each in found] == [name_of(1), name_of(2), name_of(3)]
    assert indexed.log.trouble.sentences() == []


@pytest.mark.parametrize("change", ["truncated", "replaced", "edited", "same_name"])
def test_a_log_that_changed_is_read_anew(indexed: Indexed, change: str) -> None:
    """Shorter, another file, other content, or another file of the same size and content at the ends."""
    indexed.grow(*range(1, 60))
    indexed.read()
    data = indexed.made.data
    if change == "truncated":
        indexed.path.write_bytes(b"".join(indexed.made.lines[:40]))
    elif change == "replaced":
        other = LogMaker("bbbbbbbb")
        for number in range(200, 300):
            other.whole(number)
        indexed.path.write_bytes(other.data)
    elif change == "edited":
        about = indexed.path.stat()
        middle = data.index(b"completed", len(data) // 2)
        indexed.path.write_bytes(data[:middle] + b"cancelled" + data[middle + 9 :])
        os.utime(indexed.path, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    else:
        indexed.path.rename(indexed.path.with_suffix(".old"))
        indexed.path.write_bytes(data.replace(b'"completed"', b'"cancelled"', 1))
    assert indexed.read() == list(Log(indexed.path).summaries())


def change(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize("damage", ["empty", "garbage", "torn", "row", "missing", "version", "page", "binary"])
def test_a_broken_index_does_not_count_and_is_made_again(indexed: Indexed, damage: str) -> None:
    """Whatever stands in it."""
    indexed.grow(*range(1, 9))
    wanted = indexed.read()
    data = indexed.file.read_bytes()
    if damage == "row":
        change(indexed.file, "UPDATE request SET summary = 'x' WHERE rowid = 5")
    elif damage == "missing":
        change(indexed.file, "DELETE FROM scan")
    elif damage == "version":
        change(indexed.file, "PRAGMA user_version = 2")
    else:
        broken = {
            "empty": b"",
            "garbage": b"hello\n",
            "torn": data[: len(data) // 2],
            "page": data[:100] + bytes(len(data) - 100),
            "binary": bytes(range(256)) * 20,
        }
        indexed.file.write_bytes(broken[damage])
    assert [each.id for each in Log(indexed.path, indexed.cache).find("0006")] == [name_of(6)]
    assert indexed.read() == wanted
    assert indexed.read() == wanted
    assert indexed.scanned() == 0


def test_a_cache_that_cannot_be_written_costs_only_time(indexed: Indexed) -> None:
    """Nothing is said, everything works."""
    indexed.grow(1, 2)
    indexed.cache.parent.write_text("a file where a directory should be")
    assert [each.outcome for each in indexed.read()] == ["completed", "completed"]
    assert indexed.scanned() == indexed.path.stat().st_size


def test_who_stops_reading_leaves_no_index(indexed: Indexed) -> None:
    """Half an index would be a wrong one."""
    indexed.grow(1, 2, 3)
    reading = Log(indexed.path, indexed.cache).summaries()
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert list(indexed.cache.iterdir()) == []


def test_what_is_wrong_with_a_log_is_remembered(indexed: Indexed) -> None:
    """Foreign lines and missing records are told the second time, too."""
    indexed.grow(1, 2)
    lines = indexed.made.lines
    indexed.path.write_bytes(b"".join([*lines[:5], b"foreign\n", *lines[8:]]))
    indexed.read()
    said = indexed.log.trouble.sentences()
    assert len(said) == 2
    assert indexed.scanned() == 0
    assert indexed.log.trouble.sentences() == said


def test_each_file_of_a_directory_has_its_own(tmp_path: Path) -> None:
    """A request that goes over two files is put together from two indexes."""
    made = LogMaker()
    name = made.begin(1)
    cut = len(made.lines)
    made.end(name)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/1.ndjson").write_bytes(b"".join(made.lines[:cut]))
    (tmp_path / "logs/2.ndjson").write_bytes(b"".join(made.lines[cut:]))
    cache = tmp_path / "cache"
    first = list(Log(tmp_path / "logs", cache).summaries())
    assert len(list(cache.iterdir())) == 2
    assert list(Log(tmp_path / "logs", cache).summaries()) == first
    assert [(each.outcome, each.begun, len(each.spans)) for each in first] == [("completed", True, 2)]


def test_old_indexes_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are never more than so many."""
    monkeypatch.setattr(module, "KEPT", 3)
    for number in range(6):
        made = LogMaker()
        made.whole(number)
        path = tmp_path / f"{number}.ndjson"
        path.write_bytes(made.data)
        list(Log(path, tmp_path / "cache").summaries())
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_a_log_that_grows_while_it_is_read(indexed: Indexed) -> None:
    """What was there at the beginning is told; the rest the next time."""
    indexed.grow(*range(1, 200))
    reading = Log(indexed.path, indexed.cache).summaries()
    found = [next(reading)]
    indexed.grow(500)
    found += reading
    assert [each.id for each in found] == [name_of(number) for number in range(1, 200)]
    assert [each.id for each in indexed.read()][-1] == name_of(500)
