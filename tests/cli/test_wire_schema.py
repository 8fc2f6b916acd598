"""The wire protocol on paper: its JSON Schema says what it should, and docs/exec-wire.md shows nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from harness import ROOT

SCHEMA = json.loads((ROOT / "fixtures/wire/v0.schema.json").read_text())
PAGE = (ROOT / "docs/exec-wire.md").read_text()
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)

BLOCKS = [block.splitlines() for block in re.findall(r"^```jsonl\n(.*?)^```$", PAGE, re.M | re.S)]
ORIGINAL = (ROOT / "fixtures/wire/v0.examples.jsonl").read_text().splitlines()
"""Every example of the document that defines v0, one a line."""
EXAMPLES = list(dict.fromkeys(line for block in BLOCKS for line in block))

Event = dict[str, Any]

REQUIRED = {
    "response.created": "type response response.id response.model",
    "response.output_item.added message": "type item item.id item.type item.role",
    "response.output_item.added function_call": "type item item.id item.type item.call_id item.name",
    "response.output_item.added custom_tool_call": "type item item.id item.type item.call_id item.name",
    "response.output_item.added reasoning": "type item item.id item.type",
    "response.output_item.added web_search_call": "type item item.id item.type",
    "response.content_part.added": "type part part.type part.text",
    "response.output_text.delta": "type delta",
    "response.function_call_arguments.delta": "type item_id delta",
    "response.custom_tool_call_input.delta": "type item_id delta",
    "response.reasoning_summary_text.delta": "type item_id summary_index delta",
    "response.reasoning_text.delta": "type item_id content_index delta",
    "response.web_search_call.in_progress": "type item_id",
    "response.web_search_call.searching": "type item_id",
    "response.web_search_call.completed": "type item_id",
    "response.output_item.done message": (
        "type item item.id item.type item.role item.content item.content.0.type item.content.0.text"
    ),
    "response.output_item.done function_call": ("type item item.id item.type item.call_id item.name item.arguments"),
    "response.output_item.done custom_tool_call": "type item item.id item.type item.call_id item.name item.input",
    "response.output_item.done reasoning": (
        "type item item.id item.type item.summary item.summary.0.type item.summary.0.text"
        " item.content.0.type item.content.0.text"
    ),
    "response.output_item.done web_search_call": "type item item.id item.type item.status item.action",
    "response.completed": (
        "type response response.usage"
        " response.usage.input_tokens response.usage.output_tokens response.usage.cached_tokens"
    ),
    "error": "type message",
}
"""The members that each kind of line must have. A number is a place in a list."""


def kind_of(event: Event) -> str:
    """The line's type, and its item's where it has one."""
    item = event.get("item")
    return f"{event['type']} {item['type']}" if isinstance(item, dict) else str(event["type"])


def example(kind: str) -> Event:
    """A line of that kind from the page, the richest one; the caller may change it."""
    events = [event for event in map(json.loads, EXAMPLES) if kind_of(event) == kind]
    return dict(max(events, key=lambda event: len(json.dumps(event))))


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a value, itself included."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(inner)


def owner(event: Event, path: str) -> tuple[Any, str]:
    """The object that holds the member at `path`, and the member's name."""
    *way, name = path.split(".")
    place: Any = event
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    return place, name


# The schema


def test_it_is_a_schema_of_2020_12() -> None:
    """It says so, and the metaschema agrees."""
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(SCHEMA)


def test_it_explains_itself() -> None:
    """Each definition has a title, and each is used."""
    text = json.dumps(SCHEMA)
    for name, definition in SCHEMA["$defs"].items():
        assert definition["title"]
        assert f'"#/$defs/{name}"' in text


@pytest.mark.parametrize("kind", REQUIRED)
def test_each_member_of_the_protocol_is_required(kind: str) -> None:
    """A line without one of them is refused, and so is one with null in its place."""
    for path in REQUIRED[kind].split():
        event = example(kind)
        holder, name = owner(event, path)
        holder[name] = None
        assert not VALIDATOR.is_valid(event), f"{path} may be null"
        del holder[name]
        assert not VALIDATOR.is_valid(event), f"{path} may be missing"


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"response.output_item.done","item":{"id":"rs_1","type":"reasoning","summary":[]}}',
        '{"type":"response.output_item.done","item":{"id":"msg_1","type":"message","role":"assistant","content":[]}}',
        '{"type":"response.output_item.done","item":{"id":"fc_1","type":"function_call","call_id":"c","name":"f","arguments":""}}',
        '{"type":"response.output_item.done","item":{"id":"ws_1","type":"web_search_call","status":"failed","action":{}}}',
        '{"type":"response.output_text.delta","item_id":"msg_1","delta":""}',
    ],
)
def test_what_may_be_missing_or_empty(line: str) -> None:
    """Thoughts that are not shown, texts that are empty, arguments that are no JSON."""
    VALIDATOR.validate(json.loads(line))


@pytest.mark.parametrize("line", ORIGINAL)
def test_the_examples_of_the_original_document_are_valid(line: str) -> None:
    """Literally: v0 is what it says, and our lines only have more in them."""
    VALIDATOR.validate(json.loads(line))


