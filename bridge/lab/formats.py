"""Prompts with another format of functions and calls: Python, JSON or XML, as in BFCL's study of formats. Pure.

What a model writes is untrusted: it is parsed, never executed, and has a limit.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from string import Template
from typing import Any, Literal
from xml.etree import ElementTree

from bridge.core.items import FunctionTool
from bridge.exact_json import member
from bridge.lab.case import Called
from bridge.tools.schema import compact_json

Calls = Literal["python", "json", "verbose-xml", "concise-xml"]
Functions = Literal["python", "json", "xml"]

MAX_TEXT = 200_000
"""Characters of an answer that are parsed."""
MAX_DEPTH = 50
_CALL_TAG = re.compile(r"<TOOLCALL>(.*?)</TOOLCALL>", re.DOTALL)
_XML = re.compile(r"<functions>.*?</functions>", re.DOTALL)
_LIST = re.compile(r"\[.*\]", re.DOTALL)
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """A prompt, in which `$functions` stands for the functions, and how the model is to write calls."""

    prompt: str
    functions: Functions = "json"
    calls: Calls = "python"
    tagged: bool = False
    """Whether calls stand between <TOOLCALL> tags."""

    def text_for(self, tools: Iterable[FunctionTool]) -> str:
        return Template(self.prompt).safe_substitute(functions=describe_functions(tools, self.functions))


class NotCalls(ValueError):
    """The text is not a list of calls in this format."""


def decode_calls(text: str, wanted: PromptFormat) -> list[Called]:
    """The calls that a text consists of. Raises NotCalls."""
    text = text.strip()
    if wanted.tagged:
        found = _CALL_TAG.search(text)
        if found is None:
            raise NotCalls("no <TOOLCALL> tags")
        text = found[1].strip()
    if len(text) > MAX_TEXT:
        raise NotCalls("too long")
    try:
        calls = list(_DECODERS[wanted.calls](text))
        return [Called(name, compact_json(arguments)) for name, arguments in calls]
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError, ElementTree.ParseError) as error:
        raise NotCalls(str(error)[:200]) from None


def is_attempt(text: str, wanted: PromptFormat, names: Iterable[str]) -> bool:
    """Whether a text that is not a list of calls was meant as one."""
    if "<TOOLCALL>" in text or "<functions>" in text:
        return True
    start = text.strip("`\n ").removeprefix("json").removeprefix("python").lstrip()
    if wanted.calls == "json":
        return start.startswith(("[{", "{"))
    return any(start.startswith((f"[{name}(", f"{name}(")) for name in names)


# Reading calls


def _python(text: str) -> Iterator[tuple[str, Any]]:
    text = text.strip("`\n ").removeprefix("python").strip()
    # As BFCL does: models leave the brackets out.
    text = text if text.startswith("[") else f"[{text}"
    body = _expression(text if text.endswith("]") else f"{text}]")
    if not isinstance(body, ast.List):
        raise NotCalls("not a list")
    for each in body.elts:
        if not isinstance(each, ast.Call) or each.args or any(word.arg is None for word in each.keywords):
            raise NotCalls("not a call with named arguments")
        yield ast.unparse(each.func).replace(".", "_"), {str(word.arg): _value(word.value) for word in each.keywords}


def _expression(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on what a model writes, such as an unknown escape sequence
        return ast.parse(text, mode="eval").body


def _value(node: ast.expr, depth: int = 0) -> Any:
    """The JSON value of a literal; a name or a call is its text."""
    if depth > MAX_DEPTH:
        raise NotCalls("nested too deeply")
    if isinstance(node, ast.Constant):
        value = "..." if node.value is Ellipsis else node.value
        if value is None or isinstance(value, str | int | float):
            return value
        raise NotCalls("not a JSON value")
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each, depth + 1) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_value(key, depth + 1) if key is not None else "**" for key in node.keys]
        return {str(key): _value(value, depth + 1) for key, value in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _value(node.operand, depth + 1)
        if isinstance(operand, int | float):
            return -operand
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
        if isinstance(left, int | float) and isinstance(right, int | float) and right != 0:
            return _ARITHMETIC[type(node.op)](left, right)
    return ast.unparse(node)


def _json(text: str) -> Iterator[tuple[str, Any]]:
    found = _LIST.search(text)
    for each in json.loads(found[0] if found is not None else text):
        yield str(each["function"]).replace(".", "_"), each["parameters"]


def _xml(text: str) -> Iterator[tuple[str, Any]]:
    found = _XML.search(text)
    if found is None or "<!" in found[0]:  # no entities
        raise NotCalls("no <functions>")
    # Without a DTD, and of a bounded size, XML is harmless.
    for function in ElementTree.fromstring(found[0]).findall("function"):  # noqa: S314
        arguments = {}
        for parameter in function.iter("param"):
            value = parameter.get("value")
            raw = (parameter.text or "").strip() if value is None else value
            arguments[parameter.attrib["name"]] = _typed(raw, parameter.get("type", "string"))
        yield function.attrib["name"].replace(".", "_"), arguments


def _typed(text: str, kind: str) -> Any:
    if kind == "integer":
        return int(text)
    if kind == "float":
        return float(text)
    if kind == "boolean":
        return text.lower() == "true"
    if kind == "null":
        return None
    if kind in ("array", "tuple", "object", "dict"):
        return _value(_expression(text.strip()))
    return text


_DECODERS: Mapping[Calls, Callable[[str], Iterator[tuple[str, Any]]]] = {
    "python": _python,
    "json": _json,
    "verbose-xml": _xml,
    "concise-xml": _xml,
}


# Describing functions


def describe_functions(tools: Iterable[FunctionTool], style: Functions) -> str:
    """The functions for a prompt."""
    if style == "json":
        described = [
            {"name": tool.full_name, "description": tool.description or "", "parameters": tool.parameters or {}}
            for tool in tools
        ]
        return json.dumps(described, indent=4, ensure_ascii=False, default=dict)
    describe = _describe_python if style == "python" else _describe_xml
    return "\n\n".join("\n".join(describe(tool)) for tool in tools)


def _describe_python(tool: FunctionTool) -> Iterator[str]:
    yield f"# Function: {tool.full_name}"
    yield '    """'
    yield f"    {tool.description or ''}"
    yield ""
    yield "    Args:"
    for name, schema in _properties(tool.parameters):
        yield from _python_argument(name, schema, 0)
    yield '    """'


