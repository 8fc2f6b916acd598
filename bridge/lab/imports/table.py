"""Cases from tables: JSON lines and CSV. A row has both the question and the expected calls."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge.errors import UsageError
from bridge.exact_json import member, objects, try_loads
from bridge.lab.imports import Draft, Json
from bridge.log.case import case_id

MAX_BYTES = 100_000_000
MAX_FIELD = 1_000_000
"""Characters of a field of a CSV file."""
TEXT_COLUMNS = ("id", "category", "instructions", "input", "contains", "lacks", "notes")
COLUMNS = (*TEXT_COLUMNS, "tools", "call", "arguments", "tags")
_CATEGORY = "imported"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UsageError(f"{path} is larger than {MAX_BYTES:,} bytes. Split it.")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8.") from None


def jsonl_drafts(path: Path) -> Iterator[Draft]:
    """A draft for each line: a case as in a suite, or a conversation whose last message is what is expected."""
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        row = try_loads(line)
        if not isinstance(row, dict):
            yield f"line {number}: not a JSON object"
        elif "expect" in row:
            yield {"id": f"line-{number}", "category": _CATEGORY, **row}
        else:
            yield _conversation(row, number)


def _conversation(row: Json, number: int) -> Draft:
    """A conversation as in OpenAI's files for fine-tuning."""
    *asked, last = list(objects(row.get("messages"))) or [{}]
    if last.get("role") != "assistant" or not asked:
        return f"line {number}: neither expect, nor messages that end with the assistant's"
    calls = []
    for call in objects(last.get("tool_calls")):
        function = call.get("function")
        arguments = member(function, "arguments")
        given = try_loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(given, dict):
            return f"line {number}: the arguments of a call are not a JSON object"
        calls.append({"name": member(function, "name"), "arguments": given})
    case: Json = {"id": case_id(str(row.get("id") or f"line-{number}")), "category": _CATEGORY, "messages": asked}
    if tools := [_tool(tool) for tool in objects(row.get("tools"))]:
        case["tools"] = tools
    if row.get("parallel_tool_calls") is False:
        case["parallel"] = False
    expect: Json = {"calls": calls or "none"}
    content = last.get("content")
    if not calls and isinstance(content, str) and content:
        expect["contains"] = content
    return {**case, "expect": expect}


def _tool(tool: Json) -> Json:
    inner = tool.get("function")
    function = inner if isinstance(inner, dict) else tool
    names = ("name", "description", "parameters", "strict")
    return {name: function[name] for name in names if function.get(name) is not None}


def csv_drafts(path: Path) -> Iterator[Draft]:
    """A draft for each row; docs/lab.md has the columns."""
    csv.field_size_limit(MAX_FIELD)
    reader = csv.DictReader(_read(path).splitlines(keepends=True))
    known = [name for name in reader.fieldnames or () if name]
    if unknown := [name for name in known if name not in COLUMNS]:
        raise UsageError(f"{path}: unknown column {', '.join(unknown)[:200]}. The columns are {', '.join(COLUMNS)}.")
    if "input" not in known:
        raise UsageError(f"{path}: the column input is missing. The columns are {', '.join(COLUMNS)}.")
    try:
        for number, row in enumerate(reader, 2):
            yield _row(
                {name: value for name, value in row.items() if name and isinstance(value, str) and value}, number
            )
    except csv.Error as error:
        raise UsageError(f"{path}: line {reader.line_num}: {error}.") from None


def _row(row: dict[str, str], number: int) -> Draft:
    parsed: dict[str, Any] = {}
    for name, kind in (("tools", list), ("arguments", dict)):
        if name in row:
            parsed[name] = try_loads(row[name])
            if not isinstance(parsed[name], kind):
                return f"line {number}: {name} is not a JSON {'array' if kind is list else 'object'}"
    case: Json = {"id": case_id(row.get("id", f"line-{number}")), "category": row.get("category", _CATEGORY)}
    case |= {name: row[name] for name in ("instructions", "input", "notes") if name in row}
    if "tools" in parsed:
        case["tools"] = [_tool(tool) for tool in objects(parsed["tools"])]
    if "tags" in row:
        case["tags"] = row["tags"].split()
    call = row.get("call")
    expect: Json = {"calls": [{"name": call, "arguments": parsed.get("arguments", {})}] if call else "none"}
    expect |= {name: row[name] for name in ("contains", "lacks") if name in row}
    return {**case, "expect": expect}
