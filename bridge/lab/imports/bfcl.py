"""BFCL's single-turn categories as suites and its prompt formats as variants, from the public wheel `bfcl-eval`.

The wheel is read without installing it: it is a zip file with the data of the Berkeley Function-Calling Leaderboard
(Apache License 2.0). Its content is untrusted: nothing in it is executed, and every member has a limit.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from bridge.errors import UsageError
from bridge.exact_json import member, objects, try_loads
from bridge.lab.imports import Draft, Json
from bridge.tools.parameters import schema_fault

KINDS: Mapping[str, str] = {
    "simple_python": "simple",
    "multiple": "multiple",
    "parallel": "parallel",
    "parallel_multiple": "parallel",
    "irrelevance": "irrelevance",
    "live_simple": "simple",
    "live_multiple": "multiple",
    "live_parallel": "parallel",
    "live_parallel_multiple": "parallel",
    "live_irrelevance": "irrelevance",
    "live_relevance": "relevance",
}
"""How BFCL checks each of its single-turn categories in Python."""
MAX_MEMBER = 50_000_000
"""Bytes of one file in the wheel."""
_DATA = "bfcl_eval/data/BFCL_v4_{}.json"
_ANSWERS = "bfcl_eval/data/possible_answer/BFCL_v4_{}.json"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_NOT_IN_IDS = re.compile(r"[^a-z0-9]+")
_PLAIN_WORDS = ("enum", "required", "default", "description", "examples", "format")


class Wheel:
    """The wheel as a file. Raises UsageError for one that is not it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise UsageError(
                f"{path} is not a wheel: {error}. Get it with `pip download --no-deps bfcl-eval`."
            ) from None
        if _DATA.format("simple_python") not in self._zip.namelist():
            raise UsageError(f"{path} is not the wheel of bfcl-eval with the data of BFCL v4.")

    def text(self, name: str) -> str:
        """A member as text; empty if there is none."""
        try:
            info = self._zip.getinfo(name)
        except KeyError:
            return ""
        with self._zip.open(info) as file:
            content = file.read(MAX_MEMBER + 1)
        if len(content) > MAX_MEMBER:
            raise UsageError(f"{self.path}: {name} is larger than {MAX_MEMBER:,} bytes.")
        return content.decode("utf-8", "replace")

    def rows(self, name: str) -> list[Json]:
        """The JSON objects of a member, one per line."""
        return list(objects([try_loads(line) for line in self.text(name).splitlines() if line.strip()]))


def bfcl_drafts(wheel: Wheel, category: str) -> Iterator[Draft]:
    """A draft for each case of a category."""
    answers = {str(row.get("id")): row.get("ground_truth") for row in wheel.rows(_ANSWERS.format(category))}
    for row in wheel.rows(_DATA.format(category)):
        yield _draft(row, answers.get(str(row.get("id"))), category)


def _draft(row: Json, answer: Any, category: str) -> Draft:
    name, question = str(row.get("id")), row.get("question")
    if not isinstance(question, list) or len(question) != 1 or not isinstance(question[0], list):
        return f"{name}: not one turn"
    functions = [each for each in objects(row.get("function")) if isinstance(each.get("name"), str)]
    tools = [_tool(function) for function in functions]
    for tool in tools:
        if wrong := schema_fault(tool["parameters"]):
            return f"{name}: {tool['name']}: {wrong[1]}"
    kind = KINDS[category]
    expect: Json = {"kind": kind}
    if kind not in ("irrelevance", "relevance"):
        calls = []
        for number, possible in enumerate(objects(answer)):
            ((called, values),) = list(possible.items())[:1] or [("", {})]
            described = functions[0] if kind == "simple" and not number and functions else None
            described = described or next((each for each in functions if each["name"] == called), None)
            if described is None or not isinstance(values, dict):
                return f"{name}: its answer calls {called}, which is not offered"
            calls.append(_possible(described, values))
        expect["calls"] = calls
    return {
        "id": _NOT_IN_IDS.sub("-", name.lower()).strip("-"),
        "category": category.replace("_", "-"),
        "messages": [_message(message) for message in objects(question[0])],
        "tools": tools,
        "expect": {"bfcl": expect},
        "tags": ["bfcl"],
    }


def _message(message: Json) -> Json:
    return {"role": message.get("role"), "content": message.get("content")}


def function_name(name: str) -> str:
    """As BFCL names functions for models that do not accept dots."""
    return name.replace(".", "_")


