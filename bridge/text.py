"""Characters that a terminal obeys instead of showing them: one table for logs, commands and reports. Pure.

Text from a model, a provider or a client can hold escape sequences that move the cursor or retitle a window, marks that
reverse or hide what follows, and halves of surrogate pairs that cannot be encoded at all.
"""

from __future__ import annotations

import re

CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""C0 and C1 controls without tab and newline, as a range for a character class."""
MARKS = "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
"""Zero-width characters, direction marks and Unicode's own line separators."""
SURROGATES = "\ud800-\udfff"
HOSTILE = CONTROLS + MARKS + SURROGATES
"""Everything that must be escaped where text from outside is shown to a person."""

_CONTROLS = re.compile(f"[{CONTROLS}]")
_IN_BLOCK = re.compile(f"[{HOSTILE}]")
_IN_LINE = re.compile(f"[\n\t{HOSTILE}]")
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def escape_block(text: str) -> str:
    """Escape hostile characters; newlines and tabs stay."""
    return text if text.isprintable() else _IN_BLOCK.sub(_escape, text)


def escape_line(text: str) -> str:
    """Escape hostile characters, newlines and tabs, so that the result is one line."""
    return text if text.isprintable() else _IN_LINE.sub(_escape, text)


def remove_controls(text: str) -> str:
    """Drop control characters but keep all others: joiners and direction marks belong to many languages and emoji."""
    return text if text.isprintable() else _CONTROLS.sub("", text)


def _escape(found: re.Match[str]) -> str:
    return _NAMED.get(found[0]) or f"\\u{ord(found[0]):04x}"