def _python_argument(name: str, schema: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    default = f", default={member(schema, 'default')!r}" if isinstance(schema, Mapping) and "default" in schema else ""
    yield f"{' ' * (8 + 4 * depth)}{name} ({_python_type(schema)}{default}): {_words(schema)}"
    for inner, below in _properties(schema):
        yield from _python_argument(inner, below, depth + 1)


def _python_type(schema: Any, depth: int = 0) -> str:
    kind = str(member(schema, "type") or "any")
    if kind == "array" and depth < MAX_DEPTH:
        return f"list[{_python_type(member(schema, 'items'), depth + 1)}]"
    names = {"string": "str", "number": "float", "integer": "int", "boolean": "bool", "object": "dict"}
    return names.get(kind, kind)


def _describe_xml(tool: FunctionTool) -> Iterator[str]:
    yield f'<function name="{tool.full_name}">'
    yield f"  <desc>{tool.description or ''}</desc>"
    yield "  <params>"
    yield from _xml_parameters(tool.parameters, 2)
    yield "  </params>"
    yield "</function>"


def _xml_parameters(schema: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    required = member(schema, "required")
    indent = "  " * depth
    for name, inner in _properties(schema):
        kind = str(member(inner, "type") or "any")
        if kind == "array":
            kind = f"array[{member(inner, 'items', 'type') or 'any'}]"
        due = "true" if isinstance(required, list) and name in required else "false"
        default = (
            f' default="{member(inner, "default")!r}"' if isinstance(inner, Mapping) and "default" in inner else ""
        )
        yield f'{indent}<param name="{name}" type="{kind}" required="{due}"{default}>'
        yield f"{indent}  <desc>{_words(inner)}</desc>"
        if any(_properties(inner)):
            yield f"{indent}  <params>"
            yield from _xml_parameters(inner, depth + 2)
            yield f"{indent}  </params>"
        yield f"{indent}</param>"


def _properties(schema: Any) -> Iterator[tuple[str, Any]]:
    properties = member(schema, "properties")
    if isinstance(properties, dict):
        yield from properties.items()


def _words(schema: Any) -> str:
    text = str(member(schema, "description") or "")
    values = member(schema, "enum")
    return f"{text} Enum values: {values}." if isinstance(values, list) else text