def _tool(function: Json) -> Json:
    parameters = schema_of(function.get("parameters"))
    return {
        "name": function_name(function["name"]),
        "description": str(function.get("description", "")),
        "parameters": parameters if isinstance(parameters, dict) else {"type": "object"},
    }


def schema_of(node: Any) -> Any:
    """A JSON Schema: BFCL names some types as Python does, and has members of its own."""
    if isinstance(node, list):
        return [schema_of(each) for each in node]
    if not isinstance(node, dict):
        return node
    found: Json = {}
    for word, value in node.items():
        if word == "properties" and isinstance(value, dict):
            found[word] = {name: schema_of(each) for name, each in value.items()}
        elif word == "type" and isinstance(value, str):
            if value != "any":
                found[word] = _TYPES.get(value, value)
        elif word == "required":
            if isinstance(value, list):
                found[word] = value
        elif word != "optional":
            found[word] = value if word in _PLAIN_WORDS else schema_of(value)
    return found


def _possible(function: Json, values: Json) -> Json:
    parameters = function.get("parameters")
    properties = member(parameters, "properties")
    types = {
        name: _type_of(described) for name, described in (properties if isinstance(properties, dict) else {}).items()
    }
    required = member(parameters, "required")
    return {
        "name": function_name(function["name"]),
        "values": values,
        "types": {name: kind for name, kind in types.items() if name in values},
        "required": [each for each in required if isinstance(each, str)] if isinstance(required, list) else [],
    }


def _type_of(described: Any) -> Any:
    outer, inner = member(described, "type"), member(described, "items", "type")
    return [outer, inner] if outer in ("array", "tuple") and inner is not None else outer


# The 26 prompt formats. Each combines how calls are returned, whether they stand between tags, and how functions are
# described; one has a prompt in Markdown, one another style. Their texts are literals of a module in Python, which is
# parsed, not executed.

_PROMPTS = "bfcl_eval/constants/default_prompts.py"
_CALLS = {"python": "python", "json": "json", "verbose_xml": "verbose-xml", "concise_xml": "concise-xml"}
_FUNCTIONS = ("python", "xml", "json")


def bfcl_formats(wheel: Wheel) -> Iterator[tuple[str, Json]]:
    """(name, variant) of each format."""
    texts = _literals(wheel.text(_PROMPTS))
    try:
        for returned, tagged, functions in product(_CALLS, (True, False), _FUNCTIONS):
            yield _format(texts, returned, tagged, functions, "plaintext", "classic")
        yield _format(texts, "python", False, "json", "markdown", "classic")
        yield _format(texts, "python", False, "json", "plaintext", "experimental")
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UsageError(f"{wheel.path}: its prompts are not those of BFCL v4: {error!r}.") from None


def _format(
    texts: Mapping[str, Any], returned: str, tagged: bool, functions: str, layout: str, style: str
) -> tuple[str, Json]:
    words = texts["PROMPT_STYLE_TEMPLATES"][style]
    template = texts[
        "_PLAINTEXT_SYSTEM_PROMPT_TEMPLATE" if layout == "plaintext" else "_MARKDOWN_SYSTEM_PROMPT_TEMPLATE"
    ]
    calls = words["tool_call_with_tag" if tagged else "tool_call_no_tag"].format(
        output_format=texts["OUTPUT_FORMAT_MAPPING"][returned], param_types=texts["PARAM_TYPE_MAPPING"][returned]
    )
    marker = "\0functions\0"
    text = template.format(
        persona=words["persona"],
        task=words["task"],
        tool_call_format=calls,
        multiturn_behavior=words["multiturn_behavior"],
        available_tools=words["available_tools"].format(format=functions, functions=marker),
    )
    # A dollar sign of the prompt is not a word of ours.
    text = text.replace("$", "$$").replace(marker, "$functions")
    parts = [_CALLS[returned], *(["tagged"] if tagged else []), functions]
    parts += [each for each, usual in ((layout, "plaintext"), (style, "classic")) if each != usual]
    name = "bfcl-" + "-".join(parts)
    prompt = {"text": text, "functions": functions, "calls": _CALLS[returned], "tagged": tagged}
    return name, {"name": name, "prompt": prompt}


def _literals(source: str) -> dict[str, Any]:
    """The constants of a module that are literals."""
    found = {}
    try:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                try:
                    found[node.targets[0].id] = ast.literal_eval(node.value)
                except ValueError:
                    continue
    except (SyntaxError, RecursionError, MemoryError):
        return {}
    return found
