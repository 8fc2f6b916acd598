"""What a call gives its tool. A function gets JSON; a custom tool gets a text.

Custom tools: their one argument is a text, perhaps of a given grammar. They are offered as functions of one string.

No backend of ours can hold a model to a grammar, so it is written into the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from bridge.turn.items import FunctionTool

INPUT = "input"


def function_of(definition: Mapping[str, Any], name: str, namespace: str | None = None) -> FunctionTool:
    """A custom tool's definition as a function that takes its text."""
    description = definition.get("description")
    texts = [description] if isinstance(description, str) and description else []
    grammar = definition.get("format")
    if isinstance(grammar, dict) and isinstance(grammar.get("grammar"), dict):
        grammar = grammar["grammar"]  # as chat spells it
    if isinstance(grammar, dict) and isinstance(grammar.get("definition"), str):
        texts.append(f"The input must match this {grammar.get('syntax', '')} grammar:\n{grammar['definition']}")
    parameters = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": "The whole input of the tool, as plain text."}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return FunctionTool(name, "\n\n".join(texts) or None, parameters, namespace=namespace, raw=definition)


def text_of(arguments: str) -> str:
    """The text in a call's arguments. A model that wrote the text itself, without the JSON around it, is understood."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = given.get(INPUT) if isinstance(given, dict) else given
    return text if isinstance(text, str) else arguments


def arguments_of(text: str) -> str:
    """The arguments that stand for a text: the way back, for the history."""
    return orjson.dumps({INPUT: text}).decode()


def arguments_or_none(arguments: str) -> str:
    """A function's arguments as they are; "no arguments", where there is nothing that a client could parse."""
    return arguments if arguments.strip() else "{}"
