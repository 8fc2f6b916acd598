"""What one document of a suite holds: its cases, and the tools that they share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bridge.lab.case import Case
from bridge.lab.suite.cases import Surroundings, read_case
from bridge.lab.suite.faults import Faults, Place
from bridge.lab.suite.nodes import Document
from bridge.lab.suite.repeat import Repeats
from bridge.lab.suite.shape import shape_faults
from bridge.lab.suite.tools import Known, read_tool

_REPEATING = ("messages", "input", "instructions", "expect")
"""Members of a case in which a text may be repeated."""

ToolsAt = Callable[[str], Known | None]
"""Reads the tools of another file; None when that cannot be."""


def read_cases(document: Document, faults: Faults, tools_at: ToolsAt) -> Iterator[tuple[Place, Case]]:
    """The cases of a document that are right, each with its place; what is wrong elsewhere in it goes to `faults`."""

    def report(place: Place, said: str) -> None:
        faults.add(document.fault(place, said))

    data = _expanded(document.data, Repeats(report))
    wrong: set[Place] = set()
    for at, said in shape_faults(data):
        report(at, said)
        wrong |= {at[:1], at[:2]}
    if not isinstance(data, dict):
        return
    if not data.keys() & {"cases", "include"}:
        report((), "there are neither cases nor include in it")
    tools = data.get("tools", {})
    known = tools_at(tools) if isinstance(tools, str) else read_tools(tools, ("tools",), wrong, report)
    # What the faulty defaults were to say is not known, so nothing is said of the cases that would need it.
    if ("defaults",) in wrong or not isinstance(data.get("cases", []), list):
        return
    around = Surroundings(document, data.get("defaults", {}), known, faults)
    for index, case in enumerate(data.get("cases", ())):
        place: Place = ("cases", index)
        if place not in wrong and (read := read_case(case, place, around)) is not None:
            yield place, read


def read_tools(tools: Any, place: Place, wrong: set[Place], report: Callable[[Place, str], None]) -> Known | None:
    """The tools of an object at `place`; those whose shape is `wrong` have been told already."""
    if not isinstance(tools, dict):
        return None
    return {
        name: None if (*place, name) in wrong else read_tool(name, definition, (*place, name), report)
        for name, definition in tools.items()
    }


def _expanded(data: Any, repeats: Repeats) -> Any:
    """The document with its repeated texts written out. Its shape has not been checked."""
    if not isinstance(data, dict):
        return data
    expanded = dict(data)
    if isinstance(data.get("defaults"), dict):
        expanded["defaults"] = _expanded_members(data["defaults"], ("defaults",), repeats)
    if isinstance(data.get("cases"), list):
        expanded["cases"] = [
            _expanded_members(case, ("cases", index), repeats) if isinstance(case, dict) else case
            for index, case in enumerate(data["cases"])
        ]
    return expanded


def _expanded_members(data: Mapping[str, Any], place: Place, repeats: Repeats) -> dict[str, Any]:
    return {
        name: repeats.expand(value, (*place, name)) if name in _REPEATING else value for name, value in data.items()
    }
