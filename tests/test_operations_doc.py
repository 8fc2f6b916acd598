"""docs/promises.md names existing tests and every test of a fault; docs/operations.md has the limits of the code."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from harness import ROOT

from bridge.appserver import calls, process, turn
from bridge.appserver import connection as child_connection
from bridge.http import connection, head, wire
from bridge.log import event_log
from bridge.settings import Settings
from bridge.store import queued

TESTS = ROOT / "tests"
PROMISES = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
MIB = 1024 * 1024


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """The names of the tests in a file, including those in classes."""
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    functions = (node for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def rows() -> dict[int, str]:
    """The rows of the tables of faults, by their numbers."""
    return {int(row[1]): row[0] for row in re.finditer(r"^\| (\d+) \|.*$", PROMISES, re.M)}


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(PROMISES)
    assert len(named) > 100
    missing = [
        f"{file}::{name}" for file, name in named if not (TESTS / file).is_file() or name not in names_in(TESTS / file)
    ]
    assert missing == []


def test_every_promise_and_every_row_names_a_test() -> None:
    promises = re.split(r"^\d+\. \*\*", PROMISES.partition("## Faults")[0], flags=re.M)[1:]
    assert len(promises) == 7
    assert [text[:40] for text in (*promises, *rows().values()) if NAMED.search(text) is None] == []


def test_every_test_of_a_fault_is_listed_in_its_row() -> None:
    """Row 12 lists `test_fault_12_…`."""
    for path in TESTS.rglob("test_*.py"):
        for name in names_in(path):
            if (number := re.match(r"test_fault_(\d\d)_", name)) is not None:
                assert f"`{path.relative_to(TESTS)}::{name}`" in rows()[int(number[1])], name


def test_the_limits_are_those_of_the_code() -> None:
    defaults = Settings()
    table = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \| [^|]+ \|$", OPERATIONS.partition("## Limits")[2], re.M))
    assert table["turns at once, for each backend"] == f"`PROXY_MAX_TURNS`, {defaults.max_turns}"
    assert table["connections at once"] == f"`PROXY_MAX_CONNECTIONS`, {defaults.max_connections}"
    assert table["requests that wait for a turn"] == f"`PROXY_MAX_QUEUE`, {defaults.max_queue}"
    assert table["body of a request"] == f"`PROXY_MAX_BODY`, {defaults.max_body // MIB} MiB"
    assert table["head of a request"] == f"{head.HEAD_LIMIT // 1024} KiB, {wire.HEAD_SECONDS:g} s"
    assert table["time for a body"] == f"{connection.BODY_RATE // 1024} KiB a second, {connection.BODY_SECONDS:g} s"
    assert table["text that waits for one client"] == f"{turn.MAX_BUFFERED // MIB} Mi characters"
    assert table["time for a client to read"] == f"`PROXY_WRITE_TIMEOUT`, {defaults.write_timeout:g} s"
    assert table["one line of the child"] == f"{child_connection.MAX_LINE // MIB} MiB"
    assert table["notifications for unknown threads"] == str(turn.MAX_EARLY)
    assert table["kept stderr of the child"] == f"{process.STDERR_KEPT // 1024} KiB"
    assert table["calls in flight in a child"] == str(calls.MAX_CALLS)
    assert table["records that wait for the log's disk"] == f"{event_log.MAX_QUEUED // MIB} MiB"
    assert table["changes that wait for the store's disk"] == f"{queued.MAX_WAITING // MIB} MiB"
    assert table["what is stored"] == f"`PROXY_STORE_MAX_BYTES`, {defaults.store_max_bytes // 1024**3} GiB"
