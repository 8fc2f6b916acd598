"""The tags that mark a tool call in the model's text, and how foreign text is kept from carrying them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

TAG = "tool_call"
OPEN_TAG = f"<{TAG}>"
CLOSE_TAG = f"</{TAG}>"
_TAGS = re.compile(f"</?{TAG}>")


def neutralise(text: str) -> str:
    """Write the `<` of each exact tag as `&lt;`; everything else stays byte for byte.

    Text from users, tool output or history must never show the model a foreign well-formed call: the model
    could take it for one of its own and repeat it, and the client would execute it. Applying it again changes
    nothing.
    """
    if "tool_call>" not in text:
        return text
    return text.replace(OPEN_TAG, "&lt;" + OPEN_TAG[1:]).replace(CLOSE_TAG, "&lt;" + CLOSE_TAG[1:])


def neutralise_parts(texts: Sequence[str]) -> list[str]:
    """The same for texts that the model reads one after the other: a tag may begin in one and end in the next."""
    joined = "".join(texts)
    begins = [found.start() for found in _TAGS.finditer(joined)]
    if not begins:
        return list(texts)
    safe = []
    place = 0
    for text in texts:
        here = begins[bisect_left(begins, place) : bisect_left(begins, place + len(text))]
        cuts = [0, *(begin - place for begin in here), len(text)]
        pieces = [text[start:end] for start, end in pairwise(cuts)]
        safe.append(pieces[0] + "".join("&lt;" + piece[1:] for piece in pieces[1:]))
        place += len(text)
    return safe
