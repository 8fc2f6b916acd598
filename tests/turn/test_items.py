"""The vocabulary of a conversation."""

from __future__ import annotations

from bridge.turn.items import FunctionOutput, Image, Message, Text

PICTURE = Image("data:image/png;base64,AA==")


def test_the_text_of_a_message_is_its_text_parts() -> None:
    """One line per part; images are not text."""
    assert Message("user", (Text("a"), PICTURE, Text("b"))).text == "a\nb"
    assert Message("user", ()).text == ""


def test_the_text_of_an_output_is_its_text_parts() -> None:
    """One line per part; images are not text."""
    assert FunctionOutput("c", (PICTURE, Text("a"), Text("b"))).text == "a\nb"
