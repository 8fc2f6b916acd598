"""A case of the right shape becomes a `Case`; what its shape cannot tell is checked here. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bridge.api.items import read_items
from bridge.errors import InvalidRequest
from bridge.lab.case import Case, Expect, ExpectedCall
from bridge.lab.match import check_rule
from bridge.lab.suite.faults import Faults, Place, did_you_mean
from bridge.lab.suite.nodes import Document
from bridge.lab.suite.tools import Known, argument_names, misfits, read_tool, required_names, takes
from bridge.tools.schema import compact_json
from bridge.turn.items import FunctionTool, Item, ToolChoice

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_INVALID = re.compile(r"Invalid '[^']*': ")
_OTHERS = "*"
"""Among expected arguments: all that are not named."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a case finds in its file."""

    document: Document
    defaults: Mapping[str, Any]
    tools: Known | None
    """The shared tools; None when they could not be read."""
    faults: Faults

    def report(self, place: Place, said: str) -> None:
        """Keep a fault."""
        self.faults.add(self.document.fault(place, said))


def read_case(data: Mapping[str, Any], place: Place, around: Surroundings) -> Case | None:
    """The case at `place`, whose shape is right; None when it has a fault, which is reported."""
    return _Reading(data, place, around).case()


class _Reading:
    """One case being read. `ok` until a fault is found."""

    def __init__(self, data: Mapping[str, Any], place: Place, around: Surroundings) -> None:
        self.data = data
        self.place = place
        self.around = around
        self.ok = True
        self.tools: dict[str, FunctionTool | None] = {}
        """The tools that are offered, as far as they could be read."""

    def report(self, place: Place, said: str) -> None:
        self.ok = False
        self.around.report(place, said)

    def given(self, key: str, otherwise: Any = None) -> Any:
        """What the case says, or else the defaults."""
        return self.data.get(key, self.around.defaults.get(key, otherwise))

    def place_of(self, key: str) -> Place:
        """Where that is said."""
        return ("defaults", key) if key not in self.data and key in self.around.defaults else (*self.place, key)

    def case(self) -> Case | None:
        category = self.given("category")
        if category is None:
            self.report((*self.place, "category"), "missing, here and in the defaults")
        self.read_tools()
        choice = self.tool_choice()
        items = self.items()
        expect = self.expect()
        self.check_contradictions(choice, expect)
        if not self.ok:
            return None
        return Case(
            id=self.data["id"],
            category=category,
            items=items,
            expect=expect,
            tools=tuple(tool for tool in self.tools.values() if tool is not None),
            instructions=self.given("instructions"),
            tool_choice=choice,
            parallel=self.given("parallel", True),
            tags=tuple(dict.fromkeys([*self.around.defaults.get("tags", ()), *self.data.get("tags", ())])),
            notes=self.data.get("notes", ""),
            file=self.around.document.file,
            line=self.around.document.line(self.place),
        )

    def read_tools(self) -> None:
        for index, entry in enumerate(self.given("tools", [])):
            place = (*self.place_of("tools"), index)
            name = entry if isinstance(entry, str) else entry["name"]
            if name in self.tools:
                self.report(place, f"the tool {name} is offered twice")
                continue
            tool = self.shared_tool(name, place) if isinstance(entry, str) else self.inline_tool(entry, place)
            self.tools[name] = replace(tool, strict=True) if tool and self.given("strict") else tool

    def shared_tool(self, name: str, place: Place) -> FunctionTool | None:
        shared = self.around.tools
        if shared is None:
            self.ok = False
        elif name not in shared:
            self.report(place, f"there is no tool {name}{did_you_mean(name, shared)}")
        elif shared[name] is None:
            self.ok = False
        else:
            return shared[name]
        return None

    def inline_tool(self, entry: Mapping[str, Any], place: Place) -> FunctionTool | None:
        tool = read_tool(entry["name"], entry, place, self.report)
        self.ok = self.ok and tool is not None
        return tool

    def tool_choice(self) -> ToolChoice:
        choice, place = self.given("tool_choice", "auto"), self.place_of("tool_choice")
        if isinstance(choice, str):
            if choice == "required" and not self.tools:
                self.report(place, "required, but no tool is offered")
            return ToolChoice(choice)  # type: ignore[arg-type]  # the shape has been checked
        self.check_offered(choice["name"], (*place, "name"))
        return ToolChoice("named", choice["name"])

    def check_offered(self, name: str, place: Place) -> None:
        if name not in self.tools:
            self.report(place, f"the tool {name} is not offered{did_you_mean(name, self.tools)}")

    def items(self) -> tuple[Item, ...]:
        given = [key for key in ("messages", "input") if key in self.data]
        if len(given) != 1:
            both = (*self.place, "input") if given else (*self.place, "messages")
            self.report(both, "messages and input: one of them is too much" if given else "missing, and input too")
            return ()
        key = given[0]
        values = self.data[key]
        if isinstance(values, str):
            values = [{"role": "user", "content": values}]
        try:
            items = read_items(map(_with_written_arguments, values), key)
        except InvalidRequest as error:
            said = _INVALID.sub("", error.message, count=1)
            self.report((*self.place, *_steps(error.param or key)), said[:1].lower() + said[1:].rstrip("."))
            return ()
        for index, value in enumerate(values):
            content = value.get("content")
            if value.get("role") == "user" and isinstance(content, str) and not content.strip():
                self.report((*self.place, key, index, "content"), "empty")
        if not items:
            self.report((*self.place, key), "nothing in it can be answered")
        return items

    def expect(self) -> Expect:
        data, place = self.data["expect"], (*self.place, "expect")
        calls = [] if data["calls"] == "none" else data["calls"]
        return Expect(
            calls=tuple(self.expected_call(call, (*place, "calls", index)) for index, call in enumerate(calls)),
            order=data.get("order", "any"),
            contains=_texts(data.get("contains", ())),
            lacks=_texts(data.get("lacks", ())),
            leak=data.get("leak", "forbidden"),
        )

    def expected_call(self, data: Mapping[str, Any], place: Place) -> ExpectedCall:
        call = ExpectedCall(data["name"], data.get("arguments", {}), data.get("optional", {}))
        before, self.ok = self.ok, True
        for member, rules in (("arguments", call.arguments), ("optional", call.optional)):
            for name, rule in rules.items():
                if wrong := check_rule(rule):
                    self.report((*place, member, name), wrong)
                if member == "optional" and name in call.arguments:
                    self.report((*place, member, name), "it stands among the arguments, too")
        self.check_offered(call.name, (*place, "name"))
        tool = self.tools.get(call.name)
        if tool is not None and self.ok:
            self.check_arguments(call, tool.parameters, place)
        self.ok = self.ok and before
        return call

    def check_arguments(self, call: ExpectedCall, parameters: Any, place: Place) -> None:
        """Whether the call could be right at all: an answer must fit the tool's schema as well."""
        for member, rules in (("arguments", call.arguments), ("optional", call.optional)):
            for name in rules:
                if name != _OTHERS and not takes(parameters, name):
                    said = f"the tool {call.name} has no such argument{did_you_mean(name, argument_names(parameters))}"
                    self.report((*place, member, name), said)
        named = call.arguments.keys() | call.optional.keys()
        if _OTHERS not in named:
            for name in required_names(parameters):
                if name not in named:
                    self.report((*place, "arguments", name), f"missing: the tool {call.name} requires it")
        if not self.ok:
            return
        for member, rules in (("arguments", call.arguments), ("optional", call.optional)):
            plain = {name: rule for name, rule in rules.items() if name != _OTHERS and not _has_rule(rule)}
            whole = member == "arguments" and plain.keys() == named
            for inside, said in misfits(parameters, plain, whole=whole):
                self.report((*place, member, *inside), said)

    def check_contradictions(self, choice: ToolChoice, expect: Expect) -> None:
        """Refuse what no answer can be right for."""
        place = (*self.place, "expect", "calls")
        due = len(expect.calls)
        if choice.mode == "none" and due:
            self.report(place, "calls are expected, but the tool_choice is none")
        elif choice.mode in ("required", "named") and not due:
            wanted = "required" if choice.mode == "required" else f"the tool {choice.name}"
            self.report(place, f"no call is expected, but the tool_choice is {wanted}")
        elif choice.mode == "named" and any(call.name != choice.name for call in expect.calls):
            self.report(place, f"another call is expected than the tool_choice allows, which is {choice.name}")
        if due > 1 and not self.given("parallel", True):
            self.report(place, "several calls are expected, but parallel is false")


def _with_written_arguments(value: Mapping[str, Any]) -> dict[str, Any]:
    """A message or item whose calls have their arguments as JSON, also where the suite gives an object."""
    data = dict(value)
    if isinstance(data.get("arguments"), dict):
        data["arguments"] = compact_json(data["arguments"])
    if isinstance(data.get("tool_calls"), list):
        data["tool_calls"] = [
            {**call, "function": _with_written_arguments(call["function"])}
            if isinstance(call, dict) and isinstance(call.get("function"), dict)
            else call
            for call in data["tool_calls"]
        ]
    return data


def _steps(param: str) -> Iterable[str | int]:
    """The place that an error of the API names."""
    return [int(index) if index else name for name, index in _STEP.findall(param)]


def _texts(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _has_rule(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_rule, value))
    if not isinstance(value, dict):
        return False
    return any(name.startswith("$") for name in value) or any(map(_has_rule, value.values()))
