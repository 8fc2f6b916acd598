"""What the page of a report reads when it is looked at: a case, and each of its samples. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from bridge.lab.case import Case, ExpectedCall
from bridge.lab.report.explain import explain
from bridge.lab.report.marked import mark_text, stand_in_case, visible_text
from bridge.lab.result import Result
from bridge.lab.variant import LabVariant
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Item, Message, Text

LONGEST_MEDIA = 200


def case_block(case: Case) -> dict[str, Any]:
    """What is asked, and what is right."""
    expect = case.expect
    choice = case.tool_choice
    asked = [["system", "text", case.instructions, "", ""]] if case.instructions else []
    return {
        "asked": asked + [part for item in case.items for part in _parts(item)],
        "tools": [tool.full_name for tool in case.tools],
        "choice": f"function {choice.name}" if choice.mode == "named" else choice.mode,
        "parallel": case.parallel,
        "notes": case.notes,
        "expect": {
            "calls": [_expected(call) for call in expect.calls],
            "order": expect.order,
            "contains": list(expect.contains),
            "lacks": list(expect.lacks),
            "leak": expect.leak,
        },
    }


def sample_block(result: Result, case: Case | None, variant: LabVariant) -> dict[str, Any]:
    """A sample: its texts with the calls in them marked, its calls, and what is wrong with it."""
    known = case or stand_in_case(result)
    called = [call.name for call in result.calls]
    error = result.error if isinstance(result.error, dict) else {}
    return {
        "repeat": result.cell.repeat,
        "status": result.status,
        "passed": result.passed,
        "form": result.form,
        "f1": result.f1,
        "repairs": list(result.repairs),
        "rejections": list(result.rejections),
        "failed": [list(each) for each in explain(result, case, visible_text(result, known, variant))],
        "texts": [
            [[stretch.text, stretch.kind, stretch.note] for stretch in mark_text(text, called, known, variant)]
            for text in result.texts
        ],
        "calls": [[call.name, call.arguments] for call in result.calls],
        "error": {"code": str(error.get("code", "")), "message": str(error.get("message", ""))} if error else None,
        "in": result.input_tokens,
        "out": result.output_tokens,
        "seconds": result.seconds,
        "req": str(result.req_id or ""),
    }


def whole_text(value: Any) -> Any:
    """A value whose texts any encoder can write: half a surrogate pair becomes U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {whole_text(name): whole_text(member) for name, member in value.items()}
    if isinstance(value, list):
        return [whole_text(member) for member in value]
    return value


def _parts(item: Item) -> Iterator[list[str]]:
    """(role, kind, text, name, call id) of each part."""
    if isinstance(item, FunctionCall):
        yield ["assistant", "call", item.arguments, item.full_name, item.call_id]
    elif isinstance(item, FunctionOutput):
        yield ["tool", "output", item.text, "", item.call_id]
    elif isinstance(item, Message):
        for part in item.parts:
            if isinstance(part, Text):
                yield [item.role, "text", part.text, "", ""]
            elif isinstance(part, Image):
                yield [item.role, "media", part.url[:LONGEST_MEDIA], "image", ""]
    else:
        yield ["user", "other", _json(dict(item.data)), item.type, ""]


def _expected(call: ExpectedCall) -> dict[str, str]:
    optional = _json(dict(call.optional)) if call.optional else ""
    return {"name": call.name, "arguments": _json(dict(call.arguments)), "optional": optional}


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return repr(value)
