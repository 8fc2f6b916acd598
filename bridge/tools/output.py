"""The form of an answer that Codex cannot enforce, asked for in words.

Codex holds a model to a schema only in the provider's strict way, and the provider refuses a schema that does not
suit it: every property required, no others allowed. Codex itself refuses integers beyond 64 bits.
"""

from __future__ import annotations

from typing import Any

from bridge.exact_json import is_within_64_bits
from bridge.tools.schema import compact_json
from bridge.tools.tags import neutralise
from bridge.turn.items import OutputFormat
from bridge.turn.turn import Turn

_VALUES = ("enum", "const", "default", "examples", "required")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_JSON = "Answer with one valid JSON object and nothing else: no text around it, no code fence."


def can_enforce(wanted: OutputFormat) -> bool:
    """Whether the provider itself holds the model to it: it was asked to, or the schema suits it anyway."""
    schema = wanted.schema
    return schema is not None and is_within_64_bits(schema) and (wanted.strict or _is_strict(schema))


def format_text(turn: Turn) -> str:
    """The developer text for a form that is not enforced; empty where it is, or none was asked for."""
    wanted = turn.output_format
    if wanted is None or can_enforce(wanted):
        return ""
    if wanted.schema is None:
        return _JSON
    schema = compact_json(wanted.schema)
    return f"{_JSON}\nIt must conform to this JSON Schema:\n{neutralise(schema) if turn.parses_tool_calls else schema}"


def _is_strict(schema: Any) -> bool:
    """Whether every object in a schema lists all its properties as required and allows no others."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("type") == "object" or "properties" in schema:
        if not isinstance(properties, dict) or not isinstance(required, list):
            return False
        if schema.get("additionalProperties") is not False or sorted(properties) != sorted(map(str, required)):
            return False
    inner = [value for name, value in schema.items() if name not in _VALUES and name not in _BY_NAME]
    # In these the keys are names of the client's, which may be any word.
    named = [schema[name] for name in _BY_NAME if isinstance(schema.get(name), dict)]
    return all(map(_is_strict, inner)) and all(_is_strict(value) for each in named for value in each.values())
