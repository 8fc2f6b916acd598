"""The page as a file: one policy, one script, data that cannot end its element, and no more than a browser can hold."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from log.export.making import LogMaker, recordings

from bridge.log.export.html import PageTurns, page_pieces, script_safe

BLOCK = re.compile(rb'<script type="application/json" id="(\w+)">(.*?)</script>', re.S)
HOSTILE = "</script><script>alert(1)</script><!--<script> \u2028\u2029 &lt; ]]> \x00 \ud7ff"


def page(path: Path, **bounds: int) -> tuple[bytes, PageTurns]:
    """A log as a page."""
    turns = PageTurns(**bounds)
    turns.take(recordings(path))
    return b"".join(page_pieces(turns, name=path.name, notes=[])), turns


@pytest.fixture
def log(tmp_path: Path) -> LogMaker:
    return LogMaker(tmp_path / "log.ndjson")


def test_the_policy_allows_the_page_s_own_script_and_style_alone(log: LogMaker) -> None:
    log.turn(body={"input": HOSTILE})
    data, _ = page(log.close())
    (policy,) = re.findall(rb'http-equiv="Content-Security-Policy" content="([^"]+)"', data)
    assert policy.startswith(b"default-src 'none'; ")
    assert b"unsafe" not in policy
    for tag in (b"script", b"style"):
        (source,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), data, re.S)
        digest = base64.b64encode(hashlib.sha256(source).digest())
        assert b"%b-src 'sha256-%b'" % (tag, digest) in policy
    assert not re.search(rb"<[^>]+\son\w+\s*=", re.sub(BLOCK, b"", data).partition(b"<script>")[0])


def test_the_script_never_makes_markup(log: LogMaker) -> None:
    data, _ = page(log.close())
    script = data.partition(b"<script>")[2]
    for way in (
        b"innerHTML",
        b"outerHTML",
        b"insertAdjacentHTML",
        b"document.write",
        b"eval(",
        b"new Function",
        b".href =",
    ):
        assert way not in script


def test_data_can_neither_end_its_element_nor_begin_a_comment(log: LogMaker) -> None:
    log.turn(body={"input": HOSTILE, HOSTILE: [HOSTILE]}, model=HOSTILE, req_id=f"req_{HOSTILE}", said=[HOSTILE])
    data, _ = page(log.close())
    blocks = dict(BLOCK.findall(data))
    assert set(blocks) == {b"c0", b"w0", b"index"}
    for block in blocks.values():
        assert not re.search("[<>&\u2028\u2029]".encode(), block)
    assert json.loads(blocks[b"w0"])["request"]["body"]["input"] == HOSTILE
    assert data.count(b"<script") == len(blocks) + 1 == data.count(b"</script>")


def test_escaping_changes_no_value() -> None:
    value = {HOSTILE: [HOSTILE, 1, None, "\\", '"', "\\u003c"]}
    assert json.loads(script_safe(value)) == value


def test_the_same_log_is_the_same_page(log: LogMaker) -> None:
    for number in range(5):
        log.turn(body={"input": f"question {number}"}, said=["a", "b"], sent=["data: {}\n\n"])
    path = log.close()
    assert page(path)[0] == page(path)[0]


def test_the_last_ones_stay_when_there_are_too_many(log: LogMaker) -> None:
    for number in range(9):
        log.turn(body={"input": f"question {number}"})
    path = log.close()
    data, turns = page(path, limit=4)
    assert (len(turns), turns.left_out) == (4, 5)
    index = json.loads(dict(BLOCK.findall(data))[b"index"])
    assert [row["preview"] for row in index["turns"]] == [f"question {number}" for number in range(5, 9)]
    assert index["left_out"] == 5


def test_a_page_holds_no_more_than_its_bound(log: LogMaker) -> None:
    for number in range(9):
        log.turn(body={"input": f"{number}" * 10_000})
    data, turns = page(log.close(), max_bytes=60_000)
    assert 0 < len(turns) < 9
    assert sum(len(block) for name, block in BLOCK.findall(data) if name != b"index") <= 60_000


def test_one_that_is_larger_than_the_bound_is_left_out_and_counted(log: LogMaker) -> None:
    log.turn(body={"input": "small"})
    log.turn(body={"input": "x" * 100_000})
    _, turns = page(log.close(), max_bytes=50_000)
    assert (len(turns), turns.left_out) == (0, 2)


def test_times_are_since_the_request_came(log: LogMaker) -> None:
    log.wait(5)
    log.turn(said=["a", "b"], sent=["data: {}\n\n"])
    data, _ = page(log.close())
    wire = json.loads(dict(BLOCK.findall(data))[b"w0"])
    assert [frame[0] for frame in wire["frames"]] == [0.01, 0.02]
    assert [frame[4] for frame in wire["frames"]] == [1, 2]
    assert [(piece[0], piece[1]) for piece in wire["client"]] == [(0.03, "client_start"), (0.03, "client_sse")]
    assert wire["end"] == 0.04
