"""The tags that mark a tool call in the model's text, and how foreign text is kept from carrying them."""

from __future__ import annotations

TAG = "tool_call"
OPEN_TAG = f"<{TAG}>"
CLOSE_TAG = f"</{TAG}>"


def neutralise(text: str) -> str:
    """Write the `<` of each exact tag as `&lt;`; everything else stays byte for byte.

    Text from users, tool output or history must never show the model a foreign well-formed call: the model
    could take it for one of its own and repeat it, and the client would execute it. Applying it again changes
    nothing.
    """
    if "tool_call>" not in text:
        return text
    return text.replace(OPEN_TAG, "&lt;" + OPEN_TAG[1:]).replace(CLOSE_TAG, "&lt;" + CLOSE_TAG[1:])
