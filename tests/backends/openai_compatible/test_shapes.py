"""Streams with the peculiarities of real servers (fixtures/upstreams), byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from backends.openai_compatible.rig import CLOCK, WEATHER, called, thoughts, turn

from bridge.core.collect import Result
from bridge.core.events import Finished, Usage
from bridge.protocols.chat.presets import CUSTOM, PRESETS, Preset
from bridge.upstream.backend import ChatApi

SHAPES = Path(__file__).parents[3] / "fixtures" / "upstreams"
COMPLETED = Finished("completed")
BERN, BASEL = ("weather", '{"city":"Bern"}'), ("weather", '{"city":"Basel"}')


def played(name: str, size: int, preset: Preset = CUSTOM) -> Result:
    """The file as a body, in pieces of so many bytes."""
    data = (SHAPES / name).read_bytes()
    buffer = ChatApi(preset).buffer(turn(tools=(WEATHER, CLOCK), encrypted_reasoning=True))
    reader = buffer.reader()
    for start in range(0, len(data), size):
        for event in reader.feed(data[start : start + size]):
            buffer.receive(event)
    for event in reader.finish():
        buffer.receive(event)
    buffer.over(told=reader.done)
    result = Result()
    result.add(buffer.take())
    return result


@pytest.mark.parametrize("size", [1, 64, 1 << 20])
@pytest.mark.parametrize(
    ("name", "text", "thought", "calls", "usage", "end"),
    [
        ("gemini_text.sse", "Wide is the sky.", "", [], Usage(12, 0, 38, 32), COMPLETED),
        ("gemini_calls.sse", "", "", [BERN, BASEL], Usage(40, 0, 50, 30), COMPLETED),
        ("gemini_calls_in_one_chunk.sse", "", "", [BERN, ("clock", "{}")], Usage(40, 0, 20), COMPLETED),
        ("gemini_split_call.sse", "", "", [BERN], Usage(40, 0, 20), COMPLETED),
        ("gemini_safety.sse", "I ", "", [], Usage(9, 0, 1), Finished("incomplete", reason="content_filter")),
        ("ollama_calls.sse", "", "Two cities.", [BERN, BASEL], Usage(30, 0, 12), COMPLETED),
        ("ollama_calls_old.sse", "", "", [BERN, BASEL], None, COMPLETED),
        (
            "vllm_calls.sse",
            "",
            "Look.",
            [("weather", '{"city": "Bern"}'), ("weather", '{"city": "Basel"}')],
            Usage(20, 0, 25),
            COMPLETED,
        ),
        ("mistral_parts.sse", "It is blue.", "Let me see.", [], Usage(10, 0, 20), COMPLETED),
        ("deepseek_reasoning.sse", "Blue.", "Light scatters.", [], Usage(50, 32, 8, 6), COMPLETED),
        ("groq_usage.sse", "Hello.", "Easy.", [], Usage(14, 0, 9), COMPLETED),
        ("not_streamed.json", "I look.", "Hm.", [BERN], Usage(5, 0, 6), COMPLETED),
    ],
)
def test_the_answer_is_understood(
    name: str, text: str, thought: str, calls: list[tuple[str, str]], usage: Usage | None, end: Finished, size: int
) -> None:
    result = played(name, size)
    assert (result.text, thoughts(result), called(result), result.usage, result.end) == (
        text,
        thought,
        calls,
        usage,
        end,
    )
    ids = [call.call_id for call in result.calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("gemini_error.sse", "So", "overloaded", "The model is overloaded"),
        ("openrouter_error.sse", "The sky", "rate_limit_exceeded", "Rate limit exceeded upstream"),
    ],
)
def test_the_error_is_understood(name: str, text: str, code: str, words: str) -> None:
    result = played(name, 1 << 20)
    assert result.text == text
    assert result.end is not None
    assert result.end.error is not None
    assert (result.end.error.code, result.end.error.severity) == (code, "transient")
    assert words in result.end.error.message


@pytest.mark.parametrize("name", ["gemini_calls.sse", "gemini_split_call.sse"])
def test_geminis_signatures_are_kept(name: str) -> None:
    result = played(name, 1 << 20, PRESETS["gemini"])
    encrypted = getattr(result.outputs[0], "encrypted", None)
    assert encrypted is not None
    assert "signature" in encrypted
    assert result.calls


def test_every_file_is_looked_at_and_says_what_it_is() -> None:
    shapes = {path.name for path in SHAPES.iterdir()}
    assert shapes
    for name in shapes:
        assert name in Path(__file__).read_text()
        assert "not a recording" in (SHAPES / name).read_text()
