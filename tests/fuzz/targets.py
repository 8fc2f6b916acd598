"""What is fuzzed: for each target a function that takes any bytes and raises where a promise is broken.

`scripts/fuzz` feeds them inputs that it makes up, `tests/property/test_corpus.py` those that are kept in
`fixtures/corpus`. The first byte of an input chooses (how the rest is cut, which request it is); the rest is what comes
from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuzz.bodies import read_cap, read_chat, read_gemini, read_messages, read_responses
from fuzz.child_output import read_child_output
from fuzz.framing import split_lines
from fuzz.http_connection import serve_connection
from fuzz.logs import read_log
from fuzz.provider_streams import read_anthropic, read_chat_stream, read_responses_stream
from fuzz.tool_calls import parse_tool_calls

TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "tool-calls": parse_tool_calls,
    "framing": split_lines,
    "child": read_child_output,
    "responses": read_responses,
    "chat": read_chat,
    "messages": read_messages,
    "gemini": read_gemini,
    "cap": read_cap,
    "upstream-responses": read_responses_stream,
    "upstream-anthropic": read_anthropic,
    "upstream-chat": read_chat_stream,
    "log": read_log,
    "http": serve_connection,
}
