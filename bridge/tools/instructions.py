"""The developer text for a turn: how to call the client's functions (seed 003 §1, payloads §3), and the output format.

The text for functions consists of named blocks. The wording of the specification is the variant `SPEC`; another variant
replaces some blocks and keeps the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, Literal

from bridge.core.items import FunctionTool, OutputFormat, ToolChoice
from bridge.core.turn import Turn
from bridge.exact_json import is_within_64_bits
from bridge.tools.payload import CLOSE_TAG, OPEN_TAG, TAG, neutralise
from bridge.tools.schema import compact_json

_SPEC_BLOCKS: Mapping[str, str] = {
    "header": """\
Tool calling instructions:
Only emit tool calls using <tool_call>...</tool_call>.""",
    "format": """\
Format: <tool_call>{"name":"TOOL_NAME","arguments":"{...}"}</tool_call>
Inside <tool_call>...</tool_call>, output ONLY a JSON object with keys "name" and "arguments".""",
    "rules": r"""Always emit <tool_call> blocks exactly as shown; the client executes them.
Do NOT call internal tools directly (shell, apply_patch, web_search, view_image); only emit <tool_call>.
Read-only sandbox or approval restrictions do NOT prevent emitting <tool_call> output.
Use EXACT parameter names from the schema; do NOT invent or rename keys.
Do not add any extra characters before or after the JSON (no trailing ">", no code fences).
Use exactly one opening <tool_call> and one closing </tool_call> tag.
Output must be valid JSON. Do not add extra braces or trailing characters.
Do NOT wrap the JSON object in an array (no leading "[" or trailing "]").
$bad_example
Never repeat the closing tag.
Example (exact): <tool_call>{"name":"webSearch","arguments":"{\"query\":\"example\",\"chatHistory\":[]}"}</tool_call>
The "arguments" field must be a JSON string.
If a tool has no parameters, use arguments "{}".
If no tool is needed, respond with plain text.""",
    "bad_example": 'Bad: <tool_call>[{"name":"tool","arguments":"{...}"}]</tool_call>',
    "choice": "$choice",
    "single": "Emit at most one <tool_call> per answer.",
    "strict": "Strict tools: $names. Arguments MUST conform exactly to schema.",
    "schemas": "Available tools (schema):\n$schemas",
    "guidance": "Per-tool guidance and examples (schema-conformant):\n$guidance",
}

_CHOICES = {
    "none": "Tool choice is none: never emit <tool_call>.",
    "required": "Tool choice is required: you MUST emit at least one <tool_call>.",
    "named": 'Tool choice is forced: you MUST call "{name}".',
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A wording of the injected text: the document's, with the blocks in `blocks` replaced.

    A block is a `string.Template`: `$word` is filled in, `$$` is a dollar sign, unknown words stay as they
    are. An empty block leaves no trace. Raises ValueError for a block that does not exist.

    - `header`, `format`, `bad_example`: no words.
    - `rules`: `$bad_example`, on a line of its own.
    - `choice`, only when the choice is not auto: `$choice`, the document's line; or `$mode` and `$name`.
    - `single`, only when the client wants no parallel calls: no words.
    - `strict`, only when there are strict tools: `$names`.
    - `schemas`: `$schemas`, one line per tool. `guidance`: `$guidance`, one paragraph per tool.

    `arguments` is what the examples of the guidance show: a JSON string, or an object.
    """

    name: str
    blocks: Mapping[str, str]
    arguments: Literal["string", "object"] = "string"

    def __post_init__(self) -> None:
        if unknown := self.blocks.keys() - _SPEC_BLOCKS.keys():
            raise ValueError(f"variant {self.name!r} names no such block: {', '.join(sorted(unknown))}")

    def fill(self, block: str, **values: str) -> str:
        """The text of one block, with `values` in place of its words."""
        return Template(self.template(block)).safe_substitute(values)

    def template(self, block: str) -> str:
        """The text of one block with its words."""
        return self.blocks.get(block, _SPEC_BLOCKS[block])

    def with_tag(self, tag: str) -> Variant:
        """The same wording with other tags around a call, wherever it speaks of them."""
        renamed = {block: _rename(self.template(block), tag) for block in _SPEC_BLOCKS}
        return Variant(self.name, renamed, self.arguments)


