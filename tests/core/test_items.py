"""The vocabulary of a conversation."""

from __future__ import annotations

import pytest

from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Image, Message, Text, full_name

PICTURE = Image("data:image/png;base64,AA==")


def test_the_text_of_a_message_is_its_text_parts() -> None:
    """One line per part; images are not text."""
    assert Message("user", (Text("a"), PICTURE, Text("b"))).text == "a\nb"
    assert Message("user", ()).text == ""


def test_the_text_of_an_output_is_its_text_parts() -> None:
    """One line per part; images are not text."""
    assert FunctionOutput("c", (PICTURE, Text("a"), Text("b"))).text == "a\nb"


@pytest.mark.parametrize(("namespace", "name"), [(None, "find"), ("files", "files.find")])
def test_a_call_and_its_tool_have_one_full_name(namespace: str | None, name: str) -> None:
    """With the namespace, where there is one."""
    assert full_name(namespace, "find") == name
    assert FunctionTool("find", namespace=namespace).full_name == name
    assert FunctionCall("c", "find", "{}", namespace).full_name == name


def test_a_tool_with_a_definition_of_its_own_is_custom() -> None:
    """An empty one too."""
    assert FunctionTool("patch", raw={}).custom
    assert not FunctionTool("find").custom
