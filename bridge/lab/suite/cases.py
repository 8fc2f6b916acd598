"""Read a case or a tool whose shape is right, and report what its shape cannot tell: what no answer can meet."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.core.items import FunctionTool, Item, ToolChoice
from bridge.errors import InvalidRequest
from bridge.lab.bfcl import BfclExpect, PossibleCall
from bridge.lab.case import OTHERS, Case, Example, Expect, ExpectedCall, JudgeExpect, Loop, Reaction
from bridge.lab.rules import check_rule, has_rule
from bridge.lab.suite.document import Document, did_you_mean
from bridge.lab.suite.models import CallShape, CaseShape, InlineTool, ToolShape
from bridge.protocols.items import read_items, read_name
from bridge.tools.parameters import KeyPath, argument_names, misfits, required_names, schema_fault, takes
from bridge.tools.schema import compact_json

Tools = Mapping[str, FunctionTool | None]
"""Tools by name; None for a definition with a fault, which has been reported."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_INVALID = re.compile(r"Invalid '[^']*': ")


def read_tools(tools: Any, path: KeyPath, wrong: set[KeyPath], document: Document) -> Tools | None:
    """The tools of an object at `path`. Faults of those whose shape is `wrong` have been reported."""
    if not isinstance(tools, dict):
        return None
    read: dict[str, FunctionTool | None] = dict.fromkeys(tools)
    for name, definition in tools.items():
        if (at := (*path, name)) not in wrong:
            read[name] = read_tool(name, ToolShape.model_validate(definition), at, document)
    return read


def read_tool(name: str, shape: ToolShape, path: KeyPath, document: Document) -> FunctionTool | None:
    """The tool of a definition; None if it has a fault."""
    try:
        read_name(name, "name")
    except InvalidRequest:
        where = (*path, "name") if isinstance(shape, InlineTool) else path
        document.report(where, "a tool name must have 1 to 128 letters, digits or any of _ . : -")
        return None
    if shape.parameters is not None and (wrong := schema_fault(shape.parameters)):
        inside, message = wrong
        document.report((*path, "parameters", *inside), message)
        return None
    return FunctionTool(name, shape.description, shape.parameters, shape.strict)