SPEC = Variant("spec", _SPEC_BLOCKS)


def build_instructions(
    tools: Sequence[FunctionTool],
    choice: ToolChoice,
    *,
    parallel: bool = True,
    variant: Variant = SPEC,
    tag: str = TAG,
) -> str:
    """The injected text for these tools, without a newline at its end; empty when there are none.

    Four sections with one blank line between them: the fixed rules, the choice and strict lines, the schemas,
    the guidance. Names, descriptions and schemas are unchanged except for escaped tags: the author of a description
    need not be the client that executes the calls. Raises TypeError for a schema that `compact_json` cannot
    encode.
    """
    if not tools:
        return ""
    if tag != TAG:
        variant = variant.with_tag(tag)
    strict = [tool.full_name for tool in tools if tool.strict]
    fixed = [variant.fill("header"), variant.fill("format"), _rules(variant)]
    demands = [
        _choice(choice, variant, tag),
        "" if parallel else variant.fill("single"),
        variant.fill("strict", names=", ".join(strict)) if strict else "",
    ]
    schemas = "\n".join(f"- {tool.full_name}: {neutralise(_schema_json(tool))}" for tool in tools)
    guidance = "\n\n".join(_guide(tool, variant, tag) for tool in tools)
    sections = [
        "\n".join(filter(None, fixed)),
        "\n".join(filter(None, demands)),
        variant.fill("schemas", schemas=schemas),
        variant.fill("guidance", guidance=guidance),
    ]
    return "\n\n".join(filter(None, sections))


def join_developer_text(*blocks: str | None) -> str | None:
    """Join what there is with a blank line between (injected text, `instructions`, system items), else None.

    A block of white space alone counts as nothing; the others stay byte for byte.
    """
    present = [block for block in blocks if block and not block.isspace()]
    return "\n\n".join(present) if present else None


def _rules(variant: Variant) -> str:
    bad_example = variant.fill("bad_example")
    rules = variant.template("rules")
    if not bad_example:
        rules = "\n".join(line for line in rules.split("\n") if line != "$bad_example")
    return Template(rules).safe_substitute(bad_example=bad_example)


def _choice(choice: ToolChoice, variant: Variant, tag: str) -> str:
    if choice.mode == "auto" or (choice.mode == "named" and choice.name is None):
        return ""
    name = choice.name or ""
    line = _rename(_CHOICES[choice.mode], tag).replace("{name}", name)
    return variant.fill("choice", choice=line, mode=choice.mode, name=name)


def _schema_json(tool: FunctionTool) -> str:
    return "{}" if tool.parameters is None else compact_json(tool.parameters)


def _rename(text: str, tag: str) -> str:
    return text if tag == TAG else text.replace(OPEN_TAG, f"<{tag}>").replace(CLOSE_TAG, f"</{tag}>")


def _guide(tool: FunctionTool, variant: Variant, tag: str) -> str:
    # For the first request with tools: together they are as large as the rest of the package.
    from bridge.tools.examples import example_for
    from bridge.tools.schema import summarize_parameters

    example = example_for(tool.parameters)
    shown = compact_json(example) if variant.arguments == "string" else example
    call = compact_json({"name": tool.full_name, "arguments": shown})
    lines = [
        f"Tool: {tool.full_name}",
        *([f"Description: {tool.description}"] if tool.description else []),
        "Parameters:",
        *summarize_parameters(tool.parameters),
        "Example tool_call:",
    ]
    return neutralise("\n".join(lines)) + f"\n<{tag}>{neutralise(call)}</{tag}>"


_VALUES = ("enum", "const", "default", "examples", "required")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_JSON = "Answer with one valid JSON object and nothing else: no text around it, no code fence."


def can_enforce(wanted: OutputFormat) -> bool:
    """Whether the provider can enforce it: the client asks for that, or the schema allows it anyway."""
    schema = wanted.schema
    return schema is not None and is_within_64_bits(schema) and (wanted.strict or _is_strict(schema))


def format_text(turn: Turn) -> str:
    """The developer text for a format that is not enforced; empty if it is, or if there is no format."""
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
    # The keys of these are the client's names.
    named = [schema[name] for name in _BY_NAME if isinstance(schema.get(name), dict)]
    return all(map(_is_strict, inner)) and all(_is_strict(value) for each in named for value in each.values())
