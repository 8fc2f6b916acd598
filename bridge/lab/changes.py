"""What a variant changes in a request beside the injected text: instructions, tools, effort and temperature. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bridge.core.items import FunctionCall, FunctionTool, Item, ToolChoice
from bridge.lab.case import Case, ExpectedCall, Loop

How = Literal["replace", "prepend", "append"]
SchemaStyle = Literal["full", "bare", "closed"]
SCHEMA_STYLES: Mapping[SchemaStyle, str] = {
    "full": "as the case has them",
    "bare": "without descriptions, titles, examples and defaults",
    "closed": "every object forbids other members",
}
MAX_DEPTH = 100
_WORDS = ("description", "title", "examples", "example", "default", "$comment")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples", "example", "required")


@dataclass(frozen=True, slots=True)
class ToolChange:
    """Another name and description of a tool; None leaves it as it is."""

    name: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes to every case of a variant."""

    instructions: tuple[tuple[How, str], ...] = ()
    """Applied in this order to the client's instructions."""
    tools: Mapping[str, ToolChange] = field(default_factory=dict)
    schemas: SchemaStyle = "full"
    effort: str | None = None
    temperature: float | None = None

    def apply(self, case: Case) -> Case:
        """The case as it is asked and scored; the case itself if nothing in it changes."""
        if not self.instructions and not self.tools and self.schemas == "full":
            return case
        instructions = case.instructions
        for how, text in self.instructions:
            instructions = _joined(instructions, how, text)
        names = {name: change.name for name, change in self.tools.items() if change.name is not None}
        choice, expect = case.tool_choice, case.expect
        return replace(
            case,
            instructions=instructions,
            tools=tuple(map(self._tool, case.tools)),
            items=tuple(_renamed(item, names) for item in case.items),
            tool_choice=ToolChoice(choice.mode, names.get(choice.name or "", choice.name)),
            expect=replace(
                expect,
                calls=tuple(_expected(call, names) for call in expect.calls),
                last_call=names.get(expect.last_call or "", expect.last_call),
            ),
            loop=_renamed_loop(case.loop, names),
        )

    def _tool(self, tool: FunctionTool) -> FunctionTool:
        change = self.tools.get(tool.name, ToolChange())
        return replace(
            tool,
            name=change.name or tool.name,
            description=tool.description if change.description is None else change.description or None,
            parameters=styled(tool.parameters, self.schemas),
        )


NO_CHANGES = Changes()


def _joined(before: str | None, how: How, text: str) -> str | None:
    orders: Mapping[How, tuple[str | None, ...]] = {
        "replace": (text,),
        "prepend": (text, before),
        "append": (before, text),
    }
    parts = orders[how]
    return "\n\n".join(part for part in parts if part) or None


def _renamed(item: Item, names: Mapping[str, str]) -> Item:
    if isinstance(item, FunctionCall) and item.namespace is None and item.name in names:
        return replace(item, name=names[item.name])
    return item


def _renamed_loop(loop: Loop | None, names: Mapping[str, str]) -> Loop | None:
    if loop is None:
        return None
    return replace(loop, tools={names.get(name, name): reactions for name, reactions in loop.tools.items()})


def _expected(call: ExpectedCall, names: Mapping[str, str]) -> ExpectedCall:
    return replace(call, name=names[call.name]) if call.name in names else call


def styled(schema: Any, style: SchemaStyle, depth: int = 0) -> Any:
    """A schema in a style. What is nested too deeply stays as it is."""
    if style == "full" or depth > MAX_DEPTH:
        return schema
    if isinstance(schema, list):
        return [styled(each, style, depth + 1) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for word, value in schema.items():
        if style == "bare" and word in _WORDS:
            continue
        if word in _BY_NAME and isinstance(value, Mapping):
            found[word] = {name: styled(each, style, depth + 1) for name, each in value.items()}
        else:
            found[word] = value if word in _VALUES else styled(value, style, depth + 1)
    if style == "closed" and (found.get("type") == "object" or "properties" in found):
        found.setdefault("additionalProperties", False)
    return found
