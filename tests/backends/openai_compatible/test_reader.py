"""The body of an answer: a stream, or one JSON object."""

from __future__ import annotations

import orjson
import pytest
from upstream.openai_chat_chunks import answer, completion, text

from bridge.errors import UpstreamError
from bridge.protocols.sse import MAX_EVENT, JsonOrSseReader


def read(*chunks: bytes) -> tuple[list[bytes], bool]:
    reader = JsonOrSseReader()
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return events + reader.finish(), reader.done


def test_a_stream_is_read_as_any_other() -> None:
    assert read(b': hi\n\ndata: {"a":1}\n\nda', b"ta: {}\n\n") == ([b'{"a":1}', b"{}"], False)
    assert read(b"data: {}\n\ndata: [DONE]\n\n") == ([b"{}"], True)
    assert read(b"\n\n", b"data: [DONE]") == ([], True)
    assert read(b"\xef\xbb", b"\xbfdata: {}\n\n") == ([b"{}"], False)
    assert read() == ([], False)


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("indent", [None, orjson.OPT_INDENT_2])
@pytest.mark.parametrize("head", [b"", b" \r\n\t", b"\xef\xbb\xbf"])
def test_json_is_one_event_however_it_is_cut(size: int, indent: int | None, head: bytes) -> None:
    whole = completion(answer(text("data: x\n\ndata: [DONE]\n\n")))
    body = head + orjson.dumps(whole, option=indent)
    events, done = read(*(body[start : start + size] for start in range(0, len(body), size)))
    assert [orjson.loads(event) for event in events] == [whole]
    assert done


def test_a_list_is_json_too() -> None:
    assert read(b'[{"error": 1}]') == ([b'[{"error": 1}]'], True)


def test_json_without_an_end_is_not_kept_for_ever() -> None:
    reader = JsonOrSseReader()
    with pytest.raises(UpstreamError) as caught:
        for _ in range(MAX_EVENT // 1_000_000 + 1):
            reader.feed(b"{" + b" " * 1_000_000)
    assert caught.value.code == "message_too_large"