def test_what_exec_adds_is_in_every_line_of_the_page() -> None:
    """The members that the schema does not require, and that `exec` always writes."""
    added = {
        "response.content_part.added": ("item_id",),
        "response.output_text.delta": ("item_id",),
        "error": ("code",),
    }
    for event in map(json.loads, EXAMPLES):
        assert not set(added.get(event["type"], ())) - event.keys(), event
        assert event["type"] != "response.completed" or {"id", "model"} <= event["response"].keys()


@pytest.mark.parametrize("kind", REQUIRED)
def test_members_may_be_added_everywhere(kind: str) -> None:
    """The protocol grows without a new version."""
    event = example(kind)
    for place in list(objects(event)):
        place["added_later"] = {"anything": [1, None]}
    VALIDATOR.validate(event)


@pytest.mark.parametrize(
    "line",
    [
        "null",
        "[]",
        '"error"',
        "{}",
        '{"type":null}',
        '{"type":"response.in_progress","response":{"id":"resp_1","model":"m"}}',
        '{"type":"response.failed","response":{"id":"resp_1","model":"m"}}',
        '{"type":"Error","message":"a","code":"b"}',
        '{"type":"error","message":"","code":"b"}',
        '{"type":"error","error":{"message":"a","code":"b"}}',
        '{"type":"response.created","response":{"id":"","model":"m"}}',
        '{"type":"response.content_part.added","item_id":"msg_1","part":{"type":"output_text","text":null}}',
        '{"type":"response.content_part.added","item_id":null,"part":{"type":"output_text","text":""}}',
        '{"type":"response.completed","response":{"id":"resp_1","model":"m"}}',
        '{"type":"error","message":"a","code":null}',
        '{"type":"response.output_text.delta","item_id":"msg_1","delta":["hello"]}',
        '{"type":"response.reasoning_text.delta","item_id":"rs_1","content_index":-1,"delta":"a"}',
        '{"type":"response.output_item.added","item":{"id":"msg_1","type":"message","role":"user"}}',
        '{"type":"response.output_item.added","item":{"id":"x_1","type":"computer_call"}}',
        '{"type":"response.output_item.done","item":{"id":"fc_1","type":"function_call","call_id":"call_1","name":"f",'
        '"arguments":{"a":1}}}',
        '{"type":"response.output_item.done","item":{"id":"msg_1","type":"message","role":"assistant","content":"a"}}',
        '{"type":"response.completed","response":{"id":"resp_1","model":"m",'
        '"usage":{"input_tokens":1.5,"output_tokens":2,"cached_tokens":0}}}',
        '{"type":"response.completed","response":{"id":"resp_1","model":"m",'
        '"usage":{"input_tokens":1,"output_tokens":-2,"cached_tokens":0}}}',
    ],
)
def test_a_wrong_line_is_refused(line: str) -> None:
    """Other values, other types, other shapes."""
    assert not VALIDATOR.is_valid(json.loads(line))


# The page


def test_every_example_line_is_valid() -> None:
    """Each line of a jsonl block is one line of the protocol."""
    assert EXAMPLES
    for line in EXAMPLES:
        VALIDATOR.validate(json.loads(line))


def test_no_event_is_shown_outside_these_blocks() -> None:
    """So that the test above has seen them all."""
    shown = [line.strip() for line in PAGE.splitlines() if re.match(r'\s*\{ ?"type": ?"(response\.|error")', line)]
    assert set(shown) == set(EXAMPLES)


def test_every_kind_of_line_has_an_example() -> None:
    """The page, the schema and this file know the same lines."""
    assert {kind_of(json.loads(line)) for line in EXAMPLES} == set(REQUIRED)
    events = [SCHEMA["$defs"][branch["$ref"].rpartition("/")[2]] for branch in SCHEMA["oneOf"]]
    assert {event["properties"]["type"]["const"] for event in events} == {kind.split()[0] for kind in REQUIRED}


def test_the_examples_of_whole_runs_are_in_order() -> None:
    """A block that begins a run and ends it follows the grammar of the page."""
    runs = [[json.loads(line) for line in block] for block in BLOCKS if len(block) > 1]
    runs = [run for run in runs if run[-1]["type"] in ("response.completed", "error")]
    assert len(runs) >= 5
    for run in runs:
        kinds = [event["type"] for event in run]
        assert kinds[0] == "response.created"
        assert sum(kind in ("response.created", "response.completed", "error") for kind in kinds) == 2
        assert_items_do_not_overlap(run[1:-1])


def assert_items_do_not_overlap(events: list[Event]) -> None:
    """Each event belongs to the item that is open; deltas add up to what the item says in the end."""
    opened, said = None, ""
    for event in events:
        if event["type"] == "response.output_item.added":
            assert opened is None
            opened, said = event["item"]["id"], ""
        elif event["type"] == "response.output_item.done":
            item = event["item"]
            assert item["id"] == opened
            assert said == (item["content"][0]["text"] if item["type"] == "message" else item["arguments"])
            opened = None
        else:
            assert event["item_id"] == opened
            said += event.get("delta", "")
