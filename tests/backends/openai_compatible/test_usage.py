"""What an answer cost, wherever a server tells it."""

from __future__ import annotations

from typing import Any

import pytest
from backends.openai_compatible.rig import decode
from upstream.openai_chat_chunks import answer, chunk, text

from bridge.core.events import Usage

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}, Usage(5, 0, 3)),
        ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(5, 4, 3)),
        ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_cache_hit_tokens": 2}, Usage(5, 2, 3)),
        ({"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 1}, Usage(5, 1, 3)),
        (
            {"prompt_tokens": 5, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 2}},
            Usage(5, 0, 3, 2),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 20}, Usage(5, 0, 15, 12)),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 3,
                "total_tokens": 9,
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
            Usage(5, 0, 4, 1),
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 3,
                "total_tokens": 9,
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(5, 0, 3, 2),
        ),
        ({"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": None}, Usage(5)),
        ({"prompt_tokens": 5.0, "completion_tokens": "?", "prompt_tokens_details": [1], "total_tokens": -1}, Usage(5)),
        ({"prompt_tokens": 5, "prompt_cache_hit_tokens": 9}, Usage(5, 5)),
        ({"queue_time": 0.1}, Usage()),
    ],
)
def test_usage_has_many_forms(said: Json, usage: Usage) -> None:
    assert decode(answer(text("a"), usage=said)).usage == usage


def test_usage_in_every_chunk_is_the_last_one_and_null_is_none() -> None:
    chunks = [
        each | {"usage": {"prompt_tokens": 1, "completion_tokens": n}} for n, each in enumerate(answer(text("a")))
    ]
    assert decode([*chunks, chunk({}, usage=None)]).usage == Usage(1, 0, len(chunks) - 1)
    assert decode(answer(text("a"), usage=None)).usage is None


def test_usage_where_groq_puts_it() -> None:
    last = chunk({}, "stop", x_groq={"id": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    assert decode([chunk({"content": "a"}, x_groq={"id": "x"}), last]).usage == Usage(1, 0, 2)
