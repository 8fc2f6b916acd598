"""The format of a suite file as pydantic models, and what is wrong with a file that does not have it. Pure.

Descriptions and the docstrings of models are part of the faults: they follow the word "expected". `schema.json` is
generated from these models, for editors (`# yaml-language-server: $schema=…`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from bridge.lab.suite.document import did_you_mean, nearest
from bridge.tools.parameters import KeyPath

_REPEAT = {
    "description": "a text and how often it is repeated",
    "type": "object",
    "additionalProperties": False,
    "required": ["$repeat"],
    "properties": {"$repeat": {"type": "array", "minItems": 2, "maxItems": 2}},
}
ABSENT: Any = None
"""The default of keys that do not accept null."""
_ID = "lower-case letters, digits and hyphens, such as weather-in-two-cities"
_OFFERED = "the name of a shared tool, or an object with name, description, parameters and strict"
_RULES = "an object of values or rules by name"

# The type of a value chooses among the alternatives of a union, so that only faults of that alternative are reported.
_BY_TYPE = Discriminator(lambda value: f"<{type(value).__name__}>")
_TEXT, _LIST, _OBJECT = Tag("<str>"), Tag("<list>"), Tag("<dict>")
_TAGS = {each.tag for each in (_TEXT, _LIST, _OBJECT)}

Id = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]*$", max_length=100, description=_ID)]
Name = Annotated[str, Field(min_length=1)]
Json = dict[str, Any]
# Repeated texts are written out before a file is checked, so only the schema for editors knows them.
AnyText = Annotated[str, WithJsonSchema({"description": "text", "anyOf": [{"type": "string"}, _REPEAT]})]
LongText = Annotated[AnyText, Field(min_length=1)]
TextOrObject = Annotated[Annotated[str, _TEXT] | Annotated[Json, _OBJECT], _BY_TYPE]
Texts = Annotated[
    Annotated[LongText, _TEXT] | Annotated[list[LongText], _LIST],
    _BY_TYPE,
    Field(description="text or a list of texts"),
]


class Shape(BaseModel):
    # Strict: text that looks like a number is not one.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ToolShape(Shape):
    """an object with description, parameters and strict"""

    description: str = ABSENT
    parameters: Annotated[Json, Field(description="a JSON Schema")] = ABSENT
    strict: bool = ABSENT


class InlineTool(ToolShape):
    """an object with name, description, parameters and strict"""

    name: Name


class NamedTool(Shape):
    """an object with name"""

    name: Name


class PastFunction(Shape):
    """an object with name and arguments"""

    name: str
    arguments: TextOrObject = Field(description="text exactly as the model wrote it, or an object, written as JSON")


class PastCall(Shape):
    """a call: an object with id and function"""

    id: str
    type: Literal["function"] = "function"
    function: PastFunction


class ChatMessage(Shape):
    """a message: an object with role and content"""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Annotated[AnyText, _TEXT] | Annotated[list[TextOrObject], _LIST], _BY_TYPE] | None = Field(
        None, description="text or a list of parts"
    )
    refusal: str | None = None
    name: str = ""
    tool_call_id: str = ""
    tool_calls: list[PastCall] = Field([], description="a list of calls")


class CallShape(Shape):
    """a call: an object with name, arguments and optional"""

    name: Name
    arguments: Json = Field({}, description=_RULES)
    optional: Json = Field({}, description=_RULES)


class PossibleCallShape(Shape):
    """a call: an object with name, values, types and required"""

    name: Name
    values: Json
    types: Json
    required: list[str] = Field([], description="a list of names")


class BfclShape(Shape):
    """an object with kind and calls"""

    kind: Literal["simple", "multiple", "parallel", "irrelevance", "relevance"]
    calls: list[PossibleCallShape] = Field([], description="a list of calls")


class ExampleShape(Shape):
    """an object with answer and verdict"""

    answer: str
    verdict: Literal["pass", "fail"]


class JudgeShape(Shape):
    """an object with rubric and examples"""

    rubric: LongText
    examples: list[ExampleShape] = Field([], description="a list of answers with verdicts")


_FUNCTION = Annotated[
    str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="module:function of a check in Python")
]


class ReactionShape(Shape):
    """a reaction: an object with result, error or python"""

    when: Json = Field({}, description=_RULES)
    result: Any = None
    error: str = ABSENT
    python: _FUNCTION = ABSENT
    delay: Annotated[float, Field(ge=0, le=60, strict=False, description="seconds, at most 60")] = 0.0


class LoopShape(Shape):
    """an object with tools, then and max_steps"""

    tools: dict[str, list[ReactionShape]] = Field({}, description="an object of lists of reactions by tool")
    then: list[LongText] = Field([], description="a list of texts")
    max_steps: Annotated[int, Field(ge=1, le=100, description="a number from 1 to 100")] = 10


class ExpectShape(Shape):
    """an object with calls"""

    calls: Annotated[Literal["none"], _TEXT] | Annotated[list[CallShape], _LIST] = Field(
        "none", discriminator=_BY_TYPE, description="none or a list of calls"
    )
    bfcl: BfclShape = ABSENT
    text: Any = None
    check: _FUNCTION = ABSENT
    judge: JudgeShape = ABSENT
    others: Literal["forbidden", "allowed"] = "forbidden"
    last_call: Name = ABSENT
    order: Literal["any", "exact"] = "any"
    contains: Texts = []
    lacks: Texts = []
    leak: Literal["forbidden", "allowed"] = "forbidden"


class Defaults(Shape):
    """an object with what all cases of this file have in common"""

    category: Id = ABSENT
    tools: list[
        Annotated[Annotated[Name, _TEXT] | Annotated[InlineTool, _OBJECT], _BY_TYPE, Field(description=_OFFERED)]
    ] = Field([], description="a list of tools")
    tool_choice: Annotated[Literal["auto", "none", "required"], _TEXT] | Annotated[NamedTool, _OBJECT] = Field(
        "auto", discriminator=_BY_TYPE, description="auto, none, required or {name: TOOL}"
    )
    strict: bool = False
    parallel: bool = True
    instructions: LongText = ABSENT
    tags: list[Id] = Field([], description="a list of tags")


class CaseShape(Defaults):
    """a case: an object with id, category, messages or input, and expect"""

    id: Id
    messages: list[ChatMessage] = Field([], min_length=1, description="a list of chat messages")
    input: Annotated[LongText, _TEXT] | Annotated[list[Json], Field(min_length=1), _LIST] = Field(
        [], discriminator=_BY_TYPE, description="text or a list of Responses items"
    )
    expect: ExpectShape
    loop: LoopShape = ABSENT
    notes: str = ""


class SuiteShape(Shape):
    """an object with cases or include"""

    model_config = ConfigDict(json_schema_extra={"patternProperties": {"^x-": True}})

    schema_uri: str = Field("", alias="$schema")
    include: list[Name] = Field([], description="a list of paths, relative to this file")
    tools: Annotated[Name, _TEXT] | Annotated[dict[str, ToolShape], _OBJECT] = Field(
        {},
        discriminator=_BY_TYPE,
        description="an object of tools by name, or the path of a file that holds one",
    )
    defaults: Defaults = Defaults.model_construct()
    cases: list[CaseShape] = Field([], description="a list of cases")


class TextFile(Shape):
    """an object with file"""

    file: Name


TextOrFile = Annotated[
    Annotated[str, _TEXT] | Annotated[TextFile, _OBJECT],
    _BY_TYPE,
    Field(description="text, or an object with file"),
]


class InstructionsShape(Shape):
    """an object with replace, prepend or append"""

    replace: TextOrFile = ABSENT
    prepend: TextOrFile = ABSENT
    append: TextOrFile = ABSENT


class ToolChangeShape(Shape):
    """an object with name and description"""

    name: Name = ABSENT
    description: str = ABSENT


class PromptShape(Shape):
    """an object with text, functions, calls and tagged"""

    text: TextOrFile
    functions: Literal["json", "python", "xml"] = "json"
    calls: Literal["python", "json", "verbose-xml", "concise-xml"] = "python"
    tagged: bool = False


class VariantShape(Shape):
    """a variant: an object with name, base, blocks, instructions, tools and other keys"""

    name: Name = ABSENT
    base: Literal["spec", "no-bad-example", "short", "json-args-object", "nonce-tag", "native"] = "spec"
    blocks: dict[str, TextOrFile] = Field({}, description="an object of texts by name")
    arguments: Literal["string", "object"] = ABSENT
    nonce: bool = ABSENT
    instructions: Annotated[str, _TEXT] | Annotated[InstructionsShape, _OBJECT] = Field(
        ABSENT,
        discriminator=_BY_TYPE,
        description="text, or an object with replace, prepend or append",
    )
    prompt: PromptShape = ABSENT
    tools: dict[str, ToolChangeShape] = Field({}, description="an object of name and description by tool")
    schemas: Literal["full", "bare", "closed"] = "full"
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] = ABSENT
    temperature: Annotated[float, Field(ge=0, le=2, strict=False, description="a number from 0 to 2")] = ABSENT


_PARTS: Mapping[str, TypeAdapter[Any]] = {
    "suite": TypeAdapter(SuiteShape),
    "variant": TypeAdapter(VariantShape),
    "tools": TypeAdapter(Annotated[dict[str, ToolShape], Field(description="an object of tools by name")]),
    "tool changes": TypeAdapter(
        Annotated[dict[str, ToolChangeShape], Field(description="an object of name and description by tool")]
    ),
}
_NAMES = {"string": "text", "boolean": "true or false", "array": "a list"}


class _Schema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def suite_schema(part: str = "suite") -> dict[str, Any]:
    """The JSON Schema of a suite file, a file of tools or a variant."""
    return _PARTS[part].json_schema(schema_generator=_Schema)


def check_shape(data: Any, part: str, report: Callable[[KeyPath, str], None]) -> set[KeyPath]:
    """Report what is wrong with the shape of `data`. Returns the paths of faulty members, of one and two steps."""
    if part == "suite" and isinstance(data, dict):
        data = {name: value for name, value in data.items() if not name.startswith("x-")}
    try:
        _PARTS[part].validate_python(data)
    except ValidationError as error:
        found = [
            (tuple(step for step in each["loc"] if step not in _TAGS), each["type"], each["input"])
            for each in error.errors(include_url=False, include_context=False)
        ]
        unknown = [path for path, kind, _ in found if kind == "extra_forbidden"]
        meant = {(*path[:-1], nearest(str(path[-1]), _keys(part, path[:-1]))) for path in unknown}
        for path, kind, value in found:
            # If a required key is misspelt, one fault is enough.
            if kind != "missing" or path not in meant:
                report(path, _message(part, path, kind, value))
        return {path[:size] for path, _, _ in found for size in (1, 2)}
    return set()


def _message(part: str, path: KeyPath, kind: str, value: Any) -> str:
    if kind == "extra_forbidden":
        return f"unknown key{did_you_mean(str(path[-1]), _keys(part, path[:-1]))}"
    if kind == "missing":
        return "missing"
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    nodes = _schemas_at(part, path)
    words = [word for node in nodes for word in node.get("enum", [node["const"]] if "const" in node else [])]
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    described = next((str(node["description"]) for node in nodes if "description" in node), "")
    listed = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)
    types = " or ".join(_NAMES[node["type"]] for node in nodes if node.get("type") in _NAMES)
    return f"expected {described or listed or types or 'an object'}{near}"


def _keys(part: str, path: KeyPath) -> list[str]:
    return [name for node in _schemas_at(part, path) for name in node.get("properties", ())]


def _schemas_at(part: str, path: KeyPath) -> list[dict[str, Any]]:
    """All schemas that apply to a value at `path`."""
    root = suite_schema(part)

    def expand(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            yield node
            inside = [root["$defs"][node["$ref"].rpartition("/")[2]]] if "$ref" in node else []
            for each in inside + node.get("anyOf", []) + node.get("oneOf", []):
                yield from expand(each)

    nodes = list(expand(root))
    for step in path:
        if isinstance(step, int):
            inner = [node.get("items") for node in nodes]
        else:
            inner = [node.get("properties", {}).get(step) or node.get("additionalProperties") for node in nodes]
        nodes = [found for node in inner for found in expand(node)]
    return nodes