@dataclass(slots=True)
class CaseReader:
    """Reads one case whose shape is right."""

    shape: CaseShape
    inherited: Collection[str]
    """The keys whose values come from the defaults."""
    shared: Tools | None
    """The shared tools; None if they could not be read."""
    path: KeyPath
    document: Document
    tools: dict[str, FunctionTool | None] = field(default_factory=dict)
    """The tools that are offered; None for one that could not be read."""

    def report(self, path: KeyPath, message: str) -> None:
        self.document.report(path, message)

    def where(self, key: str) -> KeyPath:
        return ("defaults", key) if key in self.inherited else (*self.path, key)

    def case(self) -> Case | None:
        """The case; None if it has a fault."""
        shape, before = self.shape, len(self.document.faults)
        if not shape.category:
            self.report((*self.path, "category"), "missing here and in the defaults")
        self.read_tools()
        choice = self.tool_choice()
        items = self.items()
        expected = shape.expect
        calls = expected.calls if isinstance(expected.calls, list) else []
        at = (*self.path, "expect", "calls")
        if not expected.model_fields_set & {"calls", "bfcl"}:
            self.report(at, "missing")
        expect = Expect(
            calls=tuple(self.expected_call(call, (*at, index)) for index, call in enumerate(calls)),
            order=expected.order,
            contains=_texts(expected.contains),
            lacks=_texts(expected.lacks),
            leak=expected.leak,
            bfcl=self.bfcl(),
            text=self.text_rule(),
            check=expected.check,
            judge=self.judge(),
            others=expected.others,
            last_call=expected.last_call,
        )
        if expected.last_call is not None:
            self.check_offered(expected.last_call, (*self.path, "expect", "last_call"))
        loop = self.loop()
        if expect.bfcl is None:
            self.check_contradictions(choice, expect.calls, at)
        tools = tuple(tool for tool in self.tools.values() if tool is not None)
        if len(self.document.faults) > before or len(tools) < len(self.tools):
            return None
        return Case(
            id=shape.id,
            category=shape.category,
            items=items,
            expect=expect,
            tools=tools,
            instructions=shape.instructions,
            tool_choice=choice,
            parallel=shape.parallel,
            tags=tuple(dict.fromkeys(shape.tags)),
            notes=shape.notes,
            loop=loop,
            file=self.document.file,
            line=self.document.line_of(self.path),
        )

    def read_tools(self) -> None:
        for index, entry in enumerate(self.shape.tools):
            path = (*self.where("tools"), index)
            name = entry if isinstance(entry, str) else entry.name
            if name in self.tools:
                self.report(path, f"the tool {name} is offered twice")
                continue
            if not isinstance(entry, str):
                tool = read_tool(name, entry, path, self.document)
            else:
                tool = self.shared.get(name) if self.shared is not None else None
                if self.shared is not None and name not in self.shared:
                    self.report(path, f"unknown tool {name}{did_you_mean(name, self.shared)}")
            if tool is not None and self.shape.strict:
                tool = replace(tool, strict=True)
            self.tools[name] = tool

    def tool_choice(self) -> ToolChoice:
        choice, path = self.shape.tool_choice, self.where("tool_choice")
        if isinstance(choice, str):
            if choice == "required" and not self.tools:
                self.report(path, "tool_choice is required, but no tool is offered")
            return ToolChoice(choice)
        self.check_offered(choice.name, (*path, "name"))
        return ToolChoice("named", choice.name)

    def check_offered(self, name: str, path: KeyPath) -> None:
        if name not in self.tools:
            self.report(path, f"the tool {name} is not offered{did_you_mean(name, self.tools)}")

    def items(self) -> tuple[Item, ...]:
        given = self.shape.model_dump(include={"messages", "input"}, exclude_unset=True)
        if len(given) != 1:
            self.report(
                (*self.path, "input" if given else "messages"),
                "give either messages or input, not both" if given else "missing; give messages or input",
            )
            return ()
        ((key, values),) = given.items()
        if isinstance(values, str):
            values = [{"role": "user", "content": values}]
        try:
            items = read_items(_with_text_arguments(values), key)
        except InvalidRequest as error:
            message = _INVALID.sub("", error.message, count=1)
            # The parameter as a key path.
            at = [int(index) if index else name for name, index in _STEP.findall(error.param or key)]
            self.report((*self.path, *at), message[:1].lower() + message[1:].rstrip("."))
            return ()
        for index, value in enumerate(values):
            content = value.get("content")
            if value.get("role") == "user" and isinstance(content, str) and not content.strip():
                self.report((*self.path, key, index, "content"), "must not be empty")
        if not items:
            self.report((*self.path, key), "nothing to answer")
        return items

    def expected_call(self, shape: CallShape, path: KeyPath) -> ExpectedCall:
        """An expected call that an answer can make: one that also fits the tool's schema."""
        faults, before = self.document.faults, len(self.document.faults)
        members = {"arguments": shape.arguments, "optional": shape.optional}
        rules = [((*path, member, name), name, rule) for member in members for name, rule in members[member].items()]
        for at, name, rule in rules:
            if wrong := check_rule(rule):
                self.report(at, wrong)
            if at[-2] == "optional" and name in shape.arguments:
                self.report(at, "already listed under arguments")
        self.check_offered(shape.name, (*path, "name"))
        call, tool = ExpectedCall(shape.name, shape.arguments, shape.optional), self.tools.get(shape.name)
        if tool is None or len(faults) > before:
            return call
        for at, name, _ in rules:
            if name != OTHERS and not takes(tool.parameters, name):
                near = did_you_mean(name, argument_names(tool.parameters))
                self.report(at, f"the tool {call.name} has no such argument{near}")
        named = {name for _, name, _ in rules}
        if OTHERS not in named:
            for name in required_names(tool.parameters):
                if name not in named:
                    self.report((*path, "arguments", name), f"missing: the tool {call.name} requires it")
        if len(faults) > before:
            return call
        for member, found in members.items():
            plain = {name: rule for name, rule in found.items() if name != OTHERS and not has_rule(rule)}
            whole = member == "arguments" and plain.keys() == named
            for inside, message in misfits(tool.parameters, plain, whole=whole):
                self.report((*path, member, *inside), message)
        return call

    def bfcl(self) -> BfclExpect | None:
        if "bfcl" not in self.shape.expect.model_fields_set:
            return None
        shape = self.shape.expect.bfcl
        if shape.kind not in ("irrelevance", "relevance") and not shape.calls:
            self.report((*self.path, "expect", "bfcl", "calls"), "missing")
        return BfclExpect(
            shape.kind,
            tuple(PossibleCall(call.name, call.values, call.types, tuple(call.required)) for call in shape.calls),
        )

    def text_rule(self) -> Any:
        rule = self.shape.expect.text
        if wrong := check_rule(rule):
            self.report((*self.path, "expect", "text"), wrong)
        return rule

    def judge(self) -> JudgeExpect | None:
        if "judge" not in self.shape.expect.model_fields_set:
            return None
        shape = self.shape.expect.judge
        return JudgeExpect(shape.rubric, tuple(Example(each.answer, each.verdict) for each in shape.examples))

    def loop(self) -> Loop | None:
        if "loop" not in self.shape.model_fields_set:
            return None
        shape, tools = self.shape.loop, dict[str, tuple[Reaction, ...]]()
        for name, reactions in shape.tools.items():
            at = (*self.path, "loop", "tools", name)
            self.check_offered(name, at)
            for index, each in enumerate(reactions):
                if len(each.model_fields_set & {"result", "error", "python"}) != 1:
                    self.report((*at, index), "give one of result, error and python")
                for argument, rule in each.when.items():
                    if wrong := check_rule(rule):
                        self.report((*at, index, "when", argument), wrong)
            tools[name] = tuple(
                Reaction(each.when, each.result, each.error, each.python, each.delay) for each in reactions
            )
        return Loop(tools, tuple(shape.then), shape.max_steps)

    def check_contradictions(self, choice: ToolChoice, calls: Sequence[ExpectedCall], path: KeyPath) -> None:
        """Report expectations that no answer can meet."""
        if choice.mode == "none" and calls:
            self.report(path, "calls are expected, but tool_choice is none")
        elif choice.mode in ("required", "named") and not calls:
            wanted = "required" if choice.mode == "required" else f"the tool {choice.name}"
            self.report(path, f"no call is expected, but tool_choice is {wanted}")
        elif choice.mode == "named" and any(call.name != choice.name for call in calls):
            self.report(path, f"a call of another tool is expected, but tool_choice allows only {choice.name}")
        if len(calls) > 1 and not self.shape.parallel and "loop" not in self.shape.model_fields_set:
            self.report(path, "several calls are expected, but parallel is false")


def _with_text_arguments(value: Any) -> Any:
    """Messages or items whose calls have JSON text as arguments, also if the suite gives an object."""
    if isinstance(value, list):
        return [_with_text_arguments(member) for member in value]
    if not isinstance(value, dict):
        return value
    written = {
        name: _with_text_arguments(member) if name in ("tool_calls", "function") else member
        for name, member in value.items()
    }
    if isinstance(value.get("arguments"), dict):
        written["arguments"] = compact_json(value["arguments"])
    return written


def _texts(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
