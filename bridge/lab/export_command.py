"""`turnbridge lab export`: a suite for promptfoo or Inspect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bridge.lab.case import Case

Json = dict[str, Any]
URL = "http://127.0.0.1:11435/v1"


def command(
    suite: Annotated[
        Path, typer.Argument(metavar="SUITE", help="A YAML or JSON file of cases, or a directory.", show_default=False)
    ],
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="promptfoo or inspect.")],
    into: Annotated[Path, typer.Option("--into", metavar="FILE", help="The file to write; - is stdout.")],
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME", help="The model in a promptfoo file.")
    ] = "gpt-5.2",
) -> None:
    """Write a suite in the format of another program: a promptfoo configuration, or a dataset of Inspect.

    The promptfoo file asks a running `turnbridge serve` with the key in TURNBRIDGE_API_KEY, and checks the calls with
    its own assertions. A line of the Inspect dataset has the messages as input, the expected calls as JSON as target,
    and the tools as metadata. Rules have no counterpart there: only cases whose expected values are plain are checked
    in full; others by the names of the calls.
    """
    from bridge.errors import UsageError
    from bridge.lab.suite import load_suite
    from bridge.terminal import say, write_pieces

    makers: Mapping[str, Callable[[Iterable[Case], str], bytes]] = {"promptfoo": promptfoo, "inspect": inspect_dataset}
    if format not in makers:
        raise UsageError(f"Invalid --format '{format[:80]}'. Choose {' or '.join(makers)}.")
    if str(into) != "-" and into.exists():
        raise UsageError(f"{into} exists. Choose another file for --into.")
    every = load_suite(suite).cases
    cases = [case for case in every if case.loop is None and (case.expect.names or not case.expects_calls)]
    if len(cases) < len(every):
        say("note", f"{len(every) - len(cases)} case(s) left out: episodes, and cases in which any call is right")
    write_pieces(into, [makers[format](cases, model)])
    say("note", f"{len(cases)} case(s) written to {into}")


def chat_messages(case: Case) -> list[Json]:
    """The conversation as chat messages, with the instructions as the system's."""
    from bridge.core.turn import Turn
    from bridge.protocols.chat.build import MAX_NAME, build_messages
    from bridge.protocols.chat.presets import Preset
    from bridge.protocols.upstream import ToolNames

    turn = Turn("model", "model", case.items, instructions=case.instructions)
    return build_messages(turn, ToolNames(case.tools, MAX_NAME), Preset())


def expected_calls(case: Case) -> list[Json]:
    """The expected calls. `arguments` is missing where it has rules, and for cases of BFCL."""
    from bridge.lab.rules import has_rule

    if case.expect.bfcl is not None:
        return [{"name": name} for name in case.expect.names]
    found = []
    for call in case.expect.calls:
        plain = not call.optional and not has_rule(dict(call.arguments)) and "*" not in call.arguments
        found.append({"name": call.name, **({"arguments": dict(call.arguments)} if plain else {})})
    return found


def inspect_dataset(cases: Iterable[Case], model: str) -> bytes:
    """JSON lines for `inspect_ai.dataset.json_dataset`."""
    from bridge import exact_json

    lines = []
    for case in cases:
        metadata = {
            "category": case.category,
            "tags": list(case.tags),
            "tools": [_tool(tool)["function"] for tool in case.tools],
            "tool_choice": _choice(case),
            "expect": {"calls": expected_calls(case), "contains": case.expect.contains, "lacks": case.expect.lacks},
        }
        target = exact_json.dumps(expected_calls(case)).decode()
        row = {
            "id": case.id,
            "input": list(map(_inspect_message, chat_messages(case))),
            "target": target,
            "metadata": metadata,
        }
        lines.append(exact_json.dumps(row) + b"\n")
    return b"".join(lines)


