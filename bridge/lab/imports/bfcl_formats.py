"""BFCL's 26 prompt formats as variants, made of the texts in its wheel.

Each combines how calls are returned, whether they stand between tags, and how functions are described; one has a prompt
in Markdown, one another style. The texts are literals of a Python module, which is parsed, not executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from bridge.errors import UsageError
from bridge.lab.imports import Json
from bridge.lab.imports.bfcl import Wheel

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
