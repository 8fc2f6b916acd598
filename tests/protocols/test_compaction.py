"""A summary as an opaque item: ours come back, everything else is none, and none is dangerous to look at."""

from __future__ import annotations

import base64
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseCompactionItem

from bridge.protocols.items import INTRODUCTION, MAX_SUMMARY, PREFIX, compaction_item, summary_of


def packed(data: bytes) -> dict[str, Any]:
    """An item that looks like one of ours."""
    return {"type": "compaction", "encrypted_content": PREFIX + base64.urlsafe_b64encode(data).decode()}


@given(st.text())
def test_a_summary_comes_back(summary: str) -> None:
    """Every character of it, behind words that say what it is."""
    item = compaction_item("cmp_1", summary)
    assert summary_of(item) == INTRODUCTION + summary
    ResponseCompactionItem.model_validate(item, strict=True)


def test_the_item_does_not_show_what_it_holds() -> None:
    """Clients are not tempted to take it apart; no character of it needs escaping anywhere."""
    item = compaction_item("cmp_1", "the plan is simple")
    assert item["id"] == "cmp_1"
    assert "plan" not in item["encrypted_content"]
    assert item["encrypted_content"].isascii()


@pytest.mark.parametrize("characters", [MAX_SUMMARY // 2, MAX_SUMMARY])
def test_a_long_summary_comes_back(characters: int) -> None:
    """Up to the limit."""
    assert summary_of(compaction_item("c", "x" * characters)) == INTRODUCTION + "x" * characters


@pytest.mark.parametrize(
    "content",
    [
        None,
        5,
        [],
        {},
        "",
        "gAAAAABk-of-another-provider",
        PREFIX,
        PREFIX + "A",
        PREFIX + "!!!!",
        PREFIX + "é",
        PREFIX + "AAAA",
        PREFIX.upper() + "AAAA",
        "x" + PREFIX,
    ],
)
def test_what_is_not_ours_is_none(content: Any) -> None:
    """Foreign, empty, misspelt or cut: no summary, and no error."""
    assert summary_of({"type": "compaction", "encrypted_content": content}) is None


def test_an_item_without_content_is_none() -> None:
    """The member may be missing."""
    assert summary_of({"type": "compaction"}) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib at all",
        zlib.compress(b"\xff\xfe no text"),
        zlib.compress(b"x" * 100)[:-1],
        zlib.compress(b"x" * 100)[:-5] + b"\0\0\0\0\0",
        b"\x1f\x8b" + zlib.compress(b"x"),
    ],
    ids=["empty", "foreign", "not UTF-8", "cut", "wrong checksum", "another header"],
)
def test_damaged_content_is_none(data: bytes) -> None:
    """Whatever stands behind the prefix."""
    assert summary_of(packed(data)) is None


def test_a_zip_bomb_does_not_go_off() -> None:
    """A few hundred kilobytes that stand for hundreds of megabytes cost no more than the limit."""
    squeezer = zlib.compressobj(9)
    zeros = b"\0" * MAX_SUMMARY
    bomb = packed(b"".join(squeezer.compress(zeros) for _ in range(256)) + squeezer.flush())
    assert len(bomb["encrypted_content"]) < 400_000
    tracemalloc.start()
    try:
        assert summary_of(bomb) is None
        assert tracemalloc.get_traced_memory()[1] < 8 * MAX_SUMMARY
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=40) | st.binary(max_size=40).map(zlib.compress))
def test_any_content_is_a_summary_or_none(data: bytes) -> None:
    """Never an error."""
    summary = summary_of(packed(data))
    assert summary is None or summary.startswith(INTRODUCTION)


@given(st.text(max_size=30))
def test_any_text_behind_the_prefix_is_a_summary_or_none(text: str) -> None:
    """Never an error."""
    summary = summary_of({"type": "compaction", "encrypted_content": PREFIX + text})
    assert summary is None or summary.startswith(INTRODUCTION)