def _inspect_message(message: Json) -> Json:
    """A chat message as Inspect reads it: always with content, and with the arguments of calls as objects."""
    from bridge.exact_json import member, objects, try_loads

    content = message.get("content") or ""
    if isinstance(content, list):
        images = (member(part, "image_url", "url") for part in content)
        content = [
            part if image is None else {"type": "image", "image": image}
            for part, image in zip(content, images, strict=True)
        ]
    found = {**message, "content": content}
    if message["role"] == "developer":
        found["role"] = "system"
    if "tool_calls" in message:
        found["tool_calls"] = []
        for call in objects(message["tool_calls"]):
            function = call["function"]
            arguments = try_loads(function["arguments"])
            made = {"id": call["id"], "type": "function", "function": function["name"], "arguments": arguments}
            if not isinstance(arguments, dict):
                made |= {"arguments": {}, "parse_error": f"Not a JSON object: {function['arguments'][:200]}"}
            found["tool_calls"].append(made)
    return found


def promptfoo(cases: Iterable[Case], model: str) -> bytes:
    """A configuration with a provider and a prompt for each case, because the tools are part of a provider's."""
    from bridge.log.case import dump_yaml

    providers, prompts, tests = [], [], []
    for case in cases:
        config: Json = {"apiBaseUrl": URL, "apiKeyEnvar": "TURNBRIDGE_API_KEY"}
        if case.tools:
            config |= {"tools": [_tool(tool) for tool in case.tools], "tool_choice": _choice(case)}
            config["parallel_tool_calls"] = case.parallel
        label = f"{model} {case.id}"
        providers.append({"id": f"openai:chat:{model}", "label": label, "config": config})
        prompts.append({"label": case.id, "raw": _raw(case)})
        tests.append(
            {"description": f"{case.category}: {case.id}", "providers": [label], "prompts": [case.id]}
            | {"assert": list(_assertions(case))}
        )
    return dump_yaml(
        {"description": "Made by turnbridge lab export", "providers": providers, "prompts": prompts, "tests": tests}
    ).encode()


def _raw(case: Case) -> str:
    """The messages as promptfoo reads them; their text must not be taken for its templates."""
    from bridge import exact_json

    text = exact_json.dumps(chat_messages(case)).decode()
    return f"{{% raw %}}{text}{{% endraw %}}" if "{% endraw" not in text and "{%- endraw" not in text else text


def _assertions(case: Case) -> Iterable[Json]:
    from bridge import exact_json

    calls = expected_calls(case)
    ordered = case.expect.order == "exact"
    yield {"type": "javascript", "value": _SCRIPT % (exact_json.dumps(calls).decode(), "true" if ordered else "false")}
    if calls and case.tools:
        yield {"type": "is-valid-openai-tools-call"}
    for text in case.expect.contains:
        yield {"type": "icontains", "value": text}
    for text in case.expect.lacks:
        yield {"type": "not-icontains", "value": text}


_SCRIPT = """\
const wanted = %s, ordered = %s;
const list = Array.isArray(output) ? output : output && output.tool_calls ? output.tool_calls : [];
const made = list.map((call) => ({ name: call.function.name, arguments: JSON.parse(call.function.arguments || "{}") }));
const sorted = (value) => Array.isArray(value) ? value.map(sorted) : value && typeof value === "object"
  ? Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])])) : value;
const same = (want, got) => want.name === got.name
  && (!("arguments" in want) || JSON.stringify(sorted(want.arguments)) === JSON.stringify(sorted(got.arguments)));
if (made.length !== wanted.length) return false;
if (ordered) return wanted.every((want, index) => same(want, made[index]));
return wanted.every((want) => {
  const index = made.findIndex((got) => same(want, got));
  return index >= 0 && made.splice(index, 1).length === 1;
});
"""


def _tool(tool: Any) -> Json:
    parameters = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    function = {"name": tool.full_name, "description": tool.description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def _choice(case: Case) -> Any:
    choice = case.tool_choice
    return choice.mode if choice.mode != "named" else {"type": "function", "function": {"name": choice.name}}
